"""The locks of a share partition that its leader loads again. Pure.

Locks are only in the memory of the leader. If the outcome of a write is unknown, the leader drops
the share partition and reads its state again. The read fences all earlier writes, so what it
returns is final: none of the writes that were under way takes effect later.

So the stored state decides about each lock. If it has the record as available, with one delivery
less than the member has got, then nothing was stored since the delivery: the member still has the
record. That also holds if a decision about the record was under way, because it is void now. In any
other state the record has changed, and the lock is over.

The window is extended to its former end. What is not locked there is available, and the next fetch
finds the facts of the log again. The schedule is carried over, too: what was locked in the window
must not be promoted because the schedule was closed, and that is not stored. If nothing of it is
stored, it has promoted nothing, and looks at all far records again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from penstock.schedule.cursor import ScheduleCursor
from penstock.shares.image import Delta
from penstock.shares.promoted_spans import PromotedSpans, SpanTables
from penstock.shares.share_schedule import ShareSchedule
from penstock.shares.spans import Span, SpanTable
from penstock.shares.states import RecordState


class CarriedLocks(NamedTuple):
    """What a share partition knew when it was dropped."""

    state_epoch: int
    schedule: ShareSchedule
    window_end: int
    end_leader_epoch: int
    window: tuple[Span, ...]
    """The spans of the window that were acquired."""
    promoted: tuple[Span, ...]

    @classmethod
    def of(cls, tables: SpanTables, known: Delta) -> CarriedLocks:
        """`known` is what the share partition would store now."""
        found = _acquired(tables.window.spans), _acquired(tables.promoted.spans)
        return cls(
            known.state_epoch, known.schedule, known.end_offset, known.end_leader_epoch, *found
        )

    def __bool__(self) -> bool:
        return bool(self.window or self.promoted)

    def ended(self, member_id: str, ticks_ms: int) -> CarriedLocks:
        """The member has gone: its locks end now. Their deliveries still count."""
        window, promoted = (
            tuple(
                replace(span, lock_until_ms=ticks_ms) if span.owner == member_id else span
                for span in spans
            )
            for spans in (self.window, self.promoted)
        )
        return self._replace(window=window, promoted=promoted)

    def carried_schedule(self, stored: ShareSchedule) -> ShareSchedule:
        if self.schedule.number <= stored.number:
            return stored.merged(self.schedule)
        begin = ScheduleCursor.starting_at(self.schedule.cursor.floor)
        return self.schedule._replace(cursor=begin)

    def put_back(self, tables: SpanTables, end_leader_epoch: int) -> int:
        """Locks what is locked still, in the tables that were loaded. Takes the leader epoch at the
        end of the window, and returns that at its new end."""
        window = tables.window
        if self.window_end > window.end:
            window.extend(Span(window.end, self.window_end - 1, RecordState.AVAILABLE))
            end_leader_epoch = self.end_leader_epoch
        for lock in self.window:
            _lock(window, lock)
        for lock in self.promoted:
            _lock(tables.promoted, lock)
        return end_leader_epoch


def _acquired(spans: Iterable[Span]) -> tuple[Span, ...]:
    return tuple(replace(each) for each in spans if each.state is RecordState.ACQUIRED)


def _lock(table: SpanTable | PromotedSpans, lock: Span) -> None:
    for span in table.cut(lock.first, lock.last):
        if span.state is RecordState.AVAILABLE and span.delivery_count == lock.delivery_count - 1:
            span.state, span.owner = lock.state, lock.owner
            span.lock_until_ms, span.not_before_ms = lock.lock_until_ms, 0
            span.delivery_count = lock.delivery_count
    table.merge(lock.first, lock.last)
