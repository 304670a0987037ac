"""One Penstock broker for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing import Broker


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started
