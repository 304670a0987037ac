"""Fixtures: a fake broker, and real ones (`client.live_broker`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client.fake_broker import FakeBroker
from client.live_broker import live_broker, own_broker

__all__ = ["live_broker", "own_broker"]


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker
