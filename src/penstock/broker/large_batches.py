"""Large batches are decompressed on threads, a few at a time.

A producer's batch is decompressed to be checked (`partition.record_validation`), a stored one when
somebody asks for a record by its time. That may take many milliseconds and much memory, so only
`CONCURRENT_MAX` batches are open at a time; the others wait their turn, as long as their client
does. Flushes share the threads, and so some of the threads are always left to them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, NamedTuple, TypeVar

from penstock.ports import Clock, Executor

T = TypeVar("T")

CONCURRENT_MAX: Final = 2
"""Each takes as much memory as it decompresses to."""


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
        """Batches that were opened on threads since the broker started."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def run(self, work: Callable[[], T], timeout_s: float) -> asyncio.Future[T]:
        """Run `work` on a thread when its turn comes; `TimeoutError` if that is too late."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Job(work, self._clock.monotonic() + max(0.0, timeout_s), done))
        if self._running < CONCURRENT_MAX:
            self._running += 1
            self._spawn(self._run())
        return done

    async def _run(self) -> None:
        """Until nobody waits."""
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
        except Exception as error:  # noqa: BLE001 - it becomes the answer
            job.done.set_exception(error)
        else:
            self.opened += 1
            job.done.set_result(result)
