"""The pytest fixtures of `penstock.testing`, registered by the entry point `pytest11`.

pytest imports this module in every run, so it imports nothing large. A run that uses none of the
fixtures loads almost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from penstock.testing.broker import Broker
    from penstock.testing.faults import Faults


class TopicFactory(Protocol):
    """`penstock_topic(partitions=3, configs={"cleanup.policy": "compact"})` returns a name."""

    def __call__(
        self,
        partitions: int = 1,
        *,
        name: str | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> str: ...


@pytest.fixture(scope="session")
def penstock_broker_settings() -> Mapping[str, str]:
    """Settings of `penstock_broker`. Override this fixture to change them."""
    return {}


@pytest.fixture(scope="session")
def penstock_broker(penstock_broker_settings: Mapping[str, str]) -> Iterator[Broker]:
    """One real broker for the whole test run; `penstock_broker.bootstrap` is its address."""
    from penstock.testing.broker import Broker  # noqa: PLC0415 -- loaded only if used

    with Broker(penstock_broker_settings) as broker:
        yield broker


@pytest.fixture
def penstock_topic(penstock_broker: Broker) -> TopicFactory:
    """Creates topics, each with a unique name."""
    return penstock_broker.new_topic


@pytest.fixture
def penstock_faults(penstock_broker: Broker) -> Iterator[Faults]:
    """A proxy in front of `penstock_broker` that injects faults."""
    from penstock.testing.faults import Faults  # noqa: PLC0415 -- loaded only if used

    with Faults(penstock_broker.bootstrap) as faults:
        yield faults
