"""Tests that a driver with too much memory is ended, and that only drivers are looked at."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from penstock.runtime import Threads
from penstock.spark.deployments.memory_watch import MemoryWatch
from penstock.spark.pipelines import process_session
from penstock.spark.pipelines.process_session import memory_of

LIMIT = 100


class Driver:
    def __init__(self, pid: int | None) -> None:
        self.pid = pid
        self.memory_max = LIMIT
        self.killed: list[tuple[int, int]] = []

    def kill_for_memory(self, used: int, limit: int) -> None:
        self.killed.append((used, limit))


def looks(drivers: list[Driver], *found: Mapping[int, int]) -> MemoryWatch:
    """Looks once for each of these measurements."""
    measured = iter(found)
    watch = MemoryWatch(Threads(1), lambda _: next(measured))

    async def main() -> None:
        for _ in found:
            await watch.look(drivers, [9, None])

    asyncio.run(main())
    return watch


def test_two_looks_count() -> None:
    large, moment, small, without = Driver(1), Driver(2), Driver(3), Driver(None)
    drivers = [large, moment, small, without]
    watch = looks(drivers, {1: 101, 2: 500, 3: 100, 9: 900}, {1: 102, 2: 50, 3: 100, 9: 900})
    assert large.killed == [(102, LIMIT)]
    assert moment.killed == small.killed == without.killed == []
    assert watch.used == {1: 102, 2: 50, 3: 100, 9: 900}


def test_two_looks_must_follow_each_other() -> None:
    driver = Driver(1)
    looks([driver], {1: 101}, {1: 99}, {1: 101})
    assert driver.killed == []


def test_without_drivers_nothing_is_read() -> None:
    def read(_: Collection[int]) -> Mapping[int, int]:
        raise AssertionError("there is nothing to read")

    async def main() -> None:
        watch = MemoryWatch(Threads(1), read)
        await watch.look([Driver(None)], [None])
        assert watch.used == {}

    asyncio.run(main())


def test_a_driver_that_took_the_place_of_another_is_not_killed() -> None:
    driver = Driver(1)

    def read(_: Collection[int]) -> Mapping[int, int]:
        driver.pid = 2
        return {1: 500}

    async def main() -> None:
        watch = MemoryWatch(Threads(1), read)
        await watch.look([driver])
        driver.pid = 1
        await watch.look([driver])
        assert driver.killed == []

    asyncio.run(main())


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="there is no /proc")
def test_only_processes_of_the_session_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may have thousands of others."""
    real, read = process_session._process, []

    def reads(pid: int) -> process_session.Process | None:
        read.append(pid)
        return real(pid)

    monkeypatch.setattr(process_session, "_process", reads)
    code = "import subprocess, sys; subprocess.Popen(['sleep', '1000']); print(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        try:
            found = memory_of([parent.pid])
        finally:
            os.killpg(parent.pid, 9)
    assert list(found) == [parent.pid] and found[parent.pid] > 1 << 20
    assert len(read) == 2 and parent.pid in read and os.getpid() not in read
