"""One partition as one share group sees it: who has which record, and what is done. Pure.

    handle(event, now)          returns effects; `events` has both
    next_fetch_offset(now)      where the shell reads the log for the next `Acquire`
    next_promoted(now)          the same for promoted records, which are beside the window

What is durable is not kept here: the share coordinator has it as an image, and this machine is
built from that image.

Facts of the log take effect at once: the log proves them, and a later leader finds them again.
They are stored with the next write. Decisions of members and of clocks take effect when they are
durable: until then a span keeps its state and has a `Change`. If its write fails, the change is
forgotten. Locks are not stored. A lock ends, if nothing else happens, by a decision of this
machine; if the write of that fails, it is tried again.

Far due times: the window passes over scheduled records (`share_schedule`). The shell finds those
that are due, and promotes them. One write has the promoted records and the cursor of the schedule.
Only when it is durable they can be acquired. A cursor that passes no scheduled record is a fact.

Invariants, besides those of `SpanTable.verify`: everything below the start is durable or a fact, or
belongs to the schedule, whose end is never beyond the window. At most one change is under way for
each offset. So deltas under way never touch the same offset, and the order in which they are
committed does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from penstock.coordination.effects import Now, SetTimer, Token
from penstock.coordination.invariants import InvariantViolated
from penstock.shares.acknowledgements import checked_parts, stretches
from penstock.shares.acquisition import Acquisition
from penstock.shares.carried_locks import CarriedLocks
from penstock.shares.decisions import Decision, decide, give_up, release
from penstock.shares.events import (
    Acknowledge,
    Acknowledged,
    Acquire,
    Acquired,
    DeadLettersWritten,
    DropOldest,
    Effect,
    Event,
    LogStartMoved,
    ProducerIdTaken,
    Promote,
    ReleaseMember,
    SettingsChanged,
    SwitchSchedule,
    TimerFired,
    WakeFetches,
    Write,
    WriteCommitted,
    WriteFailed,
)
from penstock.shares.image import Delta, ShareImage, StoredSpan
from penstock.shares.letters import LetterBook, NumberAgain
from penstock.shares.loading import load_spans
from penstock.shares.occupancy import Occupancy, occupancy_of
from penstock.shares.oldest_records import oldest
from penstock.shares.pending_writes import PendingWrites, Promotion, changed_spans, ranges_of
from penstock.shares.promoted_spans import SpanTables
from penstock.shares.settings import ShareSettings
from penstock.shares.share_schedule import ShareSchedule
from penstock.shares.spans import Change, Span, SpanTable
from penstock.shares.states import DONE, AckType, GiveUpReason, RecordState
from penstock.wire.errors import ErrorCode, KafkaError

RETRY_MS: Final = 1000
"""After this time a decision of the machine is tried again, if its write has failed."""
TIMER_STEP_MS: Final = 50
"""Timers are at least this far apart. Each of them visits all spans."""


class SharePartition:
    """See the module's docstring."""

    __slots__ = (
        "_effects",
        "_end_leader_epoch",
        "_letters",
        "_schedule",
        "_settings",
        "_state_epoch",
        "_tables",
        "_timer_ms",
        "_writes",
        "attachment",
        "dropped",
        "redelivered",
    )

    def __init__(self, settings: ShareSettings, image: ShareImage, now: Now) -> None:
        """`image` is what the state log has. It is only read."""
        self._settings = settings
        self._state_epoch = image.state_epoch
        self._end_leader_epoch = image.end_leader_epoch
        self._tables = SpanTables(image.start_offset)
        self._schedule = image.schedule
        self._letters = LetterBook(image.letters)
        self._writes = PendingWrites()
        self._timer_ms: int | None = None
        self._effects: list[Effect] = []
        self.attachment = image.attachment
        """What is stored with the schedule: see `judged`."""
        self.redelivered = 0
        """Deliveries that were not the first of their record."""
        self.dropped = 0
        """Offsets that were given up because the queue was too long."""
        load_spans(self._tables, image, settings, now)

    @property
    def _table(self) -> SpanTable:
        """The window."""
        return self._tables.window

    # What others read

    @property
    def state_epoch(self) -> int:
        return self._state_epoch

    @property
    def start_offset(self) -> int:
        return self._table.start

    @property
    def end_offset(self) -> int:
        return self._table.end

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans of the window. They change with the next event."""
        return tuple(self._table.spans)

    @property
    def promoted(self) -> tuple[Span, ...]:
        """Promoted records that are not done. They change with the next event."""
        return tuple(self._tables.promoted.spans)

    @property
    def schedule(self) -> ShareSchedule:
        return self._schedule

    @property
    def read_committed(self) -> bool:
        return self._settings.read_committed

    @property
    def room_to_promote(self) -> int:
        """How many records may be promoted now."""
        if self._writes.is_promoting:
            return 0
        return max(0, self._settings.in_flight_max - len(self._tables.promoted))

    @property
    def room(self) -> int:
        """How many places the window has left."""
        return max(0, self._settings.in_flight_max - self._table.places)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is acquired or under way. Then the image has all that matters."""
        moving = (RecordState.ACQUIRED, RecordState.ARCHIVING)
        return not self._writes and all(span.state not in moving for span in self._tables.spans)

    def next_fetch_offset(self, now: Now) -> int | None:
        """Returns where something may be acquired; None if there is nothing, and no room."""
        for span in self._table.spans:
            if span.is_open and span.not_before_ms <= now.ticks_ms:
                return span.first
        return self._table.end if self.room else None

    def next_promoted(self, now: Now) -> int | None:
        """Returns the offset of a promoted record that may be acquired; None if there is none."""
        for span in self._tables.promoted.spans:
            if span.is_open and span.not_before_ms <= now.ticks_ms:
                return span.first
        return None

    def first_open(self, below: int) -> int | None:
        """Returns the first offset below another one that is available, or beyond the window."""
        return self._table.first_open(below)

    @property
    def locks(self) -> CarriedLocks:
        """What `put_back` takes, if this share partition must be loaded again."""
        return CarriedLocks.of(self._tables, self._delta(()))

    def occupancy(self) -> Occupancy:
        return occupancy_of(self._tables)

    def verify(self) -> None:
        """Raises `InvariantViolated` if the state contradicts itself."""
        self._tables.verify()
        if not self._schedule.has_ended and self._schedule.cursor.end > self._table.end:
            raise InvariantViolated(f"{self._schedule} is beyond the window, {self._table.end}")
        for span in self._tables.spans:
            if span.change is not None and span.change.write_id not in self._writes:
                raise InvariantViolated(f"{span} waits for a write that is over")
            if span.state in DONE and span.change is not None:
                raise InvariantViolated(f"{span} is done, and is to change")

    # Events

    def handle(self, event: Event, now: Now) -> list[Effect]:
        _HANDLERS[type(event)](self, event, now)
        effects, self._effects = self._effects, []
        return effects

    def put_back(self, locks: CarriedLocks) -> None:
        """Locks what members have still. Call it before `on_loaded`."""
        if locks.state_epoch == self._state_epoch:
            self._schedule = locks.carried_schedule(self._schedule)
            self._end_leader_epoch = locks.put_back(self._tables, self._end_leader_epoch)

    def on_loaded(self, now: Now) -> list[Effect]:
        """Returns what to do first, after the image was loaded. Call it once."""
        for span in self._tables.spans:
            if span.not_before_ms:
                self._set_timer(span.not_before_ms)
            if span.state is RecordState.ACQUIRED:
                # If the lock has ended, a write may just have failed.
                self._set_timer(max(span.lock_until_ms, now.ticks_ms + RETRY_MS))
        self._move_letters(now)
        effects, self._effects = self._effects, []
        return effects

    def _on_acquire(self, event: Acquire, now: Now) -> None:
        start = self._table.start
        table = self._tables.promoted if event.is_promoted else self._table
        run = Acquisition(table, event, self._settings, now, self._schedule)
        run.run()
        self._writes.note(run.facts, is_promoted=event.is_promoted)
        self.redelivered += run.redelivered
        if run.end_leader_epoch is not None:
            self._end_leader_epoch = run.end_leader_epoch
        self._expire(run.expired, now, is_promoted=event.is_promoted)
        self._drop(run.dropped, now)
        if event.batches:
            table.merge(event.read_from, event.batches[-1].last)
        self._drop_done()
        self._effects.append(Acquired(event.token, tuple(run.ranges)))
        for due_ms in run.due:
            self._set_timer(due_ms)
        if run.acquired:
            self._set_timer(now.ticks_ms + self._settings.record_lock_ms)
        if self._table.start > start:
            self._effects.append(WakeFetches())

    def _expire(self, expired: Iterable[Span], now: Now, *, is_promoted: bool) -> None:
        if self._settings.dead_letters:
            decision = give_up(GiveUpReason.EXPIRED, self._settings)
            self._write([(span, decision) for span in expired], now)
            return
        for span in expired:
            span.state, span.not_before_ms = RecordState.ARCHIVED, 0
            self._writes.note([(span.first, span.last)], is_promoted=is_promoted)

    def _drop(self, spans: list[Span], now: Now) -> None:
        self.dropped += sum(map(len, spans))
        decision = give_up(GiveUpReason.LENGTH_LIMIT, self._settings)
        self._write([(span, decision) for span in spans], now)

    def _on_acknowledge(self, event: Acknowledge, now: Now) -> None:
        try:
            parts = checked_parts(event, self._tables, self._settings)
        except KafkaError as error:
            self._effects.append(Acknowledged(event.token, error.code))
            return
        decided: list[tuple[Span, Decision]] = []
        for run, table, first, last in parts:
            for span in table.cut(first, last):
                if run.type is AckType.RENEW:
                    span.lock_until_ms = now.ticks_ms + self._settings.record_lock_ms
                else:
                    decided.append((span, decide(span, run.type, self._settings, now)))
        if decided:
            self._write(decided, now, event.token)
        else:
            self._effects.append(Acknowledged(event.token, ErrorCode.NONE))
        for first, last in stretches(parts):
            self._tables.merge(first, last)

    def _on_release_member(self, event: ReleaseMember, now: Now) -> None:
        held = [
            span
            for span in self._tables.spans
            if span.state is RecordState.ACQUIRED and span.owner == event.member_id
        ]
        for span in held:
            # If the write fails, the timer releases it.
            span.lock_until_ms = now.ticks_ms
        free = [span for span in held if span.change is None]
        settings, backoff = self._settings, event.with_backoff
        self._write([(span, release(span, settings, now, backoff=backoff)) for span in free], now)

    def _on_log_start(self, event: LogStartMoved, now: Now) -> None:
        deleted = self._tables.promoted.drop_below(event.log_start_offset)
        self._writes.add_facts(promoted=deleted)
        is_moved = event.log_start_offset > self._table.start
        if is_moved:
            self._table.drop_below(event.log_start_offset)
        if is_moved or deleted:
            self._drop_done()
            self._move_letters(now)
            self._effects.append(WakeFetches())

    def _on_timer(self, event: TimerFired, now: Now) -> None:
        self._timer_ms = None
        ended: list[Span] = []
        times: list[int] = []
        is_due = False
        for span in self._tables.spans:
            if span.change is not None:
                continue
            if span.state is RecordState.ACQUIRED:
                if span.lock_until_ms <= now.ticks_ms:
                    ended.append(span)
                else:
                    times.append(span.lock_until_ms)
            elif span.state is RecordState.AVAILABLE and span.not_before_ms:
                if span.not_before_ms <= now.ticks_ms:
                    is_due = True
                    span.not_before_ms = 0
                else:
                    times.append(span.not_before_ms)
        if times:
            self._set_timer(max(min(times), now.ticks_ms + TIMER_STEP_MS))
        self._write([(span, release(span, self._settings, now)) for span in ended], now)
        self._move_letters(now)
        self._tables.merge(0, self._table.end - 1)
        if is_due:
            self._effects.append(WakeFetches())

    def _on_dead_letters(self, event: DeadLettersWritten, now: Now) -> None:
        self._letters.on_written(event, self._tables.spans)
        self._move_letters(now)

    def _on_producer_id(self, event: ProducerIdTaken, now: Now) -> None:
        self._letters.on_producer_id(event.producer_id)
        self._move_letters(now)

    def _move_letters(self, now: Now) -> None:
        """Archives records whose dead letters are written, and begins to write the next ones."""
        if not self._settings.dead_letters:
            self._letters.skip(self._tables.spans)
        archived = Decision(RecordState.ARCHIVED)
        spans = self._letters.to_archive(self._tables)
        self._write([(span, archived) for span in spans], now)
        while isinstance(step := self._letters.next_step(self._tables.spans), NumberAgain):
            again = [(span, Decision(span.state, reason=span.reason)) for span in step.spans]
            self._write(again, now)
        if step is not None:
            self._effects.append(step)

    def _on_drop_oldest(self, event: DropOldest, now: Now) -> None:
        is_beyond = event.below > self._table.end
        spans, scheduled = oldest(self._table, event, self._schedule)
        self._writes.add_facts(window=scheduled)
        if is_beyond:
            self._end_leader_epoch = event.leader_epoch
        self._drop(spans, now)
        self._drop_done()

    def _on_settings(self, event: SettingsChanged, now: Now) -> None:
        has_more_room = event.settings.in_flight_max > self._settings.in_flight_max
        self._settings = event.settings
        self._move_letters(now)
        if has_more_room:
            self._effects.append(WakeFetches())

    def _on_switch_schedule(self, event: SwitchSchedule, now: Now) -> None:
        self._schedule = self._schedule.switched(self._table.end, is_timed=event.is_timed)

    def _on_promote(self, event: Promote, now: Now) -> None:
        if not (event.offsets or event.is_stored):
            # A closed schedule ends when its last record was promoted, and the window is past it.
            is_last = event.is_last and self._table.start >= self._schedule.ceiling
            self._schedule = self._schedule.advanced(event.cursor, is_last=is_last)
            return
        promotion = Promotion(ranges_of(event.offsets), event.cursor, event.attachment)
        write_id, start = self._writes.next_id(), self._table.start
        facts = self._writes.begin(write_id, start, [], promotion=promotion)
        window, promoted = facts.stored()
        new = [StoredSpan(*each, RecordState.AVAILABLE, 0) for each in promotion.ranges]
        schedule = self._schedule.advanced(event.cursor)
        delta = self._delta(window)._replace(schedule=schedule, attachment=event.attachment)
        self._effects.append(Write(write_id, delta._replace(promoted=(*promoted, *new))))

    # Writes

    def _write(
        self, decided: list[tuple[Span, Decision]], now: Now, token: Token | None = None
    ) -> None:
        """Stores decisions, with all facts that are not stored yet."""
        if not decided:
            return
        write_id = self._writes.next_id()
        stored: list[StoredSpan] = []
        promoted: list[StoredSpan] = []
        for span, decision in decided:
            is_letter = decision.state is RecordState.ARCHIVING
            letter_shift = self._letters.shift(span) if is_letter else 0
            span.change = Change(write_id, *decision, letter_shift)
            due_ms = 0
            if decision.not_before_ms:
                due_ms = now.wall_ms + decision.not_before_ms - now.ticks_ms
            details = (span.delivery_count, due_ms, decision.reason, letter_shift)
            (promoted if span.first in self._tables.promoted else stored).append(
                StoredSpan(span.first, span.last, decision.state, *details)
            )
        changed = [(span.first, span.last) for span, _ in decided]
        facts = self._writes.begin(write_id, self._table.start, changed, token)
        window_facts, promoted_facts = facts.stored()
        delta = self._delta([*stored, *window_facts])
        delta = delta._replace(promoted=(*promoted, *promoted_facts))
        self._effects.append(Write(write_id, delta))

    def _delta(self, spans: Iterable[StoredSpan]) -> Delta:
        return Delta(
            self._state_epoch,
            self._table.start,
            self._table.end,
            self._end_leader_epoch,
            tuple(spans),
            self._letters.numbers,
            schedule=self._schedule,
        )

    def _on_committed(self, event: WriteCommitted, now: Now) -> None:
        write = self._writes.end(event.write_id)
        is_available = has_letters = has_room = False
        if write.promotion is not None:
            is_available = bool(write.promotion.ranges)
            self._schedule = self._schedule.advanced(write.promotion.cursor)
            self.attachment = write.promotion.attachment or self.attachment
            for first, last in write.promotion.ranges:
                self._tables.promoted.insert(first, last)
        for span, change in changed_spans(self._tables, write, event.write_id):
            has_letters = has_letters or RecordState.ARCHIVING in (span.state, change.state)
            has_room = has_room or span.is_passed_over
            span.state, span.not_before_ms = change.state, change.not_before_ms
            span.reason, span.owner, span.lock_until_ms = change.reason, None, 0
            span.letter_shift, span.change = change.letter_shift, None
            if change.state is RecordState.AVAILABLE:
                is_available = is_available or change.not_before_ms <= now.ticks_ms
                if change.not_before_ms > now.ticks_ms:
                    self._set_timer(change.not_before_ms)
        if write.token is not None:
            self._effects.append(Acknowledged(write.token, ErrorCode.NONE))
        for first, last in write.changed:
            self._tables.merge(first, last)
        if self._drop_done() or is_available or has_room:
            self._effects.append(WakeFetches())
        if has_letters:
            self._move_letters(now)

    def _on_failed(self, event: WriteFailed, now: Now) -> None:
        write = self._writes.end(event.write_id)
        self._writes.add_facts(*write.facts)
        for span, _ in changed_spans(self._tables, write, event.write_id):
            span.change = None
        for first, last in write.changed:
            self._tables.merge(first, last)
        if write.token is not None:
            self._effects.append(Acknowledged(write.token, event.error))
        self._set_timer(now.ticks_ms + RETRY_MS)

    # Small steps

    def _drop_done(self) -> bool:
        if is_removed := self._tables.drop_done():
            self._writes.forget_below(self._table.start)
        return is_removed

    def _set_timer(self, at_ms: int) -> None:
        if self._timer_ms is None or at_ms < self._timer_ms:
            self._timer_ms = at_ms
            self._effects.append(SetTimer(None, at_ms))


_HANDLERS: Final[dict[type, Callable[[SharePartition, Any, Now], None]]] = {
    Acquire: SharePartition._on_acquire,
    Acknowledge: SharePartition._on_acknowledge,
    ReleaseMember: SharePartition._on_release_member,
    LogStartMoved: SharePartition._on_log_start,
    TimerFired: SharePartition._on_timer,
    WriteCommitted: SharePartition._on_committed,
    WriteFailed: SharePartition._on_failed,
    DeadLettersWritten: SharePartition._on_dead_letters,
    ProducerIdTaken: SharePartition._on_producer_id,
    DropOldest: SharePartition._on_drop_oldest,
    SettingsChanged: SharePartition._on_settings,
    SwitchSchedule: SharePartition._on_switch_schedule,
    Promote: SharePartition._on_promote,
}
