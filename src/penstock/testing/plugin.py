"""The fixtures of `penstock.testing` for pytest, found through the entry point `pytest11`.

pytest imports this module in every run, wanted or not, so it imports nothing of weight: a run that
asks for no fixture pays for an empty module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from penstock.testing.broker import Broker
    from penstock.testing.faults import Faults


class TopicFactory(Protocol):
    """`penstock_topic(partitions=3, configs={"cleanup.policy": "compact"})` is a topic's name."""

    def __call__(
        self,
        partitions: int = 1,
        *,
        name: str | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> str: ...


@pytest.fixture(scope="session")
def penstock_broker_settings() -> Mapping[str, str]:
    """Broker settings for `penstock_broker`; define a fixture of this name to have your own."""
    return {}


@pytest.fixture(scope="session")
def penstock_broker(penstock_broker_settings: Mapping[str, str]) -> Iterator[Broker]:
    """One real broker for the whole run; `penstock_broker.bootstrap` is its address."""
    from penstock.testing.broker import Broker  # noqa: PLC0415 -- only who asks for it pays

    with Broker(penstock_broker_settings) as broker:
        yield broker


@pytest.fixture
def penstock_topic(penstock_broker: Broker) -> TopicFactory:
    """Makes topics, each under a name of its own."""
    return penstock_broker.new_topic


@pytest.fixture
def penstock_faults(penstock_broker: Broker) -> Iterator[Faults]:
    """The same broker at another address, where things go wrong by script."""
    from penstock.testing.faults import Faults  # noqa: PLC0415 -- only who asks for it pays

    with Faults(penstock_broker.bootstrap) as faults:
        yield faults
