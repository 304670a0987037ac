"""Checks and decompresses large batches on threads, a few at a time.

A producer's batch is decompressed for validation (`partition.record_validation`), and a stored one
to find a record by its timestamp. That may take many milliseconds and much memory, so at most
`CONCURRENT_MAX` batches are decompressed at a time. The others wait in a queue until their client's
timeout. Flushes use the same threads, and the limit leaves some threads to them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, NamedTuple, TypeVar

from penstock.ports import Clock, Executor

T = TypeVar("T")

CONCURRENT_MAX: Final = 2
"""Each batch uses as much memory as its decompressed size."""


class _Job(NamedTuple, Generic[T]):
    work: Callable[[], T]
    deadline: float
    done: asyncio.Future[T]


class LargeBatches:
    def __init__(
        self,
        clock: Clock,
        executor: Executor,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._clock = clock
        self._executor = executor
        self._spawn = spawn
        self._waiting: deque[_Job[Any]] = deque()
        self._running = 0
        self.opened = 0
        """Batches that were decompressed on threads since the broker started."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def run(self, work: Callable[[], T], timeout_s: float) -> asyncio.Future[T]:
        """Runs `work` on a thread once it is first in the queue. The future gets its result, or
        `TimeoutError` if it did not start in time."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Job(work, self._clock.monotonic() + max(0.0, timeout_s), done))
        if self._running < CONCURRENT_MAX:
            self._running += 1
            self._spawn(self._run())
        return done

    async def _run(self) -> None:
        """Runs jobs until the queue is empty."""
        try:
            while self._waiting:
                await self._run_one(self._waiting.popleft())
        finally:
            self._running -= 1

    async def _run_one(self, job: _Job[Any]) -> None:
        if self._clock.monotonic() > job.deadline:
            job.done.set_exception(
                TimeoutError(
                    "the batch could not be checked in time: the broker is busy, try again"
                )
            )
            return
        try:
            result = await self._executor.run(job.work)
        except asyncio.CancelledError:
            job.done.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - the caller gets it from the future
            job.done.set_exception(error)
        else:
            self.opened += 1
            job.done.set_result(result)
