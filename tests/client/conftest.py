"""Fixtures: a fake broker, and real ones (`client.live_broker`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client.fake_broker import FakeBroker
from client.live_broker import consumer_groups_broker, live_broker, own_broker

__all__ = ["consumer_groups_broker", "live_broker", "own_broker"]


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker
