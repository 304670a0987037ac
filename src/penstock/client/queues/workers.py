"""Worker pools: call a handler for each job, several at the same time, and stop cleanly.

When a pool is asked to stop, it gives back at once what no handler has begun, so that other workers
can have it. Handlers that run get some time to finish. Those that do not are cancelled, and their
jobs are given back too.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, Literal, Protocol

from penstock.client.errors import ClientError, LockLost
from penstock.client.model import V
from penstock.client.queues.job import Job

Handler = Callable[[Job[V]], Awaitable[object] | object]
"""Handles one job. The job is done when this returns, unless the handler has settled it itself."""

OnError = Literal["retry", "reject"]
_THREADS: Final = "penstock worker"
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_log: Final = logging.getLogger("penstock.client")


@dataclass(slots=True)
class WorkSummary:
    """What a worker pool did."""

    done: int = 0
    """Jobs that their handler finished or settled itself."""
    failed: int = 0
    """Jobs whose handler raised an error. They were given back, or rejected."""
    released: int = 0
    """Jobs that were given back because the pool stopped before their handler had finished."""
    lost: int = 0
    """Jobs whose lock was lost before they could be settled. They are delivered again."""


class JobSource(Protocol[V]):
    """What a pool needs of a queue."""

    async def take(self, timeout_s: float | None = None) -> Job[V] | None: ...

    def stop_taking(self) -> None:
        """Gives back what nobody has taken. `take` returns None from now on."""


class WorkerPool(Generic[V]):
    """One run of a handler over the jobs of a queue."""

    def __init__(
        self,
        source: JobSource[V],
        handler: Handler[V],
        *,
        workers: int,
        on_error: OnError,
        grace_s: float,
    ) -> None:
        self._source = source
        self._handler = handler
        self._is_async = inspect.iscoroutinefunction(handler)
        self._workers = workers
        self._on_error = on_error
        self._grace_s = grace_s
        self._threads = None if self._is_async else ThreadPoolExecutor(workers, _THREADS)
        self.summary = WorkSummary()

    async def run(self, stop: asyncio.Event) -> WorkSummary:
        """Handles jobs until `stop` is set, or the queue is closed."""
        working = [asyncio.create_task(self._work()) for _ in range(self._workers)]
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([*working, stopping], return_when=asyncio.FIRST_COMPLETED)
            self._source.stop_taking()
            _, late = await asyncio.wait(working, timeout=self._grace_s)
            if late:
                _log.warning("cancelling %d handlers after %g s", len(late), self._grace_s)
        finally:
            stopping.cancel()
            for task in working:
                task.cancel()
            ended = await asyncio.gather(*working, return_exceptions=True)
            if self._threads is not None:
                # A thread cannot be cancelled. Its job was given back; it ends when it ends.
                self._threads.shutdown(wait=False)
        for outcome in ended:
            if isinstance(outcome, Exception):
                raise outcome
        return self.summary

    async def _work(self) -> None:
        while (job := await self._source.take()) is not None:
            await self._handle(job)

    async def _handle(self, job: Job[V]) -> None:
        try:
            await self._call(job)
        except asyncio.CancelledError:
            if not job.is_settled and not job.is_lost:
                self.summary.released += 1
                await job.retry(wait=False)
            raise
        except Exception:  # noqa: BLE001 -- a user's code may raise anything
            self.summary.failed += 1
            _log.exception("the handler failed on %r", job)
            await self._settle(job, self._on_error)
        else:
            if await self._settle(job, "done"):
                self.summary.done += 1

    async def _call(self, job: Job[V]) -> None:
        if self._threads is None:
            result = self._handler(job)
        else:
            loop = asyncio.get_running_loop()
            result = await loop.run_in_executor(self._threads, self._handler, job)
        if inspect.isawaitable(result):
            await result

    async def _settle(self, job: Job[V], how: Literal["done", "retry", "reject"]) -> bool:
        """Settles a job that the handler has not settled. Returns False if its lock was lost."""
        if job.is_settled:
            return True
        try:
            await getattr(job, how)()
        except LockLost as error:
            self.summary.lost += 1
            _log.warning("%r: %s", job, error)
            return False
        except ClientError as error:
            self.summary.lost += 1
            _log.error("%r could not be settled, so it will be delivered again: %s", job, error)
            return False
        return True


@contextmanager
def stop_on_signals(on_signal: Callable[[], None]) -> Iterator[None]:
    """Calls the function for SIGTERM and SIGINT, within the block. A second signal has its usual
    effect. Does nothing outside of the main thread, which alone receives signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_first(number: int, frame: object) -> None:
        restore()
        on_signal()

    for number in _SIGNALS:
        signal.signal(number, on_first)
    try:
        yield
    finally:
        restore()
