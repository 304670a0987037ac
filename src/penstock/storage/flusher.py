"""Group commit: one fsync serves everything that was appended to a log before it began.

Nobody waits here. A partition that has appended calls `request`, and when a flush has ended,
`on_flushed` is called with the log: in a broker it is `Replicas`, which tells the partition.
Requests that come while a log is being flushed share the next flush. Different logs are flushed in
parallel, a few at a time, on the executor's threads. `exclusive` keeps flushes out while a log is
truncated, swapped or closed.

`run` owns every flush and runs in the broker's task group. If a write or fsync fails, the log goes
offline, and the flush is never retried. If a flush could not open a file, mostly because no file
descriptor was free, nothing is lost: it is retried after a pause that doubles each time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from penstock.ports import Executor
from penstock.storage.errors import DiskTrouble, StorageError
from penstock.storage.flush_plan import FlushPlan, lacks_descriptors
from penstock.storage.log import Log

_LOOK_AGAIN_S: Final = 0.005
_RETRY_FIRST_S: Final = 0.1
_RETRY_MAX_S: Final = 5.0
_log = logging.getLogger(__name__)


class _Queue:
    """The flush requests of one log."""

    __slots__ = ("lock", "log", "queued", "retries")

    def __init__(self, log: Log) -> None:
        self.log = log
        self.lock = asyncio.Lock()
        self.queued = False
        self.retries = 0
        """How many flushes in a row could not open a file."""


class Flusher:
    """Flushes logs on request. Requests for the same log share a flush."""

    def __init__(
        self,
        executor: Executor,
        concurrency: int = 4,
        on_flushed: Callable[[Log], None] = lambda _: None,
    ) -> None:
        self._executor = executor
        self._on_flushed = on_flushed
        self._slots = asyncio.Semaphore(concurrency)
        self._tasks: asyncio.TaskGroup | None = None
        self._early: list[_Queue] = []
        """Requests made while `run` is not running."""
        self._queues: dict[str, _Queue] = {}
        self.flushes = 0
        """How many flushes have ended. Under load there are far fewer flushes than requests."""
        self.retried = 0
        """How many flushes were postponed because a file could not be opened."""

    async def run(self) -> None:
        """Runs until cancelled. Flushes that are running are finished first."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            early, self._early = self._early, []
            for queue in early:
                tasks.create_task(self._flush(queue))
            try:
                await asyncio.Event().wait()
            finally:
                self._tasks = None

    def request(self, log: Log) -> None:
        """Requests a flush of the log, without waiting for it."""
        queue = self._queue(log)
        if not queue.queued:
            queue.queued = True
            if self._tasks is None:
                self._early.append(queue)
            else:
                self._tasks.create_task(self._flush(queue))

    @asynccontextmanager
    async def exclusive(self, log: Log) -> AsyncIterator[None]:
        """Holds back the log's flushes while it is truncated, swapped or closed."""
        async with self._queue(log).lock:
            yield

    def forget(self, log: Log) -> None:
        """Drops a log that was closed or deleted."""
        self._queues.pop(log.directory, None)

    def _queue(self, log: Log) -> _Queue:
        queue = self._queues.get(log.directory)
        if queue is None or queue.log is not log:
            queue = self._queues[log.directory] = _Queue(log)
        return queue

    async def _flush(self, queue: _Queue) -> None:
        log = queue.log
        # Take the lock first: a log that is being truncated must not hold a slot that another log
        # could use.
        async with queue.lock, self._slots:
            queue.queued = False
            refused: StorageError | None = None
            if log.failure is None and log.needs_flush:
                try:
                    plan = log.begin_flush()
                    refused = await self._carry_out(log, plan)
                except StorageError as error:
                    refused = error
        if refused is not None and log.failure is None:
            await self._pause(queue, refused)
            self.request(log)
            return
        queue.retries = 0
        self._on_flushed(log)

    async def _pause(self, queue: _Queue, refused: StorageError) -> None:
        """Waits before a flush is retried. Nothing was changed."""
        pause_s = min(_RETRY_MAX_S, _RETRY_FIRST_S * 2**queue.retries)
        if queue.retries == 0:
            _log.warning("%s; the flush is retried until it succeeds", refused)
        queue.retries = min(queue.retries + 1, 10)
        self.retried += 1
        # Block other attempts until then. The next attempt also serves requests that arrive in the
        # meantime.
        queue.queued = True
        try:
            await asyncio.sleep(pause_s)
        finally:
            queue.queued = False

    async def _carry_out(self, log: Log, plan: FlushPlan) -> DiskTrouble | None:
        """Runs the plan to its end even if cancelled, because a running thread cannot be stopped.

        Returns an error if the plan could not open a file and must be made and run again.
        """
        outcome: list[BaseException | None] = []

        def work() -> None:
            try:
                plan.run()
            except BaseException as error:
                outcome.append(error)
                raise
            outcome.append(None)

        cancelled: asyncio.CancelledError | None = None
        try:
            await self._executor.run(work)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception as error:  # noqa: BLE001 - `work` has stored the error if it ran
            outcome = outcome or [error]
        while not outcome:
            # Cancelled again while waiting for the thread.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(_LOOK_AGAIN_S)
        failure, refused = outcome[0], None
        if failure is None:
            log.end_flush(plan)
        elif lacks_descriptors(failure):
            refused = log.put_off_flush(plan, failure)
        else:
            log.fail_flush(plan, failure)
        self.flushes += 1
        if cancelled is not None:
            raise cancelled
        return refused
