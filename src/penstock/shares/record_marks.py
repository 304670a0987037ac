"""What the headers of records say: when they are due and expire, and which are duplicates. Pure.

A share partition looks at headers of batches only. In topics with timed records or deduplication
its shell also reads the records, once, in the order of their offsets. `MarkReader` finds those that
need attention, as `Mark`s. `MarkTable` keeps the marks of the window, and divides batches at them
for `Acquire`.

Nothing of this is stored. The log has it, and a new leader reads it again.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from penstock.records.batch import Codec, read_header
from penstock.records.job_headers import DEDUP_ID, DELIVER_AT, EXPIRES_AT, time_in
from penstock.records.record import Record, read_records
from penstock.shares.duplicates import DuplicateFinder
from penstock.shares.events import BatchKind, LogBatch
from penstock.shares.share_schedule import FAR_MS, ShareSchedule

_FIRST: Final = attrgetter("first")
_LAST: Final = attrgetter("last")
_TIMED: Final = re.compile(f"{DELIVER_AT}|{EXPIRES_AT}".encode())


class MarkRules(NamedTuple):
    """The settings of a topic that make its records worth reading."""

    timed: bool = False
    dedup_window_ms: int = 0
    timed_below: int | None = None
    """Only records below this offset have due times and expire. None: all."""

    @property
    def reads_records(self) -> bool:
        return self.timed or self.dedup_window_ms > 0

    def applies_to(self, offset: int) -> bool:
        """Whether the record at this offset has a due time, and expires, if it says so."""
        return self.timed and (self.timed_below is None or offset < self.timed_below)

    def with_schedule(self, schedule: ShareSchedule, window_start: int) -> MarkRules:
        """Returns the rules for the window of a share partition with this schedule.

        A schedule that was closed, because the topic has lost its setting, still has the far
        records below its ceiling: the window must pass over them.
        """
        if self.timed or schedule.has_ended or window_start >= schedule.ceiling:
            return self
        return self._replace(timed=True, timed_below=schedule.ceiling)


class Mark(NamedTuple):
    """Offsets from `first` to `last` whose records are not plain."""

    first: int
    last: int
    due_ms: int = 0
    expires_ms: int | None = None
    is_duplicate: bool = False
    is_far: bool = False


class FarRecords(NamedTuple):
    end: int
    """Those from it on are not in `ranges`."""
    ranges: tuple[tuple[int, int], ...]


class MarkReader:
    """Reads records in the order of their offsets. One thread at a time may use it."""

    __slots__ = ("_duplicates", "_rules")

    def __init__(self, rules: MarkRules) -> None:
        self._rules = rules
        window_ms = rules.dedup_window_ms
        self._duplicates = DuplicateFinder(window_ms) if window_ms > 0 else None

    @property
    def forgotten(self) -> int:
        return 0 if self._duplicates is None else self._duplicates.forgotten

    def read(self, batches: Iterable[tuple[LogBatch, memoryview]]) -> list[Mark]:
        """Returns the marks of these batches. Raises `CorruptBatch` if one cannot be decoded."""
        marks: list[Mark] = []
        for batch, data in batches:
            if batch.kind is not BatchKind.DATA:
                continue
            header = read_header(data)
            if self._duplicates is None and header.codec == Codec.NONE and not _TIMED.search(data):
                continue
            for record in read_records(data, header):
                _add(marks, self._mark(record))
        return marks

    def _mark(self, record: Record) -> Mark | None:
        due_ms = 0
        expires_ms: int | None = None
        record_id = record.key
        is_timed = self._rules.applies_to(record.offset)
        for name, value in record.headers:
            if name == DELIVER_AT and is_timed:
                due_ms = time_in(value) or 0
            elif name == EXPIRES_AT and is_timed:
                expires_ms = time_in(value)
            elif name == DEDUP_ID:
                record_id = value
        duplicates, offset = self._duplicates, record.offset
        is_duplicate = (
            duplicates is not None
            and record_id is not None
            and duplicates.is_duplicate(bytes(record_id), record.timestamp)
        )
        if due_ms or expires_ms is not None or is_duplicate:
            is_far = due_ms - record.timestamp > FAR_MS
            return Mark(offset, offset, due_ms, expires_ms, is_duplicate, is_far)
        return None


def _add(marks: list[Mark], mark: Mark | None) -> None:
    if mark is None:
        return
    before = marks[-1] if marks else None
    if before is not None and before.last + 1 == mark.first and before[2:] == mark[2:]:
        marks[-1] = before._replace(last=mark.last)
    else:
        marks.append(mark)


def _kind(mark: Mark) -> BatchKind:
    if mark.is_duplicate:
        return BatchKind.DUPLICATE
    return BatchKind.FAR if mark.is_far else BatchKind.DATA


class MarkTable:
    """The marks of a share partition, from its start offset up to `position`."""

    __slots__ = ("_marks", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        """The records below it have been read."""
        self._marks: list[Mark] = []

    def __len__(self) -> int:
        return len(self._marks)

    def extend(self, marks: Iterable[Mark], position: int) -> None:
        """Adds the marks of the records that were read, up to a position."""
        self._marks += marks
        self.position = position

    def forget_below(self, offset: int) -> None:
        del self._marks[: bisect_left(self._marks, offset, key=_LAST)]

    def forget_within(self, first: int, last: int) -> None:
        """Forgets the marks of these offsets."""
        marks = self._marks
        low = bisect_left(marks, first, key=_FIRST)
        del marks[low : max(low, bisect_right(marks, last, key=_LAST))]

    def far_between(self, first: int, end: int, marks_max: int) -> FarRecords:
        """Returns the far records, no duplicates, with `first <= offset < end`. It looks at a
        limited number of marks."""
        ranges: list[tuple[int, int]] = []
        at = bisect_left(self._marks, first, key=_LAST)
        for mark in islice(self._from(at), marks_max):
            if mark.first >= end:
                return FarRecords(end, tuple(ranges))
            if mark.is_far and not mark.is_duplicate:
                ranges.append((max(mark.first, first), min(mark.last, end - 1)))
        if at + marks_max < len(self._marks):
            end = min(end, self._marks[at + marks_max].first)
        return FarRecords(end, tuple(ranges))

    def _from(self, at: int) -> Iterator[Mark]:
        """Yields the marks from a position in the list on, without a copy of the list."""
        marks = self._marks
        return (marks[index] for index in range(at, len(marks)))

    def divide(self, batch: LogBatch, read_from: int = 0) -> Iterator[LogBatch]:
        """Yields the parts of a batch: those with marks, and what is between them. It begins with
        the part that has `read_from`."""
        if batch.kind is not BatchKind.DATA:
            yield batch
            return
        batch = batch._replace(first=max(batch.first, min(read_from, batch.last)))
        at, next_offset = bisect_left(self._marks, batch.first, key=_LAST), batch.first
        for mark in self._from(at):
            if mark.first > batch.last:
                break
            if mark.first > next_offset:
                yield batch._replace(first=next_offset, last=mark.first - 1)
            last = min(mark.last, batch.last)
            yield batch._replace(
                first=max(mark.first, next_offset),
                last=last,
                kind=_kind(mark),
                due_ms=mark.due_ms,
                expires_ms=mark.expires_ms,
            )
            next_offset = last + 1
        if next_offset <= batch.last:
            yield batch._replace(first=next_offset)
