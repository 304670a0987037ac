"""Fixtures with a real broker for client tests.

`live_broker` is shared by the whole run and cheap, so prefer it, and use separate topics and groups
(`live_broker.new_topic(partitions=3)`, `live_broker.new_name("group")`). A test that kills, freezes
or stops its broker uses `own_broker`, which is not shared and takes half a second to start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from penstock.testing import Broker
from penstock.testing.slowness import patient


@pytest.fixture
def live_broker(penstock_broker: Broker) -> Broker:
    """Returns the shared broker, running, whatever the previous test did to it."""
    penstock_broker.thaw()
    penstock_broker.start()
    return penstock_broker


@pytest.fixture
def own_broker(penstock_broker_settings: Mapping[str, str]) -> Iterator[Broker]:
    with Broker(penstock_broker_settings) as broker:
        yield broker


SESSION_MS = int(1_000 * min(45.0, patient(10.0)))
"""Some tests wait for the end of a session. In the others none may end because the machine is busy.
"""
CONSUMER_GROUPS = {
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.assignment.interval.ms": "0",
}
"""Settings with which consumer groups of the new protocol move fast."""


@pytest.fixture(scope="package")
def consumer_groups_broker() -> Iterator[Broker]:
    """A broker that serves the new protocol, for all tests of a package. They must not stop it."""
    with Broker(CONSUMER_GROUPS) as broker:
        yield broker
