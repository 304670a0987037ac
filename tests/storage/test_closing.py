"""All logs of a directory are closed concurrently, and each one as cleanly as alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from errno import EIO
from typing import TypeVar

from penstock.storage.closing import close_logs
from penstock.storage.config import LogConfig
from penstock.storage.directory import DirectoryConfig, LogDirectory
from penstock.testing.slowness import patient

from .log_bench import NOW_MS, LogBench, append

T = TypeVar("T")
ROOT = "/data/logs"


class Counting:
    """An executor whose tasks wait until `together` of them run: closing one by one would never
    end."""

    def __init__(self, together: int) -> None:
        self._barrier = asyncio.Barrier(together)

    async def run(self, work: Callable[[], T]) -> T:
        await self._barrier.wait()
        return work()


def directory(bench: LogBench) -> LogDirectory:
    return LogDirectory(bench.disk, ROOT, DirectoryConfig(disk_reserve_bytes=0))


def filled(bench: LogBench, logs: int) -> LogDirectory:
    made = directory(bench)
    for number in range(logs):
        append(
            made.create("t", number, topic_id="id", config=LogConfig(), now_ms=NOW_MS), number + 1
        )
    return made


def close(made: LogDirectory, together: int) -> list[str]:
    async def run() -> list[str]:
        async with asyncio.timeout(patient(120)):
            return await close_logs(made, Counting(together), together)

    return asyncio.run(run())


def test_all_logs_are_closed_cleanly_and_concurrently(bench: LogBench) -> None:
    """Every log opens without a scan, and no file stays open."""
    assert close(filled(bench, 6), together=3) == []
    assert bench.sim.open_paths() == []
    again = directory(bench)
    assert all(report.clean for report in again.open_all(lambda *_: LogConfig(), NOW_MS))
    assert sorted(log.end_offset for log in again) == [1, 2, 3, 4, 5, 6]


def test_a_log_that_fails_to_close_does_not_affect_the_others(bench: LogBench) -> None:
    """It is reported, and recovered at the next start."""
    made = filled(bench, 4)
    bench.sim.fail_next("fsync", EIO, path_contains="/t-2/")
    (trouble,) = close(made, together=2)
    assert "t-2 could not be closed" in trouble
    again = directory(bench)
    reports = again.open_all(lambda *_: LogConfig(), NOW_MS)
    assert {report.directory[-3:]: report.clean for report in reports} == {
        "t-0": True,
        "t-1": True,
        "t-2": False,
        "t-3": True,
    }
