"""Fixtures of the storage tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.storage.disk import OsDisk

from .log_bench import LogBench, new_bench
from .sample_log import SampleLog, stopped_log


@pytest.fixture
def bench() -> LogBench:
    """A simulated disk without faults."""
    return new_bench()


@pytest.fixture
def real_bench(tmp_path: Path) -> LogBench:
    """The disk of this machine, in a directory that is removed after the test."""
    return LogBench(OsDisk(), str(tmp_path))


@pytest.fixture
def sample(tmp_path: Path) -> SampleLog:
    """A log that was stopped cleanly, on the real disk."""
    return stopped_log(str(tmp_path))


@pytest.fixture
def home(sample: SampleLog) -> Path:
    """The directory of `sample`."""
    return Path(sample.directory)
