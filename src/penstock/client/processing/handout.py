"""Records handed out one by one, and what is known of each: done, in hand, still waiting. Pure.

A loop's body says nothing when it has finished with a record; it asks for the next one, or it
leaves. So asking finishes the record in hand. Leaving does too if it is orderly; if the body raised
it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from penstock.client.model import Record, TopicPartition

K = TypeVar("K")
V = TypeVar("V")


class Handout(Generic[K, V]):
    def __init__(self) -> None:
        self._records: Sequence[Record[K, V]] = ()
        self._next = 0
        self._in_hand: Record[K, V] | None = None
        self._done: dict[TopicPartition, int] = {}

    def give(self, records: Sequence[Record[K, V]]) -> None:
        """More to hand out; only when nothing waits any more."""
        assert self._next == len(self._records)
        self._records = records
        self._next = 0

    def take(self) -> Record[K, V] | None:
        """The next record; the one before it is done."""
        self.finish()
        if self._next == len(self._records):
            return None
        record = self._in_hand = self._records[self._next]
        self._next += 1
        return record

    def finish(self) -> None:
        """The record in hand, if any, is done."""
        record = self._in_hand
        if record is not None:
            self._done[TopicPartition(record.topic, record.partition)] = record.offset + 1
            self._in_hand = None

    def done(self) -> dict[TopicPartition, int]:
        """The next offset of each partition in which something was done since `mark_committed`."""
        return dict(self._done)

    def mark_committed(self) -> None:
        self._done.clear()

    def waiting(self) -> dict[TopicPartition, int]:
        """Of each partition, the first offset that nobody had in hand."""
        return _first_offsets(self._records[self._next :])

    def undone(self) -> dict[TopicPartition, int]:
        """Of each partition, the first offset that is not done, the one in hand included."""
        in_hand = () if self._in_hand is None else (self._in_hand,)
        return _first_offsets((*in_hand, *self._records[self._next :]))

    def drop(self) -> None:
        """Forget all: these records are somebody else's now."""
        self._records = ()
        self._next = 0
        self._in_hand = None
        self._done.clear()


def next_offsets(records: Sequence[Record[K, V]]) -> dict[TopicPartition, int]:
    """Where each partition goes on after these records, which are in offset order."""
    return {record.place: record.offset + 1 for record in records}


def _first_offsets(records: Sequence[Record[K, V]]) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for record in records:
        found.setdefault(record.place, record.offset)
    return found
