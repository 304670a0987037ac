"""Watches the memory of drivers, and ends those that take more than they may.

A process that Java starts has the size of Java for a moment. So a driver is ended when it had too
much at two looks, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from penstock.ports import Executor
from penstock.spark.pipelines.process_session import memory_of

Read = Callable[[Collection[int]], Mapping[int, int]]


class Watched(Protocol):
    """What is asked and told about a driver."""

    @property
    def pid(self) -> int | None:
        """The id of its session; None if it has no process."""

    @property
    def memory_max(self) -> int:
        """The bytes that it may take."""

    def kill_for_memory(self, used: int, limit: int) -> None:
        """It takes too much."""


class MemoryWatch:
    def __init__(self, executor: Executor, read: Read = memory_of) -> None:
        """`read` returns the memory of sessions. It blocks."""
        self._executor = executor
        self._read = read
        self.used: Mapping[int, int] = {}
        """The memory of sessions at the last look, in bytes."""
        self._too_large: set[int] = set()
        """Those that had too much then."""

    async def look(self, drivers: Iterable[Watched], others: Iterable[int | None] = ()) -> None:
        """Looks at the memory of drivers, and of `others`, which have no limit."""
        watched = [(each, each.pid) for each in drivers]
        pids = {pid for pid in (*(pid for _, pid in watched), *others) if pid}
        used = await self._executor.run(lambda: self._read(pids)) if pids else {}
        before, self._too_large, self.used = self._too_large, set(), used
        for driver, pid in watched:
            # It may have ended meanwhile, and another one has begun.
            if pid is None or driver.pid != pid:
                continue
            taken, limit = used.get(pid, 0), driver.memory_max
            if taken <= limit:
                continue
            if pid in before:
                driver.kill_for_memory(taken, limit)
            else:
                self._too_large.add(pid)
