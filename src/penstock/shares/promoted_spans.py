"""Promoted records of a share partition: spans of their own, beside the window.

`PromotedSpans` has the interface of the window's `SpanTable`, but there are gaps between its spans,
and those that are done are removed wherever they are. `SpanTables` is both together.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import Final

from penstock.coordination.invariants import InvariantViolated
from penstock.schedule.cursor import TIME_MAX
from penstock.shares.spans import Span, SpanTable
from penstock.shares.states import DONE, RecordState

_FIRST: Final = attrgetter("first")
_LAST: Final = attrgetter("last")


class PromotedSpans:
    """Spans in order, without overlaps."""

    __slots__ = ("_log_start", "spans")

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._log_start = 0

    def __len__(self) -> int:
        """The number of records."""
        return sum(map(len, self.spans))

    def __contains__(self, offset: int) -> bool:
        return bool(self.overlapping(offset, offset))

    @property
    def end(self) -> int:
        """An acquisition never extends this table."""
        return TIME_MAX

    def extend(self, span: Span) -> Span:
        raise InvariantViolated(f"{span} was not promoted")

    def insert(self, first: int, last: int) -> None:
        """Adds records that have been promoted, unless the log start has passed them."""
        first = max(first, self._log_start)
        if first <= last:
            if self.overlapping(first, last):
                raise InvariantViolated(f"offsets {first} to {last} were promoted before")
            self.put(Span(first, last, RecordState.AVAILABLE))
            self.merge(first, last)

    def put(self, span: Span) -> None:
        self.spans.insert(bisect_left(self.spans, span.first, key=_FIRST), span)

    def overlapping(self, first: int, last: int) -> list[Span]:
        """Returns the spans that have an offset of the range, unchanged."""
        low, high = self._range(first, last)
        return self.spans[low:high]

    def cut(self, first: int, last: int) -> list[Span]:
        """Returns the spans of these offsets, as far as they were promoted."""
        self._split(first)
        self._split(last + 1)
        return self.overlapping(first, last)

    def merge(self, first: int, last: int) -> None:
        """Merges equal spans in this range and next to it."""
        low, high = self._range(first - 1, last + 1)
        merged: list[Span] = []
        for span in self.spans[low:high]:
            if merged and merged[-1].last + 1 == span.first and merged[-1].is_like(span):
                merged[-1].last = span.last
            else:
                merged.append(span)
        self.spans[low:high] = merged

    def drop_done(self) -> bool:
        """Removes everything that is done. Returns whether there was something."""
        count = len(self.spans)
        self.spans = [span for span in self.spans if span.state not in DONE]
        return len(self.spans) < count

    def drop_below(self, offset: int) -> list[tuple[int, int]]:
        """Removes everything below an offset, and returns the ranges."""
        self._log_start = max(self._log_start, offset)
        removed = self.cut(0, offset - 1)
        del self.spans[: len(removed)]
        return [(span.first, span.last) for span in removed]

    def verify(self) -> None:
        """Raises `InvariantViolated` if spans overlap, or are done."""
        at = 0
        for span in self.spans:
            if span.first < at or span.last < span.first or span.state in DONE:
                raise InvariantViolated(f"{span} was promoted, and is empty, done or not in order")
            if (span.state is RecordState.ACQUIRED) != (span.owner is not None):
                raise InvariantViolated(f"{span} is acquired without an owner, or the reverse")
            at = span.last + 1

    def _range(self, first: int, last: int) -> tuple[int, int]:
        low = bisect_left(self.spans, first, key=_LAST)
        return low, max(low, bisect_right(self.spans, last, key=_FIRST))

    def _split(self, offset: int) -> None:
        """Makes a span begin at the offset, if one contains it."""
        at = bisect_left(self.spans, offset, key=_LAST)
        if at < len(self.spans) and self.spans[at].first < offset:
            self.spans.insert(at + 1, self.spans[at].split(offset))


class SpanTables:
    """The window and the promoted records of a share partition.

    The window passes over promoted records. So at most one of the tables has something to do with
    an offset; in the other it is archived, or missing.
    """

    __slots__ = ("promoted", "window")

    def __init__(self, start: int) -> None:
        self.window = SpanTable(start)
        self.promoted = PromotedSpans()

    @property
    def spans(self) -> list[Span]:
        return [*self.promoted.spans, *self.window.spans]

    def overlapping(self, first: int, last: int) -> list[Span]:
        return [*self.promoted.overlapping(first, last), *self.window.overlapping(first, last)]

    def cut(self, first: int, last: int) -> list[Span]:
        return [*self.promoted.cut(first, last), *self.window.cut(first, last)]

    def merge(self, first: int, last: int) -> None:
        self.promoted.merge(first, last)
        self.window.merge(first, last)

    def divide(self, first: int, last: int) -> Iterator[tuple[SpanTable | PromotedSpans, int, int]]:
        """Yields the parts of a range, each with the table that decides about it."""
        for span in self.promoted.overlapping(first, last):
            if span.first > first:
                yield self.window, first, span.first - 1
            yield self.promoted, max(first, span.first), min(last, span.last)
            first = span.last + 1
        if first <= last:
            yield self.window, first, last

    def drop_done(self) -> bool:
        """Returns whether something was removed."""
        is_removed = self.promoted.drop_done()
        return self.window.drop_done() or is_removed

    def verify(self) -> None:
        self.window.verify()
        self.promoted.verify()
