"""Verifies one segment: every batch, and both indexes against the batches.

One pass in bounded memory is enough. The entries of both indexes increase in the same order as the
batches, so each entry is compared with its batch while the walk passes it. An entry that the walk
has passed without finding its batch is wrong.

One wrong entry makes an index useless, because it sends a read to the wrong position. How severe
that is depends on whether the next start will trust the index (`indexes_trusted`) or rebuild it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from penstock.ports import Disk
from penstock.records.batch import NO_TIMESTAMP, BatchHeader, CorruptBatch, TimestampType
from penstock.records.record import read_control, read_records
from penstock.storage.files import INDEX, LOG, TIME_INDEX, TRANSACTION_INDEX, offset_name
from penstock.storage.findings import RESTORE, Findings, Severity
from penstock.storage.inspect import (
    BadRange,
    BatchAt,
    IndexEntry,
    OffsetIndexContent,
    TimeEntry,
    TimeIndexContent,
    read_offset_index,
    read_time_index,
    walk_batches,
)
from penstock.storage.verify_producers import TransactionsVerifier

_Entry = TypeVar("_Entry", IndexEntry, TimeEntry)

PROGRESS_BYTES: Final = 4 << 20
_REBUILT: Final = "the next start rebuilds it"
_REMOVE: Final = (
    "stop the broker, remove the segment's .index and .timeindex and start the broker: "
    "it rebuilds them from the batches"
)


@dataclass(slots=True)
class EpochRun:
    """Consecutive batches that one leader epoch wrote."""

    epoch: int
    first_offset: int
    last_base: int
    """Base offset of the last batch."""
    end_offset: int


@dataclass(slots=True)
class SegmentScan:
    """What the verification of one segment found."""

    base_offset: int
    path: str
    size: int = 0
    batches: int = 0
    records: int = 0
    end_offset: int = 0
    first_timestamp: int | None = None
    max_timestamp: int = NO_TIMESTAMP
    max_timestamp_offset: int = -1
    gap_offsets: int = 0
    """Offsets inside the segment that no batch covers, as left by compaction."""
    codecs: Counter[str] = field(default_factory=Counter)
    epochs: list[EpochRun] = field(default_factory=list)
    bad: list[BadRange] = field(default_factory=list)
    skipped: tuple[int, int] | None = None
    """The position of the first batch that leaves out a synced offset, and that offset."""


class SegmentVerifier:
    """Verifies one segment; `run` returns what it holds and adds to the findings."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        findings: Findings,
        *,
        offset_end: int,
        deep: bool,
        indexes_trusted: bool,
        advance: Callable[[int], None],
        skips_synced: Callable[[int, int], bool] = lambda _expected, _base_offset: False,
        transactions: TransactionsVerifier | None = None,
        transactions_believed: bool = False,
    ) -> None:
        self._disk = disk
        self._stem = f"{directory}/{offset_name(base_offset, '')}"
        self._findings = findings
        self._offset_end = offset_end
        self._deep = deep
        self._indexes_trusted = indexes_trusted
        self._index_severity = Severity.ERROR if indexes_trusted else Severity.WARNING
        self._advice = _REMOVE if indexes_trusted else _REBUILT
        self._advance = advance
        self._skips_synced = skips_synced
        self._transactions = transactions
        self._transactions_believed = transactions_believed
        self._scan = SegmentScan(base_offset, self._stem + LOG, end_offset=base_offset)
        self._index: list[IndexEntry] = []
        self._times: list[TimeEntry] = []
        self._next_index = self._next_time = 0

    def run(self) -> SegmentScan:
        """Reads the whole segment. Raises `OSError` if a file cannot be read."""
        scan = self._scan
        # Read the indexes first: if a broker is appending, the data may only be ahead of them.
        offset_index, time_index = self._load_indexes()
        file = self._disk.open(scan.path)
        try:
            scan.size = file.size()
            reported = 0
            for item in walk_batches(
                file, scan.size, offset_min=scan.base_offset, offset_end=self._offset_end
            ):
                if isinstance(item, BatchAt):
                    self._batch(item)
                    position = item.position + item.header.size
                else:
                    self._bad(item)
                    position = item.end
                if position - reported >= PROGRESS_BYTES:
                    self._advance(position - reported)
                    reported = position
            self._advance(scan.size - reported)
        finally:
            file.close()
        self._finish_indexes(offset_index, time_index)
        if self._transactions is not None:
            self._transactions.end_segment(
                scan.base_offset,
                self._stem + TRANSACTION_INDEX,
                is_bad=bool(scan.bad),
                is_believed=self._transactions_believed,
            )
        return scan

    # The walk

    def _batch(self, item: BatchAt) -> None:
        scan, header = self._scan, item.header
        if not scan.bad or scan.bad[-1].end != item.position:
            self._note_gap(item.position, header.base_offset)
        scan.batches += 1
        scan.records += header.record_count
        scan.codecs[header.codec.name.lower()] += 1
        scan.end_offset = header.next_offset
        self._note_epoch(header)
        self._check_index(item.position, header)
        self._check_times(header)
        self._note_times(header)
        if header.is_transactional and self._transactions is not None:
            self._transactions.on_batch(header, item.data)
        if self._deep:
            self._check_records(item)

    def _note_gap(self, position: int, base_offset: int) -> None:
        scan, expected = self._scan, self._scan.end_offset
        scan.gap_offsets += base_offset - expected
        if self._skips_synced(expected, base_offset):
            scan.skipped = scan.skipped or (position, expected)
            self._findings.error(
                "damage",
                scan.path,
                f"the batch begins at offset {base_offset}, but offset {expected} was synced "
                f"before and is missing; {RESTORE}",
                position,
            )

    def _note_epoch(self, header: BatchHeader) -> None:
        runs = self._scan.epochs
        if runs and runs[-1].epoch == header.leader_epoch:
            runs[-1].last_base, runs[-1].end_offset = header.base_offset, header.next_offset
        else:
            base = header.base_offset
            runs.append(EpochRun(header.leader_epoch, base, base, header.next_offset))

    def _note_times(self, header: BatchHeader) -> None:
        scan = self._scan
        # With a delete horizon, the base timestamp is the horizon and not the timestamp of a
        # record.
        begin = header.base_timestamp if header.delete_horizon_ms is None else header.max_timestamp
        if header.timestamp_type == TimestampType.LOG_APPEND_TIME:
            begin = header.max_timestamp
        if begin > NO_TIMESTAMP and (scan.first_timestamp is None or begin < scan.first_timestamp):
            scan.first_timestamp = begin
        if header.max_timestamp > scan.max_timestamp:
            scan.max_timestamp = header.max_timestamp
            scan.max_timestamp_offset = header.last_offset

    def _bad(self, bad: BadRange) -> None:
        self._scan.bad.append(bad)
        while self._next_index < len(self._index) and (
            self._index[self._next_index].position < bad.end
        ):
            self._next_index += 1

    def _check_records(self, item: BatchAt) -> None:
        header = item.header
        try:
            records = read_records(item.data, header)
            if header.is_control:
                for record in records:
                    read_control(record)
        except CorruptBatch as error:
            self._findings.error(
                "bad-records",
                self._scan.path,
                f"offsets {header.base_offset} to {header.last_offset} cannot be decoded, "
                f"although the CRC is correct: {error}; their producer wrote them like this, and "
                "consumers must seek past them",
                item.position,
            )
            return
        newest = max((record.timestamp for record in records), default=header.max_timestamp)
        if newest > header.max_timestamp:
            self._findings.warning(
                "late-record",
                self._scan.path,
                f"a record of offsets {header.base_offset} to {header.last_offset} has timestamp "
                f"{newest}, later than the maximum of its batch ({header.max_timestamp}): a "
                "search by time may miss it",
                item.position,
            )

    # Indexes

    def _load_indexes(self) -> tuple[OffsetIndexContent | None, TimeIndexContent | None]:
        base = self._scan.base_offset
        offset_index = read_offset_index(self._disk, self._stem + INDEX, base)
        time_index = read_time_index(self._disk, self._stem + TIME_INDEX, base)
        if offset_index is not None:
            self._shape(INDEX, offset_index)
            self._index = _rising(offset_index.entries)
            if len(self._index) < len(offset_index.entries):
                self._complain(INDEX, f"entry {len(self._index)} is not above the entry before it")
        if time_index is not None:
            self._shape(TIME_INDEX, time_index)
            self._times = _rising(time_index.entries)
            if len(self._times) < len(time_index.entries):
                self._complain(
                    TIME_INDEX, f"entry {len(self._times)} is not above the entry before it"
                )
        return offset_index, time_index

    def _shape(self, suffix: str, content: OffsetIndexContent | TimeIndexContent) -> None:
        if content.ragged_bytes:
            self._findings.warning(
                "bad-index",
                self._stem + suffix,
                f"{content.ragged_bytes} bytes are left after the last entry; {_REBUILT}",
            )
        if content.padding_entries:
            self._findings.info(
                "index-padding",
                self._stem + suffix,
                f"it ends with {content.padding_entries} entries of zeros: preallocated, as in "
                "Kafka, or left by a crash",
            )

    def _complain(self, suffix: str, problem: str) -> None:
        self._findings.add(
            self._index_severity, "bad-index", self._stem + suffix, f"{problem}; {self._advice}"
        )

    def _check_index(self, position: int, header: BatchHeader) -> None:
        while self._next_index < len(self._index):
            entry = self._index[self._next_index]
            if entry.position > position:
                return
            self._next_index += 1
            if entry.position < position:
                self._complain(
                    INDEX, f"offset {entry.offset} points to byte {entry.position}, inside a batch"
                )
            elif entry.offset != header.last_offset:
                self._complain(
                    INDEX,
                    f"offset {entry.offset} points to byte {position}, but the batch there ends "
                    f"with offset {header.last_offset}",
                )

    def _check_times(self, header: BatchHeader) -> None:
        """Checks the time index against the batch. Called before `_note_times` counts the batch's
        own timestamp."""
        while self._next_time < len(self._times):
            entry = self._times[self._next_time]
            if entry.offset > header.last_offset:
                return
            self._next_time += 1
            if entry.offset < header.last_offset:
                if not self._scan.bad:
                    self._complain(TIME_INDEX, f"no batch ends with offset {entry.offset}")
            elif entry.timestamp != header.max_timestamp:
                self._complain(
                    TIME_INDEX,
                    f"it lists offset {entry.offset} with timestamp {entry.timestamp}, but the "
                    f"batch has {header.max_timestamp}",
                )
            elif entry.timestamp <= self._scan.max_timestamp:
                self._complain(
                    TIME_INDEX,
                    f"it lists offset {entry.offset} as the latest so far, but an earlier one has "
                    f"timestamp {self._scan.max_timestamp}",
                )

    def _finish_indexes(
        self, offset_index: OffsetIndexContent | None, time_index: TimeIndexContent | None
    ) -> None:
        scan = self._scan
        for entry in self._index[self._next_index :]:
            self._complain(
                INDEX,
                f"offset {entry.offset} points to byte {entry.position}, but the segment has "
                f"only {scan.size} bytes",
            )
        if scan.bad:
            return
        for late in self._times[self._next_time :]:
            self._complain(
                TIME_INDEX, f"offset {late.offset} is beyond the segment's end {scan.end_offset}"
            )
        if not self._indexes_trusted or not scan.batches:
            return
        missing = {INDEX: offset_index is None, TIME_INDEX: time_index is None}
        for suffix in (suffix for suffix, gone in missing.items() if gone):
            self._findings.warning("no-index", self._stem + suffix, f"it is missing; {_REBUILT}")
        if time_index is None or scan.max_timestamp == NO_TIMESTAMP:
            return
        newest = TimeEntry(scan.max_timestamp, scan.max_timestamp_offset)
        if not self._times:
            self._complain(TIME_INDEX, "it has no entries: the segment cannot be found by time")
        elif self._times[-1].timestamp < newest.timestamp:
            self._complain(
                TIME_INDEX,
                f"its last timestamp is {self._times[-1].timestamp}, but offset {newest.offset} "
                f"has {newest.timestamp}",
            )


def _rising(entries: tuple[_Entry, ...]) -> list[_Entry]:
    """Returns the entries up to the first that does not increase in both fields."""
    for at, (before, after) in enumerate(itertools.pairwise(entries)):
        if after[0] <= before[0] or after[1] <= before[1]:
            return list(entries[: at + 1])
    return list(entries)
