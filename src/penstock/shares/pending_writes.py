"""What a share partition has to store: facts that wait for the next write, and writes under way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.coordination.effects import Token
from penstock.coordination.invariants import InvariantViolated
from penstock.schedule.cursor import ScheduleCursor
from penstock.shares.image import StoredSpan
from penstock.shares.promoted_spans import SpanTables
from penstock.shares.spans import Change, Span
from penstock.shares.states import RecordState

Range = tuple[int, int]


class Facts(NamedTuple):
    """Offsets that are archived because the log says so."""

    window: list[Range]
    promoted: list[Range]

    def stored(self) -> tuple[list[StoredSpan], list[StoredSpan]]:
        return _archived(self.window), _archived(self.promoted)


class Promotion(NamedTuple):
    """Records that are promoted when a write is durable."""

    ranges: tuple[Range, ...]
    cursor: ScheduleCursor
    attachment: bytes


@dataclass(frozen=True, slots=True)
class WriteUnderWay:
    token: Token | None
    facts: Facts
    """Facts that this write stores, too."""
    changed: list[Range]
    promotion: Promotion | None = None


class PendingWrites:
    """See the module's docstring."""

    __slots__ = ("_facts", "_next_id", "_writes")

    def __init__(self) -> None:
        self._facts = Facts([], [])
        self._writes: dict[int, WriteUnderWay] = {}
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._writes)

    def __contains__(self, write_id: int) -> bool:
        return write_id in self._writes

    @property
    def is_promoting(self) -> bool:
        return any(write.promotion is not None for write in self._writes.values())

    def next_id(self) -> int:
        write_id, self._next_id = self._next_id, self._next_id + 1
        return write_id

    def add_facts(self, window: Iterable[Range] = (), promoted: Iterable[Range] = ()) -> None:
        for known, new in zip(self._facts, (window, promoted), strict=True):
            for first, last in new:
                if known and known[-1][1] + 1 == first:
                    known[-1] = known[-1][0], last
                else:
                    known.append((first, last))

    def note(self, facts: Iterable[Range], *, is_promoted: bool) -> None:
        self.add_facts(*(((), facts) if is_promoted else (facts, ())))

    def forget_below(self, start: int) -> None:
        """The window starts here: what is below need not be stored."""
        self._facts.window[:] = [each for each in self._facts.window if each[1] >= start]

    def begin(
        self,
        write_id: int,
        start: int,
        changed: list[Range],
        token: Token | None = None,
        promotion: Promotion | None = None,
    ) -> Facts:
        """Begins a write, and returns the facts that it stores."""
        self.forget_below(start)
        facts, self._facts = self._facts, Facts([], [])
        self._writes[write_id] = WriteUnderWay(token, facts, joined(changed), promotion)
        return facts

    def end(self, write_id: int) -> WriteUnderWay:
        write = self._writes.pop(write_id, None)
        if write is None:
            raise InvariantViolated(f"write {write_id} was reported, but is not under way")
        return write


def changed_spans(
    tables: SpanTables, write: WriteUnderWay, write_id: int
) -> list[tuple[Span, Change]]:
    """Returns the spans that wait for this write. The log start may have passed some."""
    return [
        (span, span.change)
        for first, last in write.changed
        for span in tables.overlapping(first, last)
        if span.change is not None and span.change.write_id == write_id
    ]


def ranges_of(offsets: Iterable[int]) -> tuple[Range, ...]:
    """Returns the ranges of these offsets, in order."""
    ranges: list[Range] = []
    for offset in sorted(offsets):
        if ranges and ranges[-1][1] + 1 == offset:
            ranges[-1] = ranges[-1][0], offset
        else:
            ranges.append((offset, offset))
    return tuple(ranges)


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Joins each range with the one before it, if it continues it."""
    found: list[Range] = []
    for first, last in ranges:
        if found and found[-1][1] + 1 == first:
            found[-1] = found[-1][0], last
        else:
            found.append((first, last))
    return found


def _archived(ranges: Iterable[Range]) -> list[StoredSpan]:
    return [StoredSpan(first, last, RecordState.ARCHIVED, 0) for first, last in ranges]
