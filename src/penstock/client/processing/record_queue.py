"""Hands out records one by one and tracks which of them are processed. Pure.

A loop body does not say when it has finished a record: it asks for the next one, or it leaves the
loop. So asking for the next record marks the current one as processed. Leaving the loop normally
does so too. Leaving it by an error does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from penstock.client.model import Record
from penstock.topic_partition import TopicPartition

K = TypeVar("K")
V = TypeVar("V")


class RecordQueue(Generic[K, V]):
    def __init__(self) -> None:
        self._records: Sequence[Record[K, V]] = ()
        self._next = 0
        self._in_hand: Record[K, V] | None = None
        self._done: dict[TopicPartition, int] = {}

    def give(self, records: Sequence[Record[K, V]]) -> None:
        """Adds records to hand out. All earlier ones must have been handed out."""
        assert self._next == len(self._records)
        self._records = records
        self._next = 0

    def take(self) -> Record[K, V] | None:
        """Returns the next record, and marks the previous one as processed."""
        self.finish()
        if self._next == len(self._records):
            return None
        record = self._in_hand = self._records[self._next]
        self._next += 1
        return record

    def finish(self) -> None:
        """Marks the current record, if there is one, as processed."""
        record = self._in_hand
        if record is not None:
            self._done[TopicPartition(record.topic, record.partition)] = record.offset + 1
            self._in_hand = None

    def done(self) -> dict[TopicPartition, int]:
        """Returns the next offset of each partition that has records processed since
        `mark_committed`."""
        return dict(self._done)

    def mark_committed(self) -> None:
        self._done.clear()

    def waiting(self) -> dict[TopicPartition, int]:
        """Returns for each partition the first offset that was not handed out."""
        return _first_offsets(self._records[self._next :])

    def undone(self) -> dict[TopicPartition, int]:
        """Returns for each partition the first offset that is not processed, including the current
        record."""
        in_hand = () if self._in_hand is None else (self._in_hand,)
        return _first_offsets((*in_hand, *self._records[self._next :]))

    def drop(self) -> None:
        """Forgets all records: they belong to other members now."""
        self._records = ()
        self._next = 0
        self._in_hand = None
        self._done.clear()


def next_offsets(records: Sequence[Record[K, V]]) -> dict[TopicPartition, int]:
    """Returns the offset after the last of these records for each partition. They are in offset
    order."""
    return {record.topic_partition: record.offset + 1 for record in records}


def _first_offsets(records: Sequence[Record[K, V]]) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for record in records:
        found.setdefault(record.topic_partition, record.offset)
    return found
