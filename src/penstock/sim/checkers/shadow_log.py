"""A shadow of a replica's log, for checks from outside: which batches are where.

A shadow is kept up to date by reading what was appended since the last check, directly from the
simulated disk, so that a check has no effect. Each batch has a chain: a hash over itself and all
batches before it. So two logs are equal below an offset exactly if they have the same chain there.
That is one comparison, however long the logs are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from penstock.records.batch import CONTROL, HEADER_SIZE, TRANSACTIONAL, read_header
from penstock.records.record import ControlType, read_control, read_records
from penstock.storage.log import Log

Peek = Callable[[str, int, int], bytes]
"""Reads bytes of a file: path, position, size."""


class Mark(NamedTuple):
    """What distinguishes one batch from another."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    is_transactional: bool = False
    marker: ControlType | None = None
    """How the transaction ended, if the batch is a marker. None for other and
    quarantined batches."""


def chain_with(before: int, mark: Mark) -> int:
    """Returns the chain up to and including a batch. The marker is left out, because a quarantined
    batch does not show it: the CRC covers it."""
    return hash((before, mark[:-1]))


class Ended(NamedTuple):
    """A transaction that began in this log, and its marker."""

    producer_id: int
    first_offset: int
    marker_offset: int
    aborted: bool


class ShadowLog:
    def __init__(self, log: Log, peek: Peek, *, keep_bodies: bool = False) -> None:
        """With `keep_bodies`, `bodies` has the bytes of all batches by base offset."""
        self.log = log
        self.open: dict[int, int] = {}
        """By producer: the first offset of its transaction that has no marker yet."""
        self.ended: list[Ended] = []
        self.settled_end = 0
        """Where the log ended when it was opened or last truncated."""
        self.bodies: dict[int, bytes] | None = {} if keep_bodies else None
        self.marks: list[Mark] = []
        self.end_offset = -1
        self.is_whole = True
        """The log begins at offset 0, so its chains can be compared with others."""
        self._peek = peek
        self._ends: list[int] = []
        self._chains: list[int] = []
        self._tail: tuple[str, int] = ("", 0)
        """The file of the last batch, and the batch's position in it."""
        self._segment = -1
        self._position = 0

    @property
    def is_current(self) -> bool:
        """Whether the log looks as it did at the last refresh. A log that was restarted may end at
        the same offset as before: then its last segment begins after the last known batch."""
        return (
            self.end_offset == self.log.end_offset
            and bool(self.marks)
            and self.log.segments[-1].base_offset <= self.marks[-1].base_offset
        )

    def refresh(self) -> tuple[bool, list[Mark]]:
        """Reads what is new. Returns whether something was truncated, and the batches that are new
        since then."""
        cut = self.end_offset >= 0 and not self._stands()
        if cut:
            self.marks.clear()
            self._ends.clear()
            self._chains.clear()
            self.open.clear()
            self.ended.clear()
            self._segment, self._position = -1, 0
        if cut or self.end_offset < 0:
            self.settled_end = self.log.end_offset
        new = self._read_on()
        self.end_offset = self.log.end_offset
        return cut, new

    def _stands(self) -> bool:
        """Returns whether the known batches are still there."""
        if self.log.end_offset < self.end_offset:
            return False
        if not self.marks:
            return self._segment in (-1, self.log.segments[0].base_offset)
        path, position = self._tail
        if all(segment.path != path for segment in self.log.segments):
            return False
        data = self._peek(path, position, HEADER_SIZE)
        return len(data) == HEADER_SIZE and self._mark(data, path, position) == self.marks[-1]

    def _read_on(self) -> list[Mark]:
        first = len(self.marks)
        for segment in self.log.segments:
            if segment.base_offset < self._segment:
                continue
            if segment.base_offset > self._segment:
                if self._segment < 0:
                    self.is_whole = segment.base_offset == 0
                self._segment, self._position = segment.base_offset, 0
            while self._position + HEADER_SIZE <= segment.size:
                data = self._peek(segment.path, self._position, HEADER_SIZE)
                mark = self._mark(data, segment.path, self._position)
                self._add(mark)
                self._tail = segment.path, self._position
                size = read_header(data).size
                if self.bodies is not None:
                    body = self._peek(segment.path, self._position, size)
                    self.bodies[mark.base_offset] = bytes(body)
                self._position += size
        return self.marks[first:]

    def _mark(self, data: bytes, path: str, position: int) -> Mark:
        header = read_header(data)
        marker = None
        if header.attributes & CONTROL and not self._is_quarantined(header.base_offset):
            batch = self._peek(path, position, header.size)
            marker = read_control(read_records(batch, header)[0]).type
        return Mark(
            header.base_offset,
            header.next_offset,
            header.leader_epoch,
            header.crc,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.record_count,
            bool(header.attributes & TRANSACTIONAL),
            marker,
        )

    def _is_quarantined(self, offset: int) -> bool:
        """Returns whether the bytes there are damaged: the header is intact, the marker may
        not be."""
        return any(held.start_offset <= offset < held.end_offset for held in self.log.damage)

    def _add(self, mark: Mark) -> None:
        before = self._chains[-1] if self._chains else 0
        self.marks.append(mark)
        self._ends.append(mark.next_offset)
        self._chains.append(chain_with(before, mark))
        if mark.is_transactional:
            self._follow(mark)

    def _follow(self, mark: Mark) -> None:
        if mark.marker is None:
            self.open.setdefault(mark.producer_id, mark.base_offset)
        elif (first := self.open.pop(mark.producer_id, None)) is not None:
            aborted = mark.marker is ControlType.ABORT
            self.ended.append(Ended(mark.producer_id, first, mark.base_offset, aborted))

    def last_stable_offset(self, high_watermark: int, trusted_end: int = 0) -> int:
        """Returns the last stable offset: every transaction below it has ended, with a marker below
        the high watermark or below `trusted_end`, up to which markers are trusted in any case."""
        first = min(self.open.values(), default=high_watermark)
        for each in reversed(self.ended):
            if each.marker_offset < max(high_watermark, trusted_end):
                break
            first = min(first, each.first_offset)
        return min(first, high_watermark)

    def chain_of(self, mark_number: int) -> int:
        return self._chains[mark_number]

    def chain_at(self, end_offset: int) -> int | None:
        """Returns the chain of all batches below an offset. None if no batch ends there."""
        if end_offset == 0:
            return 0
        number = bisect_left(self._ends, end_offset)
        if number == len(self._ends) or self._ends[number] != end_offset:
            return None
        return self._chains[number]

    def marks_between(self, start_offset: int, end_offset: int) -> list[Mark]:
        """Returns the batches that are completely between two offsets."""
        first = bisect_left(self._ends, start_offset + 1)
        last = bisect_left(self._ends, end_offset + 1)
        return self.marks[first:last]
