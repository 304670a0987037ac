"""A real broker to test the client against.

`live_broker` is one for the whole run: cheap, so prefer it, and use topics and groups of your own
(`live_broker.new_topic(partitions=3)`, `live_broker.new_name("group")`). Whoever kills, freezes or
stops it for the sake of a test takes `own_broker`, which nobody else has: half a second each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from penstock.testing import Broker


@pytest.fixture
def live_broker(penstock_broker: Broker) -> Broker:
    """The shared broker, running, whatever the test before did to it."""
    penstock_broker.thaw()
    penstock_broker.start()
    return penstock_broker


@pytest.fixture
def own_broker(penstock_broker_settings: Mapping[str, str]) -> Iterator[Broker]:
    with Broker(penstock_broker_settings) as broker:
        yield broker
