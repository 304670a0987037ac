"""One partition as one share group sees it: who has which record, and what is done. Pure.

    handle(event, now)          returns effects; `events` has both
    next_fetch_offset(now)      where the shell reads the log for the next `Acquire`

What is durable is not kept here: `state_writer` has it as an image, and this machine is built from
that image.

Facts of the log take effect at once: the log proves them, and a later leader finds them again.
They are stored with the next write. Decisions of members and of clocks take effect when they are
durable: until then a span keeps its state and has a `Change`. If its write fails, the change is
forgotten. Locks are not stored. A lock ends, if nothing else happens, by a decision of this
machine; if the write of that fails, it is tried again.

Invariants, besides those of `SpanTable.verify`: everything below the start is durable or a fact. At
most one change is under way for each offset. So deltas under way never touch the same offset, and
the order in which they are committed does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock.coordination.effects import Now, SetTimer, Token
from penstock.coordination.invariants import InvariantViolated
from penstock.shares.acknowledgements import Run, runs_of
from penstock.shares.acquisition import Acquisition
from penstock.shares.decisions import Decision, decide, give_up, release
from penstock.shares.events import (
    Acknowledge,
    Acknowledged,
    Acquire,
    Acquired,
    DeadLettersWritten,
    Effect,
    Event,
    LogStartMoved,
    ReleaseMember,
    SettingsChanged,
    TimerFired,
    WakeFetches,
    Write,
    WriteCommitted,
    WriteDeadLetters,
    WriteFailed,
)
from penstock.shares.image import Delta, ShareImage, StoredSpan
from penstock.shares.settings import ShareSettings
from penstock.shares.spans import Change, Span, SpanTable
from penstock.shares.states import DONE, AckType, GiveUpReason, RecordState
from penstock.wire.errors import ErrorCode, KafkaError

RETRY_MS: Final = 1000
"""After this time a decision of the machine is tried again, if its write has failed."""
TIMER_STEP_MS: Final = 50
"""Timers are at least this far apart. Each of them visits all spans."""


@dataclass(frozen=True, slots=True)
class _WriteUnderWay:
    delta: Delta
    token: Token | None
    facts: list[tuple[int, int]]
    """Facts that this write stores, too."""
    changed: list[tuple[int, int]]


class Occupancy(NamedTuple):
    """The number of offsets of the window in each state, for metrics and for the lag."""

    available: int
    acquired: int
    archiving: int
    done: int


class SharePartition:
    """See the module's docstring."""

    __slots__ = (
        "_effects",
        "_end_leader_epoch",
        "_facts",
        "_letters_written",
        "_next_write_id",
        "_settings",
        "_state_epoch",
        "_table",
        "_timer_ms",
        "_writes",
        "redelivered",
    )

    def __init__(self, settings: ShareSettings, image: ShareImage, now: Now) -> None:
        """`image` is what the state log has. It is only read."""
        self._settings = settings
        self._state_epoch = image.state_epoch
        self._end_leader_epoch = image.end_leader_epoch
        self._table = SpanTable(image.start_offset)
        self._facts: list[tuple[int, int]] = []
        self._letters_written: list[tuple[int, int]] = []
        self._writes: dict[int, _WriteUnderWay] = {}
        self._next_write_id = 0
        self._timer_ms: int | None = None
        self._effects: list[Effect] = []
        self.redelivered = 0
        """Deliveries that were not the first of their record."""
        self._load(image, now)

    # What others read

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
    def is_at_rest(self) -> bool:
        """Whether nothing is acquired or under way. Then the image has all that matters."""
        moving = (RecordState.ACQUIRED, RecordState.ARCHIVING)
        return not self._writes and all(span.state not in moving for span in self._table.spans)

    def next_fetch_offset(self, now: Now) -> int | None:
        """Returns where something may be acquired; None if there is nothing, and no room."""
        for span in self._table.spans:
            if span.is_open and span.not_before_ms <= now.ticks_ms:
                return span.first
        return self._table.end if len(self._table) < self._settings.in_flight_max else None

    def occupancy(self) -> Occupancy:
        counts = dict.fromkeys(RecordState, 0)
        for span in self._table.spans:
            counts[span.state] += len(span)
        return Occupancy(
            counts[RecordState.AVAILABLE],
            counts[RecordState.ACQUIRED],
            counts[RecordState.ARCHIVING],
            counts[RecordState.ACKNOWLEDGED] + counts[RecordState.ARCHIVED],
        )

    def verify(self) -> None:
        """Raises `InvariantViolated` if the state contradicts itself."""
        self._table.verify()
        for span in self._table.spans:
            if span.change is not None and span.change.write_id not in self._writes:
                raise InvariantViolated(f"{span} waits for a write that is over")
            if span.state in DONE and span.change is not None:
                raise InvariantViolated(f"{span} is done, and is to change")

    # Events

    def handle(self, event: Event, now: Now) -> list[Effect]:
        _HANDLERS[type(event)](self, event, now)
        effects, self._effects = self._effects, []
        return effects

    def on_loaded(self, now: Now) -> list[Effect]:
        """Returns what to do first, after the image was loaded. Call it once."""
        for span in self._table.spans:
            if span.not_before_ms:
                self._set_timer(span.not_before_ms)
        self._ask_for_letters(self._table.spans, now)
        effects, self._effects = self._effects, []
        return effects

    def _on_acquire(self, event: Acquire, now: Now) -> None:
        start = self._table.start
        run = Acquisition(self._table, event, self._settings, now)
        run.run()
        self._facts += run.facts
        self.redelivered += run.redelivered
        if run.end_leader_epoch is not None:
            self._end_leader_epoch = run.end_leader_epoch
        if run.expired:
            self._expire(run.expired, now)
        if event.batches:
            self._table.merge(event.read_from, event.batches[-1].last)
        self._drop_done()
        self._effects.append(Acquired(event.token, tuple(run.ranges)))
        for due_ms in run.due:
            self._set_timer(due_ms)
        if run.acquired:
            self._set_timer(now.ticks_ms + self._settings.record_lock_ms)
        if self._table.start > start:
            self._effects.append(WakeFetches())

    def _expire(self, expired: Iterable[Span], now: Now) -> None:
        if self._settings.dead_letters:
            decision = give_up(GiveUpReason.EXPIRED, self._settings)
            self._write([(span, decision) for span in expired], now)
            return
        for span in expired:
            span.state, span.not_before_ms = RecordState.ARCHIVED, 0
            self._facts.append((span.first, span.last))

    def _on_acknowledge(self, event: Acknowledge, now: Now) -> None:
        try:
            runs = runs_of(event.batches, is_renew=event.is_renew)
            self._check(runs, event.member_id)
        except KafkaError as error:
            self._effects.append(Acknowledged(event.token, error.code))
            return
        decided: list[tuple[Span, Decision]] = []
        for run in runs:
            for span in self._table.cut(run.first, run.last):
                if run.type is AckType.RENEW:
                    span.lock_until_ms = now.ticks_ms + self._settings.record_lock_ms
                else:
                    decided.append((span, decide(span, run.type, self._settings, now)))
        if decided:
            self._write(decided, now, event.token)
        else:
            self._effects.append(Acknowledged(event.token, ErrorCode.NONE))
        for run in runs:
            self._table.merge(run.first, run.last)

    def _check(self, runs: Iterable[Run], member_id: str) -> None:
        """Raises `KafkaError` if the member may not acknowledge one of these offsets.

        Offsets below the start are done, or deleted from the log.
        """
        for run in runs:
            if run.type is AckType.RENEW and not self._settings.renew_enabled:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD_STATE,
                    "the group does not allow renewals: set share.renew.acknowledge.enable",
                )
            is_held = run.last < self._table.end and all(
                span.is_held_by(member_id) for span in self._table.overlapping(*run[:2])
            )
            if not is_held:
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE)

    def _on_release_member(self, event: ReleaseMember, now: Now) -> None:
        held = [
            span
            for span in self._table.spans
            if span.state is RecordState.ACQUIRED and span.owner == event.member_id
        ]
        for span in held:
            # If the write fails, the timer releases it.
            span.lock_until_ms = now.ticks_ms
        free = [span for span in held if span.change is None]
        settings, backoff = self._settings, event.with_backoff
        self._write([(span, release(span, settings, now, backoff=backoff)) for span in free], now)

    def _on_log_start(self, event: LogStartMoved, now: Now) -> None:
        if event.log_start_offset > self._table.start:
            self._table.drop_below(event.log_start_offset)
            self._drop_done()
            self._effects.append(WakeFetches())

    def _on_timer(self, event: TimerFired, now: Now) -> None:
        self._timer_ms = None
        ended: list[Span] = []
        times: list[int] = []
        is_due = False
        for span in self._table.spans:
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
        self._archive_letters(now)
        if self._table.spans:
            self._table.merge(self._table.start, self._table.end - 1)
        if is_due:
            self._effects.append(WakeFetches())

    def _on_dead_letters(self, event: DeadLettersWritten, now: Now) -> None:
        self._letters_written.append((event.first, event.last))
        self._archive_letters(now)

    def _archive_letters(self, now: Now) -> None:
        """Archives records whose dead letters are written, unless a write of that is under way."""
        archived = Decision(RecordState.ARCHIVED)
        spans: list[Span] = []
        for first, last in self._letters_written:
            spans += [
                span
                for span in self._table.cut(first, last)
                if span.state is RecordState.ARCHIVING and span.change is None
            ]
        self._write([(span, archived) for span in spans], now)
        self._letters_written = [
            (first, last)
            for first, last in dict.fromkeys(self._letters_written)
            if any(
                span.state is RecordState.ARCHIVING for span in self._table.overlapping(first, last)
            )
        ]

    def _on_settings(self, event: SettingsChanged, now: Now) -> None:
        has_more_room = event.settings.in_flight_max > self._settings.in_flight_max
        self._settings = event.settings
        if not event.settings.dead_letters:
            self._ask_for_letters(self._table.spans, now)
        if has_more_room:
            self._effects.append(WakeFetches())

    # Writes

    def _write(
        self, decided: list[tuple[Span, Decision]], now: Now, token: Token | None = None
    ) -> None:
        """Stores decisions, with all facts that are not stored yet."""
        if not decided:
            return
        write_id, self._next_write_id = self._next_write_id, self._next_write_id + 1
        stored: list[StoredSpan] = []
        for span, decision in decided:
            span.change = Change(write_id, *decision)
            due_ms = 0
            if decision.not_before_ms:
                due_ms = now.wall_ms + decision.not_before_ms - now.ticks_ms
            stored.append(
                StoredSpan(
                    span.first,
                    span.last,
                    decision.state,
                    span.delivery_count,
                    due_ms,
                    decision.reason,
                )
            )
        facts = [each for each in self._facts if each[1] >= self._table.start]
        self._facts = []
        delta = self._delta([*stored, *_stored_facts(facts)])
        changed = [(span.first, span.last) for span, _ in decided]
        self._writes[write_id] = _WriteUnderWay(delta, token, facts, changed)
        self._effects.append(Write(write_id, delta))

    def _delta(self, spans: Iterable[StoredSpan]) -> Delta:
        return Delta(
            self._state_epoch,
            self._table.start,
            self._table.end,
            self._end_leader_epoch,
            tuple(spans),
        )

    def _on_committed(self, event: WriteCommitted, now: Now) -> None:
        write = self._take(event.write_id)
        is_available = False
        changed = self._changed(write, event.write_id)
        for span, change in changed:
            span.state, span.not_before_ms = change.state, change.not_before_ms
            span.reason, span.owner, span.lock_until_ms = change.reason, None, 0
            span.change = None
            if change.state is RecordState.AVAILABLE:
                is_available = is_available or change.not_before_ms <= now.ticks_ms
                if change.not_before_ms > now.ticks_ms:
                    self._set_timer(change.not_before_ms)
        if write.token is not None:
            self._effects.append(Acknowledged(write.token, ErrorCode.NONE))
        self._ask_for_letters([span for span, _ in changed], now)
        for first, last in write.changed:
            self._table.merge(first, last)
        if self._drop_done() or is_available:
            self._effects.append(WakeFetches())

    def _on_failed(self, event: WriteFailed, now: Now) -> None:
        write = self._take(event.write_id)
        self._facts += write.facts
        for span, _ in self._changed(write, event.write_id):
            span.change = None
        for first, last in write.changed:
            self._table.merge(first, last)
        if write.token is not None:
            self._effects.append(Acknowledged(write.token, event.error))
        self._set_timer(now.ticks_ms + RETRY_MS)

    def _take(self, write_id: int) -> _WriteUnderWay:
        write = self._writes.pop(write_id, None)
        if write is None:
            raise InvariantViolated(f"write {write_id} was reported, but is not under way")
        return write

    def _changed(self, write: _WriteUnderWay, write_id: int) -> list[tuple[Span, Change]]:
        """Returns the spans that wait for this write. The log start may have passed some."""
        return [
            (span, span.change)
            for first, last in write.changed
            for span in self._table.overlapping(first, last)
            if span.change is not None and span.change.write_id == write_id
        ]

    # Small steps

    def _load(self, image: ShareImage, now: Now) -> None:
        table = self._table
        longest_ms = max(self._settings.backoff_ms, self._settings.backoff_max_ms)
        for stored in image.spans:
            if stored.first > table.end:
                table.extend(Span(table.end, stored.first - 1, RecordState.AVAILABLE))
            wait_ms = min(max(0, stored.due_ms - now.wall_ms), longest_ms)
            span = Span(
                stored.first,
                stored.last,
                stored.state,
                stored.delivery_count,
                not_before_ms=now.ticks_ms + wait_ms if wait_ms else 0,
                reason=stored.reason,
            )
            table.extend(span)

    def _ask_for_letters(self, spans: Iterable[Span], now: Now) -> None:
        """Asks for the dead letters of these spans; without the setting, archives them."""
        archiving = [span for span in spans if span.state is RecordState.ARCHIVING]
        if not self._settings.dead_letters:
            self._letters_written += [(span.first, span.last) for span in archiving]
            self._archive_letters(now)
            return
        self._effects += [
            WriteDeadLetters(span.first, span.last, span.delivery_count, span.reason)
            for span in archiving
        ]

    def _drop_done(self) -> bool:
        moved = self._table.drop_done()
        if moved:
            self._facts = [each for each in self._facts if each[1] >= self._table.start]
        return moved

    def _set_timer(self, at_ms: int) -> None:
        if self._timer_ms is None or at_ms < self._timer_ms:
            self._timer_ms = at_ms
            self._effects.append(SetTimer(None, at_ms))


def _stored_facts(facts: Iterable[tuple[int, int]]) -> list[StoredSpan]:
    return [StoredSpan(first, last, RecordState.ARCHIVED, 0) for first, last in facts]


_HANDLERS: Final[dict[type, Callable[[SharePartition, Any, Now], None]]] = {
    Acquire: SharePartition._on_acquire,
    Acknowledge: SharePartition._on_acknowledge,
    ReleaseMember: SharePartition._on_release_member,
    LogStartMoved: SharePartition._on_log_start,
    TimerFired: SharePartition._on_timer,
    WriteCommitted: SharePartition._on_committed,
    WriteFailed: SharePartition._on_failed,
    DeadLettersWritten: SharePartition._on_dead_letters,
    SettingsChanged: SharePartition._on_settings,
}
