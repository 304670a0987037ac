"""The transaction index of aborted transactions, and what compaction may remove of transactions.

A reader of committed records needs to know which of the transactions in the batches it gets were
aborted. That is the transaction index, Kafka's `.txnindex`: for each segment, the aborted
transactions whose markers are in it, in the order of the markers. An entry, all big-endian:

    int16  version, 0
    int64  producer id
    int64  first offset         of the transaction's first batch here
    int64  last offset          its marker's
    int64  last stable offset   when the marker was appended: open transactions begin at or above it

The last field ends a search: transactions that end later begin no earlier than that offset. The
index is derived data: replaying the log with its producers rebuilds it.

Only transactions whose marker is in the log are listed. If the index named a transaction without
its marker, readers would skip everything that its producer wrote later.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import Enum
from struct import Struct
from typing import Final, NamedTuple

from penstock.partition.producers import CompletedTransaction
from penstock.records.aborted import AbortedTransaction
from penstock.records.batch import BatchHeader

VERSION: Final = 0
_ENTRY: Final = Struct(">hqqqq")
ENTRY_SIZE: Final = _ENTRY.size


class CorruptTransactionIndex(ValueError):
    """The bytes are not valid transaction index entries; the message says why."""


class AbortedEntry(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    @classmethod
    def of(cls, completed: CompletedTransaction) -> AbortedEntry:
        return cls(
            completed.producer_id,
            completed.first_offset,
            completed.last_offset,
            completed.last_stable_offset,
        )


def encode_entries(entries: Iterable[AbortedEntry]) -> bytes:
    return b"".join(_ENTRY.pack(VERSION, *entry) for entry in entries)


def decode_entries(data: bytes) -> list[AbortedEntry]:
    if len(data) % ENTRY_SIZE:
        raise CorruptTransactionIndex(
            f"{len(data)} bytes are not a whole number of entries of {ENTRY_SIZE} bytes"
        )
    entries: list[AbortedEntry] = []
    for version, *fields in _ENTRY.iter_unpack(data):
        entry = AbortedEntry._make(fields)
        if version != VERSION:
            raise CorruptTransactionIndex(
                f"entry version {version} is unknown: only version {VERSION} can be read"
            )
        if not 0 <= entry.first_offset <= entry.last_offset:
            raise CorruptTransactionIndex(f"{entry} ends before it begins")
        if entries and entry.last_offset <= entries[-1].last_offset:
            raise CorruptTransactionIndex(f"{entry} comes after {entries[-1]}, which ends later")
        entries.append(entry)
    return entries


class TransactionIndex:
    """The aborted transactions whose markers are in one segment."""

    __slots__ = ("_entries", "_last_offsets")

    def __init__(self, entries: Iterable[AbortedEntry] = ()) -> None:
        self._entries: list[AbortedEntry] = list(entries)
        self._last_offsets = [entry.last_offset for entry in self._entries]

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> Sequence[AbortedEntry]:
        return self._entries

    def add(self, entry: AbortedEntry) -> None:
        if self._last_offsets and entry.last_offset <= self._last_offsets[-1]:
            raise ValueError(
                f"{entry} cannot follow a marker at {self._last_offsets[-1]}: add markers in the "
                "order of the log"
            )
        self._entries.append(entry)
        self._last_offsets.append(entry.last_offset)

    def truncate(self, end_offset: int) -> None:
        """Drops the transactions whose markers were truncated: they are open again."""
        keep = bisect_left(self._last_offsets, end_offset)
        del self._entries[keep:], self._last_offsets[keep:]

    def search(self, start_offset: int, end_offset: int) -> tuple[list[AbortedEntry], bool]:
        """Returns the entries that overlap [start, end), and whether the search is complete.

        It is complete when no later entry can overlap.
        """
        found: list[AbortedEntry] = []
        for entry in self._entries[bisect_left(self._last_offsets, start_offset) :]:
            if entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                return found, True
        return found, False


def aborted_entries(
    indexes: Iterable[TransactionIndex], start_offset: int, end_offset: int
) -> list[AbortedEntry]:
    """Returns the entries that overlap [start, end).

    `indexes` are those of the segment that holds `start` and of the segments after it. Only as many
    are read as needed.
    """
    entries: list[AbortedEntry] = []
    for index in indexes:
        found, is_all = index.search(start_offset, end_offset)
        entries += found
        if is_all:
            break
    return entries


def aborted_transactions(
    indexes: Iterable[TransactionIndex], start_offset: int, end_offset: int
) -> list[AbortedTransaction]:
    """Returns the aborted transactions in the form in which a fetch of [start, end) lists them."""
    return [
        AbortedTransaction(entry.producer_id, entry.first_offset)
        for entry in aborted_entries(indexes, start_offset, end_offset)
    ]


class MarkerFate(Enum):
    KEEP = "keep"
    STAMP = "stamp"
    """No longer needed: give it a delete horizon."""
    DROP = "drop"
    """Its horizon has passed."""


class CleaningTransactions:
    """Tracks a partition's decided transactions through a round of compaction.

    The cleaner passes in every batch from the log's start to the end of the round, in order. The
    answers say which data was aborted, and is removed, and which markers are no longer needed:
    those of transactions of which no batch is left, not even an empty one. (Replaying a batch opens
    its transaction, so as long as there is a batch, its marker must end the transaction.) Such a
    marker is dropped a delete horizon later, like a tombstone, because a reader may be between the
    two. The round ends at or below the last stable offset, so every transaction in it is decided.

    `kept` are the index entries of the markers that stay; no others may stay in the index.
    """

    __slots__ = ("_aborting", "_seen", "_to_come", "kept")

    def __init__(self, aborted: Iterable[AbortedEntry]) -> None:
        self._to_come = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._aborting: dict[int, AbortedEntry] = {}
        self._seen: set[int] = set()
        self.kept: list[AbortedEntry] = []

    def on_data(self, header: BatchHeader) -> bool:
        """Returns whether the batch belongs to an aborted transaction."""
        self._reach(header.last_offset)
        if not header.is_transactional:
            return False
        self._seen.add(header.producer_id)
        return header.producer_id in self._aborting

    def on_marker(self, header: BatchHeader, now_ms: int) -> MarkerFate:
        self._reach(header.last_offset)
        fate = self._fate(header, now_ms)
        self._seen.discard(header.producer_id)
        entry = self._aborting.get(header.producer_id)
        if entry is not None and entry.last_offset == header.base_offset:
            del self._aborting[header.producer_id]
            if fate is not MarkerFate.DROP:
                self.kept.append(entry)
        return fate

    def _fate(self, header: BatchHeader, now_ms: int) -> MarkerFate:
        if header.producer_id in self._seen:
            return MarkerFate.KEEP
        horizon_ms = header.delete_horizon_ms
        if horizon_ms is None:
            return MarkerFate.STAMP
        return MarkerFate.DROP if now_ms >= horizon_ms else MarkerFate.KEEP

    def _reach(self, offset: int) -> None:
        while self._to_come and self._to_come[-1].first_offset <= offset:
            entry = self._to_come.pop()
            self._aborting[entry.producer_id] = entry
