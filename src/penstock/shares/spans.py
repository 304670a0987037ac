"""The window of a share partition: ranges of offsets with equal attributes, in order, without gaps.

A span is split where a part of it is touched, and merged with a neighbor that is equal. So the
table grows with the ranges that are touched, not with the records in them.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from penstock.coordination.invariants import InvariantViolated
from penstock.shares.states import DONE, GiveUpReason, RecordState

_FIRST: Final = attrgetter("first")


class Change(NamedTuple):
    """A decision about a span that is not durable yet."""

    write_id: int
    state: RecordState
    not_before_ms: int = 0
    reason: GiveUpReason = GiveUpReason.NONE
    letter_shift: int = 0


@dataclass(slots=True)
class Span:
    """Offsets from `first` to `last`, both included. All times are in ticks."""

    first: int
    last: int
    state: RecordState
    delivery_count: int = 0
    owner: str | None = None
    """The member that has acquired it."""
    lock_until_ms: int = 0
    not_before_ms: int = 0
    """If the span is available: it is delivered from this time on."""
    reason: GiveUpReason = GiveUpReason.NONE
    letter_shift: int = 0
    """If the span is archiving: the number of an offset's dead letter is the offset plus this."""
    change: Change | None = None

    def __len__(self) -> int:
        return self.last - self.first + 1

    def split(self, offset: int) -> Span:
        """Ends this span before the offset, and returns the rest as another span."""
        rest = Span(
            offset,
            self.last,
            self.state,
            self.delivery_count,
            self.owner,
            self.lock_until_ms,
            self.not_before_ms,
            self.reason,
            self.letter_shift,
            self.change,
        )
        self.last = offset - 1
        return rest

    @property
    def is_open(self) -> bool:
        """Whether it is available, and no decision about it is on its way to disk."""
        return self.state is RecordState.AVAILABLE and self.change is None

    @property
    def is_passed_over(self) -> bool:
        """Whether it was never delivered, and never will be. It may not be durable yet."""
        if self.delivery_count:
            return False
        state = self.state if self.change is None else self.change.state
        return state is RecordState.ARCHIVED

    def is_held_by(self, member_id: str) -> bool:
        return (
            self.state is RecordState.ACQUIRED and self.owner == member_id and self.change is None
        )

    def is_like(self, other: Span) -> bool:
        return (
            self.state is other.state
            and self.delivery_count == other.delivery_count
            and self.owner == other.owner
            and self.lock_until_ms == other.lock_until_ms
            and self.not_before_ms == other.not_before_ms
            and self.reason is other.reason
            and self.letter_shift == other.letter_shift
            and self.change == other.change
        )


class SpanTable:
    """All offsets from `start` up to, and without, `end`."""

    __slots__ = ("end", "spans", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.spans: list[Span] = []

    def __len__(self) -> int:
        """The number of offsets in the window."""
        return self.end - self.start

    @property
    def places(self) -> int:
        """How much of its limit the window uses: a range that is passed over takes one place,
        however long it is, and so does any other offset. So there are no more spans than places."""
        return sum(1 if span.is_passed_over else len(span) for span in self.spans)

    def first_open(self, below: int) -> int | None:
        """Returns the first offset below another one that is available, or beyond the window."""
        for span in self.spans:
            if span.is_open and span.first < below:
                return span.first
        return self.end if self.end < below else None

    def overlapping(self, first: int, last: int) -> list[Span]:
        """Returns the spans that have an offset of the range, unchanged."""
        if last < self.start or first >= self.end or first > last:
            return []
        return self.spans[self._index(max(first, self.start)) : self._index(last) + 1]

    def cut(self, first: int, last: int) -> list[Span]:
        """Returns the spans of exactly these offsets, as far as they are in the window."""
        first, last = max(first, self.start), min(last, self.end - 1)
        if first > last:
            return []
        self._split(first)
        self._split(last + 1)
        return self.spans[self._index(first) : self._index(last) + 1]

    def extend(self, span: Span) -> Span:
        """Adds a span at the end of the window."""
        if span.first != self.end:
            raise InvariantViolated(f"a span at {span.first} does not continue {self.end}")
        self.spans.append(span)
        self.end = span.last + 1
        return span

    def merge(self, first: int, last: int) -> None:
        """Merges equal spans in this range and next to it."""
        if not self.spans:
            return
        low = max(self._index(max(first, self.start)) - 1, 0)
        high = min(self._index(min(last, self.end - 1)) + 2, len(self.spans))
        merged = [self.spans[low]]
        for span in self.spans[low + 1 : high]:
            if merged[-1].is_like(span):
                merged[-1].last = span.last
            else:
                merged.append(span)
        self.spans[low:high] = merged

    def open_below(self, offset: int) -> list[Span]:
        """Cuts and returns what is available below an offset, unless a decision is under way."""
        return [span for span in self.cut(self.start, offset - 1) if span.is_open]

    def drop_done(self) -> bool:
        """Moves the start past everything that is done. Returns whether it has moved."""
        count = 0
        for span in self.spans:
            if span.state not in DONE:
                break
            count += 1
        if not count:
            return False
        self.start = self.spans[count - 1].last + 1
        del self.spans[:count]
        return True

    def drop_below(self, offset: int) -> None:
        """Removes everything below an offset, in whatever state it is."""
        if offset >= self.end:
            self.spans.clear()
            self.start = self.end = offset
            return
        self._split(offset)
        del self.spans[: self._index(offset)]
        self.start = offset

    def verify(self) -> None:
        """Raises `InvariantViolated` if the spans are not in order, or leave a gap."""
        at = self.start
        for span in self.spans:
            if span.first != at or span.last < span.first:
                raise InvariantViolated(f"{span} does not begin at {at}, or is empty")
            if (span.state is RecordState.ACQUIRED) != (span.owner is not None):
                raise InvariantViolated(f"{span} is acquired without an owner, or the reverse")
            at = span.last + 1
        if at != self.end:
            raise InvariantViolated(f"the spans end at {at}, the window at {self.end}")
        if self.spans and self.spans[0].state in DONE:
            raise InvariantViolated(f"the window begins with {self.spans[0]}, which is done")

    def _index(self, offset: int) -> int:
        """The position of the span that has the offset, or of the last one before it."""
        return bisect_right(self.spans, offset, key=_FIRST) - 1

    def _split(self, offset: int) -> None:
        """Makes a span begin at the offset, if it is in the window."""
        if not self.start < offset < self.end:
            return
        at = self._index(offset)
        span = self.spans[at]
        if span.first != offset:
            self.spans.insert(at + 1, span.split(offset))
