"""Fixtures of the store tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .sqlite_bench import SqliteBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[SqliteBench]:
    bench = SqliteBench(tmp_path)
    yield bench
    bench.close()
