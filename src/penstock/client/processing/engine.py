"""Runs `consumer.run`: calls a handler for every record, concurrently where the order allows it.

    poll -> lanes -> workers -> tracker -> commit

One coroutine polls and commits. `concurrency` workers take lanes (`lanes.py`) and call the handler
(`handler_calls.py`). Finished records go to the tracker (`tracker.py`), and only offsets that the
tracker calls safe are ever committed. So whatever happens, even a crash of the process, every
record is handled at least once. A record is handled again only if it, or an earlier record of its
partition, was not finished and committed.

*Limits.* At most `in_progress_max` records are held. A partition that holds more than its share is
paused until half of them have finished, so that one slow partition does not starve the others.
Polling continues meanwhile, because it keeps this consumer in its group.

*Rebalance.* Partitions are revoked inside `poll`. Records that are being handled get up to
`drain_timeout_ms` to finish, and so do unfinished records before them, so that the next owner does
not handle them a second time. All other records are dropped, the safe offsets are committed, and
the partitions are given up. A handler that is still running then is cancelled if it is a coroutine.
A thread cannot be cancelled, so its result is ignored; if its partition is assigned again, the
records that follow in its lane wait for it. Lost partitions already have other owners: nothing is
waited for and nothing is committed.

*Failure.* A failed attempt is repeated after a pause that doubles and has jitter; its lane waits.
After `retries` failed repetitions the record goes to the dead-letter topic, and counts as done when
that is acknowledged. Without a dead-letter topic the run ends with the handler's own error.
`on_error` may decide otherwise for each attempt.

*End.* In every case the safe offsets are committed and the consumer's positions are moved back to
the first unfinished record of each partition. Polling or running again therefore misses no record.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Generic, TypeVar

from penstock.client.consuming.record_decoder import DeserializationFailed
from penstock.client.errors import ClientError, CommitFailed, OptionError
from penstock.client.model import Record
from penstock.client.processing.contracts import ErrorAction, Handler, RunConsumer, RunSummary
from penstock.client.processing.dead_letters import DeadLetters
from penstock.client.processing.failure_policy import FailurePolicy
from penstock.client.processing.handler_calls import HandlerCalls, Job, Piece, is_async
from penstock.client.processing.lanes import Lane, Lanes
from penstock.client.processing.run_options import RunOptions
from penstock.client.processing.tracker import Tracker, Window
from penstock.topic_partition import TopicPartition

K = TypeVar("K")
V = TypeVar("V")

_log = logging.getLogger("penstock.client")

_POLL_MS = 500
_LANE_RECORDS_MAX = 64
"""How many records of one lane a worker takes at a time."""
_LOOK_EVERY = 32
"""Workers check which partitions can be resumed after this many records, and whenever they are
idle."""
_CANCELLED_COMMIT_S = 5.0
"""A cancelled run still commits what is finished. This limits how long that may take."""


class Run(Generic[K, V]):
    """One run of one consumer. Use it once."""

    def __init__(
        self,
        consumer: RunConsumer[K, V],
        handler: Handler[K, V],
        options: RunOptions,
        letters: DeadLetters | None,
        executor: Executor | None = None,
    ) -> None:
        """`executor` runs a handler that is a plain function. The default is a new thread pool."""
        self._consumer = consumer
        self._options = options
        self._letters = letters
        self._policy = FailurePolicy(options, has_dead_letters=letters is not None)
        self._clock = consumer.env.clock
        self._tracker = Tracker()
        self._lanes: Lanes[Job[K, V]] = Lanes()
        self._own_pool: ThreadPoolExecutor | None = None
        self._is_async = is_async(handler)
        if self._is_async:
            executor = None
        elif executor is None:
            executor = self._own_pool = ThreadPoolExecutor(
                options.concurrency, thread_name_prefix="penstock-run"
            )
        self._calls: HandlerCalls[K, V] = HandlerCalls(handler, self._finish, self._clock, executor)
        self._idle: deque[asyncio.Future[None]] = deque()
        self._running: dict[asyncio.Task[None], Piece[K, V]] = {}
        self._backing_off: set[asyncio.Task[None]] = set()
        self._abandoned: set[asyncio.Task[None]] = set()
        self._lane_ended = asyncio.Event()
        self._paused: set[TopicPartition] = set()
        self._stopping = False
        self._failure: Exception | None = None
        self._ended = 0
        self._processed = self._retried = self._dead_lettered = self._skipped = 0
        self._committed: dict[TopicPartition, int] = {}
        self._commit_at = 0.0

    async def run(self) -> RunSummary:
        self._consumer.hold_auto_commit()
        self._consumer.add_listener(self)
        try:
            await self._run()
        finally:
            self._consumer.remove_listener(self)
            self._set_back()
            self._consumer.release_auto_commit()
            if self._own_pool is not None:
                self._own_pool.shutdown(wait=False, cancel_futures=True)
        if self._failure is not None:
            raise self._failure
        counts = self._processed, self._retried, self._dead_lettered, self._skipped
        return RunSummary(*counts, dict(self._committed))

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            helpers = [tasks.create_task(self._work()) for _ in range(self._options.concurrency)]
            if self._options.stop is not None:
                helpers.append(tasks.create_task(self._watch(self._options.stop)))
            try:
                await self._drive()
                await self._release(self._tracker.windows(), commit=False)
                await self._commit(final=True)
            except asyncio.CancelledError:
                self._abandon(self._tracker.windows())
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CANCELLED_COMMIT_S):
                        await self._commit()
                raise
            except Exception as error:  # noqa: BLE001 - `run` raises it after cleaning up
                self._failure = self._failure or error
                self._abandon(self._tracker.windows())
            finally:
                for helper in helpers:
                    helper.cancel()

    async def _watch(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._stop()

    def _stop(self) -> None:
        self._stopping = True
        self._consumer.wakeup()

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._stop()

    # -- polling --------------------------------------------------------------------------------

    async def _drive(self) -> None:
        self._plan_commit()
        while not self._stopping:
            share = self._balance()
            room = self._options.in_progress_max - self._tracker.held
            until_commit_ms = int((self._commit_at - self._clock.monotonic()) * 1000)
            try:
                records = await self._consumer.poll(
                    min(_POLL_MS, max(0, until_commit_ms)),
                    min(self._consumer.options.max_poll_records, share, max(1, room)),
                )
            except DeserializationFailed as error:
                await self._refuse(error)
                continue
            self._feed(records)
            if self._clock.monotonic() >= self._commit_at:
                await self._commit()

    def _feed(self, records: Iterable[Record[K, V]]) -> None:
        tracker, lanes = self._tracker, self._lanes
        for record in records:
            topic_partition = record.topic_partition
            before = tracker.window(topic_partition)
            window = tracker.start(topic_partition, record.offset)
            if before is not None and window is not before:
                lanes.drop(topic_partition)
            lanes.put(self._lane(topic_partition, record), Job(record, window))
        self._wake()

    def _lane(self, topic_partition: TopicPartition, record: Record[K, V]) -> Lane:
        ordering = self._options.ordering
        if ordering == "partition":
            return topic_partition, None
        if ordering == "none" or record.key is None:
            return topic_partition, (record.offset,)
        try:
            hash(record.key)
        except TypeError:
            raise OptionError(
                f'ordering="key" needs hashable keys, and {type(record.key).__name__} '
                "is not hashable: deserialize keys to str, bytes, numbers or frozen dataclasses"
            ) from None
        return topic_partition, record.key

    def _balance(self) -> int:
        """Pauses partitions that hold their share of records, and returns the size of a share."""
        assigned = self._consumer.assignment()
        share = self._share(len(assigned))
        full = self._tracker.held >= self._options.in_progress_max
        for topic_partition in assigned - self._consumer.paused():
            window = self._tracker.window(topic_partition)
            if full or (window is not None and window.held >= share):
                self._paused.add(topic_partition)
                self._consumer.pause(topic_partition)
        return share

    def _share(self, partitions: int) -> int:
        return max(1, self._options.in_progress_max // max(1, partitions))

    def _unpause(self) -> None:
        """Resumes partitions that hold few records again, if they were paused here."""
        assigned = self._consumer.assignment()
        half = self._share(len(assigned)) // 2
        if self._tracker.held >= self._options.in_progress_max:
            return
        for topic_partition in list(self._paused):
            window = self._tracker.window(topic_partition)
            if window is None or window.held <= half:
                self._paused.discard(topic_partition)
                if topic_partition in assigned:
                    self._consumer.resume(topic_partition)

    # -- handling -------------------------------------------------------------------------------

    def _wake(self) -> None:
        wanted = self._lanes.ready
        while wanted and self._idle:
            waiting = self._idle.popleft()
            if not waiting.done():
                waiting.set_result(None)
                wanted -= 1

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while True:
            taken = self._lanes.take(_LANE_RECORDS_MAX) if self._failure is None else None
            if taken is None:
                if self._paused:
                    self._unpause()
                waiting = asyncio.get_running_loop().create_future()
                self._idle.append(waiting)
                await waiting
                continue
            lane, jobs = taken
            piece = self._running[task] = Piece(jobs)
            try:
                await self._handle(piece)
            except asyncio.CancelledError:
                if task not in self._abandoned or task.uncancel() > 0:
                    raise
            finally:
                self._abandoned.discard(task)
                del self._running[task]
                self._lanes.give_back(lane)
                self._lane_ended.set()
            self._wake()

    async def _handle(self, piece: Piece[K, V]) -> None:
        while piece.done < len(piece.jobs):
            before = piece.done
            error = await self._calls.call(piece)
            if error is not None:
                if not await self._settle(piece.jobs[piece.done], error):
                    return
                piece.done += 1
                piece.finished = piece.done
            elif piece.done == before:
                return  # The remaining records are no longer needed.

    def _finish(self, job: Job[K, V]) -> None:
        self._processed += 1
        self._done(job)

    def _done(self, job: Job[K, V]) -> None:
        job.window.finish(job.record.offset)
        self._ended += 1
        if self._paused and not self._ended % _LOOK_EVERY:
            self._unpause()

    async def _settle(self, job: Job[K, V], error: Exception | None) -> bool:
        """Retries the record, gives it up, or fails the run. Returns False if the lane must not
        continue."""
        attempts = 1
        while error is not None:
            if not job.window.wants(job.record.offset):
                return False
            action = await self._decide(job.record, error, attempts)
            if action == "retry":
                await self._back_off(attempts)
                self._retried += 1
                again = Piece((job,))
                error = await self._calls.call(again)
                if not again.done and error is None:
                    return False
                attempts += 1
                continue
            if action == "fail":
                error.add_note(_where(job.record, attempts))
                self._fail(error)
                return False
            return await self._give_up(job, error, attempts, action)
        return True

    async def _give_up(
        self, job: Job[K, V], error: Exception, attempts: int, action: ErrorAction
    ) -> bool:
        if action == "skip":
            self._skipped += 1
        else:
            assert self._letters is not None
            try:
                await self._letters.bury(job.record, error, attempts)
            except Exception as refused:  # noqa: BLE001 - it ends the run
                refused.add_note(_where(job.record, attempts))
                refused.__cause__ = error
                self._fail(refused)
                return False
            self._dead_lettered += 1
        self._done(job)
        return True

    async def _decide(
        self, record: Record[Any, Any], error: Exception, attempts: int
    ) -> ErrorAction:
        try:
            return await self._policy.decide(record, error, attempts)
        except Exception as raised:  # noqa: BLE001 - it ends the run, as it could not decide
            raised.__cause__ = error
            self._fail(raised)
            return "fail"

    async def _back_off(self, attempts: int) -> None:
        pause_s = self._policy.pause_s(attempts, self._consumer.env.random)
        task = asyncio.current_task()
        assert task is not None
        self._backing_off.add(task)
        try:
            await self._clock.sleep(pause_s)
        finally:
            self._backing_off.discard(task)

    async def _refuse(self, error: DeserializationFailed) -> None:
        """Handles a record that cannot be deserialized, so that no handler can receive it."""
        record = error.record
        action = await self._decide(record, error, attempts=self._options.retries + 1)
        if action in ("fail", "retry"):
            raise error
        window = self._tracker.start(record.topic_partition, record.offset)
        if action == "dead_letter":
            assert self._letters is not None
            await self._letters.bury_raw(record, error, attempts=1)
            self._dead_lettered += 1
        else:
            self._skipped += 1
        window.finish(record.offset)
        self._consumer.seek(record.topic_partition, record.offset + 1)

    # -- committing -----------------------------------------------------------------------------

    def _plan_commit(self) -> None:
        self._commit_at = self._clock.monotonic() + self._options.commit_interval_ms / 1000

    async def _commit(
        self, topic_partitions: Collection[TopicPartition] | None = None, *, final: bool = False
    ) -> None:
        """Commits the safe offsets that have changed.

        A failed commit is repeated at the next interval. A final commit raises its error, unless
        the group has rebalanced: then other members have those records anyway.
        """
        self._plan_commit()
        self._calls.collect()
        offsets = self._tracker.committable(topic_partitions)
        if not offsets or self._consumer.options.group_id is None:
            return
        try:
            await self._consumer.commit(offsets)
        except CommitFailed as error:
            _log.warning("cannot commit the offsets %s: %s", _shown(offsets), error)
        except ClientError as error:
            if final:
                raise
            _log.warning("cannot commit the offsets %s, retrying: %s", _shown(offsets), error)
        else:
            self._tracker.mark_committed(offsets)
            self._committed.update(offsets)

    # -- revoked partitions ---------------------------------------------------------------------

    async def on_revoked(self, topic_partitions: Collection[TopicPartition]) -> None:
        await self._release(self._tracker.windows(topic_partitions), commit=True)
        self._forget(topic_partitions)

    def on_lost(self, topic_partitions: Collection[TopicPartition]) -> None:
        self._abandon(self._tracker.windows(topic_partitions))
        self._forget(topic_partitions)

    def _forget(self, topic_partitions: Collection[TopicPartition]) -> None:
        self._tracker.close(topic_partitions)
        self._paused.difference_update(topic_partitions)

    async def _release(self, windows: list[Window], *, commit: bool) -> None:
        """Waits, up to the timeout, for the records being handled and the unfinished ones before
        them."""
        for window in windows:
            self._close(window)
        self._wake()
        try:
            async with asyncio.timeout(self._options.drain_timeout_ms / 1000):
                while self._is_busy_with(windows):
                    self._lane_ended.clear()
                    await self._lane_ended.wait()
        except TimeoutError:
            _log.warning(
                "handlers of records of %s did not finish within drain_timeout_ms (%d); the "
                "records will be delivered again",
                ", ".join(sorted(str(window.topic_partition) for window in windows)),
                self._options.drain_timeout_ms,
            )
            self._abandon(windows)
        if commit:
            await self._commit([window.topic_partition for window in windows])

    def _is_busy_with(self, windows: list[Window]) -> bool:
        if any(piece.jobs[0].window in windows for piece in self._running.values()):
            return True
        return self._failure is None and any(
            self._lanes.holds(each.topic_partition) for each in windows
        )

    def _close(self, window: Window) -> None:
        """Drops the records that no longer need to be handled.

        That is every record after one that is failing: they would be handled before it.
        """
        busy = [
            (task, piece) for task, piece in self._running.items() if piece.jobs[0].window is window
        ]
        failing = [task for task, _ in busy if task in self._backing_off]
        if failing or self._failure is not None:
            window.close()
            self._cancel(failing)
        else:
            in_hand = [piece.in_hand for _, piece in busy]
            window.close_gently(offset for offset in in_hand if offset is not None)
        self._lanes.drop(window.topic_partition, lambda job: job.window.wants(job.record.offset))

    def _abandon(self, windows: list[Window]) -> None:
        """Stops waiting for the records of these windows, and drops them."""
        for window in windows:
            window.close()
            self._lanes.drop(window.topic_partition)
        tasks = [task for task, piece in self._running.items() if piece.jobs[0].window in windows]
        # A thread cannot be stopped, and its lane must not continue concurrently with it.
        self._cancel([task for task in tasks if self._is_async or task in self._backing_off])

    def _cancel(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        for task in tasks:
            if task not in self._abandoned:
                self._abandoned.add(task)
                task.cancel()

    def _set_back(self) -> None:
        """Moves the positions back to the first unfinished records, and resumes what was paused
        here."""
        assigned = self._consumer.assignment()
        for window in self._tracker.windows():
            if window.held and window.topic_partition in assigned:
                self._consumer.seek(window.topic_partition, window.safe)
        self._consumer.resume(*(self._paused & assigned))


def _where(record: Record[Any, Any], attempts: int) -> str:
    times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    return f"while handling offset {record.offset} of {record.topic_partition}, after {times}"


def _shown(offsets: dict[TopicPartition, int]) -> str:
    return ", ".join(
        f"{topic_partition}:{offset}" for topic_partition, offset in sorted(offsets.items())
    )
