"""Large batches of producers are checked on threads, a few at a time.

To check a compressed batch means to decompress it (`partition.record_validation`). That may take
many milliseconds and much memory, so only `CONCURRENT_MAX` batches are checked at a time; the
others wait their turn, as long as their producer does. Flushes share the threads, and so some of
the threads are always left to them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from penstock.partition.record_validation import Validated
from penstock.ports import Clock, Executor

CONCURRENT_MAX: Final = 2
"""Each may take `AppendRules.decompressed_bytes_max` of memory."""


class _Job(NamedTuple):
    work: Callable[[], Validated]
    deadline: float
    done: asyncio.Future[Validated]


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
        self._waiting: deque[_Job] = deque()
        self._running = 0
        self.validated = 0
        """Batches that were checked on threads since the broker started."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def validate(
        self, work: Callable[[], Validated], timeout_s: float
    ) -> asyncio.Future[Validated]:
        """Run `work` on a thread when its turn comes; `TimeoutError` if that is too late."""
        done: asyncio.Future[Validated] = asyncio.get_running_loop().create_future()
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

    async def _run_one(self, job: _Job) -> None:
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
            self.validated += 1
            job.done.set_result(result)
