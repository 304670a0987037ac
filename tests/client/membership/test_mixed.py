"""Tests groups with members of several client libraries: ours, librdkafka and kafka-python.

They run with every common assignor. The member that joins first leads the group and assigns for all
others. It is ours in some tests, and a third-party one in others.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Sequence

import pytest

from client.membership.mixed_group import CONFLUENT, KAFKA_PYTHON, OURS, PARTITIONS, MixedGroup
from penstock.testing import Broker

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

CASTS = [
    ("range", (OURS, CONFLUENT, KAFKA_PYTHON)),
    ("range", (CONFLUENT, OURS, KAFKA_PYTHON)),
    ("roundrobin", (KAFKA_PYTHON, OURS, CONFLUENT)),
    ("sticky", (OURS, KAFKA_PYTHON, OURS)),
    ("cooperative-sticky", (CONFLUENT, OURS, CONFLUENT)),
    ("cooperative-sticky", (OURS, KAFKA_PYTHON, CONFLUENT)),
]


@pytest.fixture(scope="module", autouse=True)
def no_litter() -> Iterator[None]:
    """Collects here what the client libraries leave to the garbage collector."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.parametrize(
    ("strategy", "cast"),
    CASTS,
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else value,
)
def test_a_mixed_group_rebalances(live_broker: Broker, strategy: str, cast: Sequence[str]) -> None:
    """Members join one by one, then leave one by one: nothing is lost or duplicated."""
    topic, group = live_broker.new_topic(PARTITIONS), live_broker.new_name("group")
    company = MixedGroup(live_broker.bootstrap, group, topic, strategy)
    try:
        for kind in cast:
            company.enter(kind)
            company.check()
        while len(company.members) > 1:
            company.leave(company.members[0])
            company.check()
    finally:
        company.close()
