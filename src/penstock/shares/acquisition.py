"""Chooses the records that a share fetch gets, and changes the window accordingly.

The batches that were read are visited in order. What is available in them is acquired; what they
have beyond the window extends it, while the window has room. Control batches, aborted batches,
duplicates and offsets between batches are facts: nothing is to be delivered there, so they are
archived at once. So are far records that the schedule delivers. A range of offsets that is passed
over like this, or was given up before it was delivered, takes one place in the window. So a member
that holds one old record does not keep the others from what follows a long range of such offsets.

A batch extends the window as a whole, so that members get whole batches. One with more offsets than
the window may hold extends it only as far as there is room. So what can be acquired in the window
is less than two times the limit. This bounds the work of one acknowledgement and the size of a
delta: with promoted records, at most 30,000 spans of at most 33 bytes, which fit into 1 MiB.

A record that was delivered often is isolated, because it may be the one that kills its consumer.
From half of the delivery limit on, one fetch gets only half of a span, the next time a quarter, and
so on. The last delivery of a record is of this record alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.coordination.effects import Now
from penstock.shares.events import Acquire, AcquiredRange, BatchKind, LogBatch
from penstock.shares.promoted_spans import PromotedSpans
from penstock.shares.settings import ShareSettings
from penstock.shares.share_schedule import NO_SCHEDULE, ShareSchedule
from penstock.shares.spans import Span, SpanTable
from penstock.shares.states import AcquireMode, RecordState


def isolated_size(size: int, delivery_count: int, limit: int) -> int | None:
    """Returns how many records of a span may be delivered, in a fetch of their own.

    None: the span need not be isolated. `delivery_count` is the number of deliveries so far.
    """
    isolated_from = max(2, (limit + 1) // 2)
    if limit <= 2 or not delivery_count:
        return None
    if delivery_count + 1 >= limit:
        return 1
    if delivery_count < isolated_from:
        return None
    return max(1, size >> (delivery_count - isolated_from + 1))


@dataclass(slots=True)
class Acquisition:
    """One share fetch. `run` changes the table; the other fields are its results."""

    table: SpanTable | PromotedSpans
    request: Acquire
    settings: ShareSettings
    now: Now
    schedule: ShareSchedule = NO_SCHEDULE
    ranges: list[AcquiredRange] = field(default_factory=list)
    facts: list[tuple[int, int]] = field(default_factory=list)
    """What was archived because nothing can be delivered there."""
    expired: list[Span] = field(default_factory=list)
    """Available spans whose records have expired. The caller decides what happens to them."""
    dropped: list[Span] = field(default_factory=list)
    """Available spans of records that are given up because the queue is too long."""
    due: list[int] = field(default_factory=list)
    """The times, in ticks, from which on spans in the window can be delivered."""
    redelivered: int = 0
    acquired: int = 0
    end_leader_epoch: int | None = None
    """The leader epoch of the last batch that extended the window."""
    _is_over: bool = False
    _room: int = 0
    """How many places the window has left. What becomes free meanwhile does not count."""

    def run(self) -> None:
        position = self.request.read_from
        if isinstance(self.table, SpanTable):
            self._room = self.settings.in_flight_max - self.table.places
        if position > self.table.end:
            return  # The log was not read where the window ends.
        for batch in self.request.batches:
            if batch.first > position:
                self._archive(position, batch.first - 1, batch)
            self._visit(batch)
            position = max(position, batch.last + 1)
            if self._is_over or self._left() <= 0:
                break

    def _visit(self, batch: LogBatch) -> None:
        if batch.kind is BatchKind.FAR:
            border = self.schedule.next_border(batch.first)
            if border is not None and border <= batch.last:
                self._visit(batch._replace(last=border - 1))
                if not self._is_over and self._left() > 0:
                    self._visit(batch._replace(first=border))
                return
            if not self.schedule.covers(batch.first):
                batch = batch._replace(kind=BatchKind.DATA)
        if batch.kind is not BatchKind.DATA:
            self._archive(batch.first, batch.last, batch)
            return
        if batch.expires_ms is not None and batch.expires_ms <= self.now.wall_ms:
            self._expire(batch)
            return
        below = self.request.drop_below
        if batch.first < below:
            self._give_up(batch._replace(last=min(batch.last, below - 1)), self.dropped)
            if batch.last < below:
                return
            batch = batch._replace(first=below)
        due_ms = self.now.ticks_ms + max(0, batch.due_ms - self.now.wall_ms)
        if due_ms > self.now.ticks_ms:
            self._postpone(batch, due_ms)
            return
        self._acquire_in_window(batch)
        if not self._is_over and self._left() > 0:
            self._acquire_new(batch)

    # What the window has already

    def _acquire_in_window(self, batch: LogBatch) -> None:
        table = self.table
        for span in table.overlapping(max(batch.first, self.request.read_from), batch.last):
            if self._is_over or self._left() <= 0:
                return
            if not span.is_open or span.not_before_ms > self.now.ticks_ms:
                continue
            first = max(span.first, batch.first, self.request.read_from)
            last = min(span.last, batch.last)
            isolated = isolated_size(
                last - first + 1, span.delivery_count, self.settings.delivery_limit
            )
            if isolated is not None:
                self._is_over = True
                if self.acquired:
                    return
                last = min(last, first + isolated - 1)
            elif self.request.mode is AcquireMode.RECORD_LIMIT:
                last = min(last, first + self._left() - 1)
            elif self._is_large(batch):
                last = min(last, first + self.settings.in_flight_max - 1)
            for piece in table.cut(first, last):
                self._lock(piece)

    def _lock(self, span: Span) -> None:
        span.state = RecordState.ACQUIRED
        span.owner = self.request.member_id
        span.delivery_count += 1
        span.lock_until_ms = self.now.ticks_ms + self.settings.record_lock_ms
        span.not_before_ms = 0
        self._note(span.first, span.last, span.delivery_count)

    # What extends the window

    def _acquire_new(self, batch: LogBatch) -> None:
        if self._room <= 0 or batch.last < self.table.end:
            return
        last = self._new_last(batch)
        if self.request.mode is AcquireMode.RECORD_LIMIT:
            last = min(last, self.table.end + min(self._room, self._left()) - 1)
        span = Span(self.table.end, last, RecordState.AVAILABLE)
        self._extend(span, batch)
        self._lock(span)

    def _postpone(self, batch: LogBatch, due_ms: int) -> None:
        for span in self._open_spans(batch.first, batch.last):
            span.not_before_ms = max(span.not_before_ms, due_ms)
            self.due.append(span.not_before_ms)
        if batch.last >= self.table.end and self._room > 0:
            last = self._new_last(batch)
            span = Span(self.table.end, last, RecordState.AVAILABLE, not_before_ms=due_ms)
            self._extend(span, batch)
            self.due.append(due_ms)

    def _expire(self, batch: LogBatch) -> None:
        self._give_up(batch, self.expired)

    def _give_up(self, batch: LogBatch, given_up: list[Span]) -> None:
        given_up += self._open_spans(batch.first, batch.last)
        if batch.last >= self.table.end and self._room > 0:
            last = self._new_last(batch)
            span = Span(self.table.end, last, RecordState.AVAILABLE)
            self._extend(span, batch)
            given_up.append(span)

    def _archive(self, first: int, last: int, batch: LogBatch) -> None:
        """Archives offsets without anything to deliver. `batch` is, or follows, these offsets."""
        for span in self._open_spans(first, last):
            span.state, span.not_before_ms = RecordState.ARCHIVED, 0
            self.facts.append((span.first, span.last))
        if last >= self.table.end and self._room > 0:
            span = Span(self.table.end, last, RecordState.ARCHIVED)
            self._extend(span, batch)
            self.facts.append((span.first, span.last))

    def _open_spans(self, first: int, last: int) -> list[Span]:
        """Cuts and returns the available spans of a range, as far as it was read."""
        first = max(first, self.request.read_from)
        if not any(span.is_open for span in self.table.overlapping(first, last)):
            return []
        return [span for span in self.table.cut(first, last) if span.is_open]

    def _extend(self, span: Span, batch: LogBatch) -> None:
        self.table.extend(span)
        self._room -= 1 if span.is_passed_over else len(span)
        self.end_leader_epoch = batch.leader_epoch

    # Counting

    def _is_large(self, batch: LogBatch) -> bool:
        return batch.last - batch.first >= self.settings.in_flight_max

    def _new_last(self, batch: LogBatch) -> int:
        """Returns how far a batch extends the window."""
        if not self._is_large(batch):
            return batch.last
        return min(batch.last, self.table.end + self._room - 1)

    def _left(self) -> int:
        return self.request.max_records - self.acquired

    def _note(self, first: int, last: int, delivery_count: int) -> None:
        count = last - first + 1
        self.acquired += count
        if delivery_count > 1:
            self.redelivered += count
        before = self.ranges[-1] if self.ranges else None
        size = self.request.batch_size
        if (
            before is not None
            and before.last + 1 == first
            and before.delivery_count == delivery_count
            and (size <= 0 or before.last - before.first + 1 < size)
        ):
            self.ranges[-1] = before._replace(last=last)
        else:
            self.ranges.append(AcquiredRange(first, last, delivery_count))
