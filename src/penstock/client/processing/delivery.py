"""Loops over records that are named by their guarantee: `at_least_once` and `at_most_once`.

    async with consumer.at_least_once() as records:
        async for record in records:
            await store(record)

*At least once.* A record is committed after the body has processed it. It counts as processed when
the loop asks for the next record, or when the `with` block is left without an error. Processed
records are committed `commit_interval_ms` after the last commit, before each wait for more records,
and when the block is left. After a crash, or when the body raised an error, everything that was not
committed is returned again: the current record, and those processed since the last commit.

*At most once.* A record is committed before the body receives it. The records of one poll are
committed together and returned once the commit is acknowledged. After a crash, the records that had
not yet been returned are lost: at most `max_records`. Leaving the block, normally or by an error,
reverts the commit of records that the body has not received.

Neither loop stops on a rebalance. When the group has given partitions to other members, their
records are dropped here, because the other members will process them. Both loops also work without
`async with`, but then the outcome of the last record is unknown, and it counts as not processed.
Auto-commit is off while a loop is used. With `idle_timeout_ms` the loop ends when no record arrived
for that long.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Generic, Self, TypeVar

from penstock.client.errors import ClientError, Closed, CommitFailed, OptionError
from penstock.client.model import Record
from penstock.client.processing.contracts import PolledConsumer
from penstock.client.processing.record_queue import RecordQueue, next_offsets
from penstock.topic_partition import TopicPartition

K = TypeVar("K")
V = TypeVar("V")

_log = logging.getLogger("penstock.client")

_POLL_MS = 500


class _Loop(Generic[K, V]):
    """Common parts of the two loops: polling, and moving positions back at the end."""

    def __init__(
        self,
        consumer: PolledConsumer[K, V],
        *,
        max_records: int | None,
        idle_timeout_ms: int | None,
    ) -> None:
        if consumer.options.group_id is None:
            raise OptionError(
                f"{type(self).__name__} commits offsets: give the consumer a group_id"
            )
        self._consumer = consumer
        self._max_records = max_records
        self._idle_timeout_ms = idle_timeout_ms
        self._queue: RecordQueue[K, V] = RecordQueue()
        self._held = False

    async def __aenter__(self) -> Self:
        self._hold()
        return self

    def _hold(self) -> None:
        if not self._held:
            self._held = True
            self._consumer.hold_auto_commit()

    def __aiter__(self) -> Self:
        self._hold()
        return self

    async def _poll(self) -> list[Record[K, V]]:
        """Returns the next records, or an empty list when the idle timeout is over."""
        clock = self._consumer.env.clock
        began = clock.monotonic()
        while True:
            wait_ms = _POLL_MS
            if self._idle_timeout_ms is not None:
                passed_ms = int((clock.monotonic() - began) * 1000)
                if passed_ms >= self._idle_timeout_ms:
                    return []
                wait_ms = min(_POLL_MS, self._idle_timeout_ms - passed_ms)
            try:
                records = await self._consumer.poll(wait_ms, self._max_records)
            except Closed:
                return []
            if records:
                return records

    def _set_back(self, topic_partitions: dict[TopicPartition, int]) -> None:
        assigned = self._consumer.assignment()
        for topic_partition, offset in topic_partitions.items():
            if topic_partition in assigned:
                self._consumer.seek(topic_partition, offset)


class AtLeastOnce(_Loop[K, V]):
    """A loop that commits each record after its body has processed it. See the module."""

    def __init__(
        self,
        consumer: PolledConsumer[K, V],
        *,
        max_records: int | None = None,
        idle_timeout_ms: int | None = None,
        commit_interval_ms: int = 1_000,
    ) -> None:
        super().__init__(consumer, max_records=max_records, idle_timeout_ms=idle_timeout_ms)
        self._commit_interval_s = commit_interval_ms / 1000
        self._clock = consumer.env.clock
        self._commit_at = self._clock.monotonic() + self._commit_interval_s

    async def __anext__(self) -> Record[K, V]:
        record = self._queue.take()
        if self._clock.monotonic() >= self._commit_at and not await self._commit():
            record = None
        while record is None:
            await self._commit()
            records = await self._poll()
            if not records:
                raise StopAsyncIteration
            self._queue.give(records)
            record = self._queue.take()
        return record

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._queue.finish()
        try:
            await self._commit()
        except ClientError:
            # The error of the loop is more informative than the failure of its last commit.
            if error is None:
                raise
            _log.warning(
                "could not commit the last records; they will be delivered again", exc_info=True
            )
        finally:
            self._set_back(self._queue.undone())
            self._queue.drop()
            self._held = False
            self._consumer.release_auto_commit()

    async def _commit(self) -> bool:
        """Commits finished records. Returns False if the group has rebalanced: the records held
        here may then belong to other members and are dropped."""
        self._commit_at = self._clock.monotonic() + self._commit_interval_s
        offsets = self._queue.done()
        if not offsets:
            return True
        try:
            await self._consumer.commit(offsets)
        except CommitFailed as error:
            _log.warning("dropping the polled records: cannot commit their offsets: %s", error)
            self._queue.drop()
            return False
        self._queue.mark_committed()
        return True


class AtMostOnce(_Loop[K, V]):
    """A loop that commits each record before its body receives it. See the module."""

    def __init__(
        self,
        consumer: PolledConsumer[K, V],
        *,
        max_records: int | None = None,
        idle_timeout_ms: int | None = None,
    ) -> None:
        super().__init__(consumer, max_records=max_records, idle_timeout_ms=idle_timeout_ms)

    async def __anext__(self) -> Record[K, V]:
        record = self._queue.take()
        while record is None:
            records = await self._poll()
            if not records:
                raise StopAsyncIteration
            if await self._commit(records):
                self._queue.give(records)
                record = self._queue.take()
        return record

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        waiting = self._queue.waiting()
        self._queue.drop()
        try:
            if waiting:
                assigned = self._consumer.assignment()
                ours = {
                    topic_partition: offset
                    for topic_partition, offset in waiting.items()
                    if topic_partition in assigned
                }
                if ours:
                    self._set_back(ours)
                    await self._consumer.commit(ours)
        except ClientError as refused:
            # At-most-once allows this: nobody will process these records.
            _log.warning(
                "lost records that were committed but not delivered: cannot move the committed "
                "offsets back: %s",
                refused,
            )
        finally:
            self._held = False
            self._consumer.release_auto_commit()

    async def _commit(self, records: list[Record[K, V]]) -> bool:
        try:
            await self._consumer.commit(next_offsets(records))
        except CommitFailed as error:
            _log.warning("dropping the polled records: cannot commit their offsets: %s", error)
            return False
        except BaseException:
            # The caller has not received these records, so they may be polled and committed again.
            first = {record.topic_partition: record.offset for record in reversed(records)}
            self._set_back(first)
            raise
        return True
