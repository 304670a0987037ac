"""The sync versions of the loops in `processing.delivery`, with the same guarantees.

with consumer.at_least_once() as records:
    for record in records:
        store(record)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from penstock.client.environment import ClientEnv
from penstock.client.errors import ClientError, Closed, CommitFailed, OptionError
from penstock.client.model import Record
from penstock.client.options import ConsumerOptions
from penstock.client.processing.record_queue import RecordQueue, next_offsets
from penstock.topic_partition import TopicPartition

K = TypeVar("K")
V = TypeVar("V")

_log = logging.getLogger("penstock.client")

_POLL_MS = 500


class SyncPolled(Protocol[K, V]):
    """What loops over records need from a sync consumer."""

    options: ConsumerOptions
    env: ClientEnv

    def poll(self, timeout_ms: int = 500, max_records: int | None = None) -> list[Record[K, V]]: ...

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None: ...

    def assignment(self) -> frozenset[TopicPartition]: ...

    def seek(self, topic_partition: TopicPartition, offset: int) -> None: ...

    def hold_auto_commit(self) -> None: ...

    def release_auto_commit(self) -> None: ...


class _Loop(Generic[K, V]):
    def __init__(
        self,
        consumer: SyncPolled[K, V],
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

    def __enter__(self) -> Self:
        return self._hold()

    def __iter__(self) -> Self:
        return self._hold()

    def _hold(self) -> Self:
        if not self._held:
            self._held = True
            self._consumer.hold_auto_commit()
        return self

    def _release(self) -> None:
        self._held = False
        try:
            self._consumer.release_auto_commit()
        except Closed:
            return  # A closed consumer commits nothing anyway.

    def _poll(self) -> list[Record[K, V]]:
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
                records = self._consumer.poll(wait_ms, self._max_records)
            except Closed:
                return []
            if records:
                return records

    def _set_back(self, topic_partitions: Mapping[TopicPartition, int]) -> None:
        if not topic_partitions:
            return
        try:
            assigned = self._consumer.assignment()
            for topic_partition, offset in topic_partitions.items():
                if topic_partition in assigned:
                    self._consumer.seek(topic_partition, offset)
        except Closed:
            return  # A closed consumer has no position.


class AtLeastOnce(_Loop[K, V]):
    """A loop that commits each record after its body has processed it.

    A record counts as processed when the loop asks for the next one, or when the `with` block is
    left without an error. After a crash or an error, records that were not committed are returned
    again.
    """

    def __init__(
        self,
        consumer: SyncPolled[K, V],
        *,
        max_records: int | None = None,
        idle_timeout_ms: int | None = None,
        commit_interval_ms: int = 1_000,
    ) -> None:
        super().__init__(consumer, max_records=max_records, idle_timeout_ms=idle_timeout_ms)
        self._commit_interval_s = commit_interval_ms / 1000
        self._clock = consumer.env.clock
        self._commit_at = self._clock.monotonic() + self._commit_interval_s

    def __next__(self) -> Record[K, V]:
        record = self._queue.take()
        if self._clock.monotonic() >= self._commit_at and not self._commit():
            record = None
        while record is None:
            self._commit()
            records = self._poll()
            if not records:
                raise StopIteration
            self._queue.give(records)
            record = self._queue.take()
        return record

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._queue.finish()
        try:
            self._commit()
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
            self._release()

    def _commit(self) -> bool:
        """Commits finished records. Returns False if the group has rebalanced: the records held
        here may then belong to other members and are dropped."""
        self._commit_at = self._clock.monotonic() + self._commit_interval_s
        offsets = self._queue.done()
        if not offsets:
            return True
        try:
            self._consumer.commit(offsets)
        except CommitFailed as error:
            _log.warning("dropping the polled records: cannot commit their offsets: %s", error)
            self._queue.drop()
            return False
        self._queue.mark_committed()
        return True


class AtMostOnce(_Loop[K, V]):
    """A loop that commits each record before its body receives it.

    The records of one poll are committed together. After a crash, those that the body has not
    received are lost: at most `max_records`.
    """

    def __init__(
        self,
        consumer: SyncPolled[K, V],
        *,
        max_records: int | None = None,
        idle_timeout_ms: int | None = None,
    ) -> None:
        super().__init__(consumer, max_records=max_records, idle_timeout_ms=idle_timeout_ms)

    def __next__(self) -> Record[K, V]:
        record = self._queue.take()
        while record is None:
            records = self._poll()
            if not records:
                raise StopIteration
            if self._commit(records):
                self._queue.give(records)
                record = self._queue.take()
        return record

    def __exit__(
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
                    self._consumer.commit(ours)
        except ClientError as refused:
            # At-most-once allows this: nobody will process these records.
            _log.warning(
                "lost records that were committed but not delivered: cannot move the committed "
                "offsets back: %s",
                refused,
            )
        finally:
            self._release()

    def _commit(self, records: list[Record[K, V]]) -> bool:
        try:
            self._consumer.commit(next_offsets(records))
        except CommitFailed as error:
            _log.warning("dropping the polled records: cannot commit their offsets: %s", error)
            return False
        except BaseException:
            # The caller has not received these records, so they may be polled and committed again.
            self._set_back({record.topic_partition: record.offset for record in reversed(records)})
            raise
        return True
