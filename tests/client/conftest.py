"""A fake broker, and a cluster that has it for its only member."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client.fake_broker import FakeBroker


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker
