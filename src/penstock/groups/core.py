"""Shared by the modules of a shard: its state, the effects of the current call, appends in flight.

An append is in flight from its effect until its outcome is reported. The caller of `append` passes
an `Outcome` object, which says what to do then. Records are applied to the image only here, once
they are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from penstock.groups.config import GroupConfig
from penstock.groups.effects import (
    Append,
    CancelTimer,
    Effect,
    LogRecord,
    Now,
    Reply,
    SetTimer,
    TimerKey,
    TimerKind,
    Token,
    TransactionalProducer,
)
from penstock.groups.group import Group, InvariantViolated, Member
from penstock.groups.image import NO_PRODUCER, ShardImage
from penstock.groups.parts import Together, split
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.base import Response


class Outcome(Protocol):
    """What happens once the result of an append is known."""

    def committed(self, core: Core, now: Now) -> None: ...

    def failed(self, core: Core, error: ErrorCode, now: Now) -> None: ...

    def abandoned(self, core: Core, code: ErrorCode) -> None:
        """Answers the waiting requests: the result is not known in time, or not to this shard."""


class InFlight(NamedTuple):
    records: tuple[LogRecord, ...]
    outcome: Outcome
    producer_id: int


class Core:
    def __init__(
        self,
        config: GroupConfig,
        new_member_id: Callable[[str], str],
        batch_bytes_max: Callable[[], int],
    ) -> None:
        self.config: Final = config
        self.new_member_id: Final = new_member_id
        self.batch_bytes_max: Final = batch_bytes_max
        self.image = ShardImage()
        self.groups: dict[str, Group] = {}
        self.in_flight: dict[int, InFlight] = {}
        self.rebalances = 0
        """How many generations with members have begun here; for metrics."""
        self._next_append_id = 0
        self._effects: list[Effect] = []
        self._answered: set[Token] = set()
        """Tokens that were answered early, although their append is still in flight."""

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def reply(self, token: Token, response: Response) -> None:
        if token not in self._answered:
            self._effects.append(Reply(token, response))

    # Appends

    def append(
        self,
        records: Sequence[LogRecord],
        outcome: Outcome,
        now: Now,
        producer: TransactionalProducer | None = None,
    ) -> None:
        append_id = self._next_append_id
        self._next_append_id += 1
        producer_id = NO_PRODUCER if producer is None else producer.producer_id
        self.in_flight[append_id] = InFlight(tuple(records), outcome, producer_id)
        self._effects.append(Append(append_id, tuple(records), now.wall_ms, producer))

    def append_in_parts(
        self,
        records: Sequence[LogRecord],
        outcome: Outcome,
        now: Now,
        producer: TransactionalProducer | None = None,
    ) -> None:
        """Appends records that need not be atomic, in as few batches as possible."""
        parts = list(split(records, self.batch_bytes_max()))
        together = outcome if len(parts) == 1 else Together(outcome, len(parts))
        for part in parts:
            self.append(part, together, now, producer)

    def on_committed(self, append_id: int, now: Now) -> None:
        in_flight = self._finish(append_id)
        for record in in_flight.records:
            self.image.replay(record.key, record.value, in_flight.producer_id)
        in_flight.outcome.committed(self, now)
        self._forget_answered()

    def on_append_failed(self, append_id: int, error: ErrorCode, now: Now) -> None:
        self._finish(append_id).outcome.failed(self, error, now)
        self._forget_answered()

    def on_append_late(self, append_id: int) -> None:
        """Answers the requests that wait for a slow append; its outcome is still to be reported."""
        in_flight = self.in_flight.get(append_id)
        if in_flight is not None:
            before = len(self._effects)
            in_flight.outcome.abandoned(self, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            replies = [each for each in self._effects[before:] if isinstance(each, Reply)]
            self._answered.update(reply.token for reply in replies)

    def _forget_answered(self) -> None:
        if self._answered and not self.in_flight:
            self._answered.clear()

    def _finish(self, append_id: int) -> InFlight:
        oldest = next(iter(self.in_flight), None)
        if append_id != oldest:
            raise InvariantViolated(
                f"append {append_id} was reported before append {oldest}: report appends in order"
            )
        return self.in_flight.pop(append_id)

    # Timers

    def set_timer(self, key: TimerKey, at_ms: int) -> None:
        self._effects.append(SetTimer(key, at_ms))

    def cancel_timer(self, key: TimerKey) -> None:
        self._effects.append(CancelTimer(key))

    def set_join_timer(self, group: Group, at_ms: int) -> None:
        group.join_timer_at_ms = at_ms
        self.set_timer(TimerKey(TimerKind.JOIN, group.group_id), at_ms)

    def cancel_join_timer(self, group: Group) -> None:
        if group.join_timer_at_ms is not None:
            group.join_timer_at_ms = None
            self.cancel_timer(TimerKey(TimerKind.JOIN, group.group_id))

    def set_sync_timer(self, group: Group, at_ms: int) -> None:
        group.sync_timer_at_ms = at_ms
        self.set_timer(TimerKey(TimerKind.SYNC, group.group_id), at_ms)

    def cancel_sync_timer(self, group: Group) -> None:
        if group.sync_timer_at_ms is not None:
            group.sync_timer_at_ms = None
            self.cancel_timer(TimerKey(TimerKind.SYNC, group.group_id))

    def extend_session(
        self, group: Group, member: Member, now: Now, timeout_ms: int | None = None
    ) -> None:
        """Restarts the member's session timeout, because the member made contact.

        A timer that is set for an earlier time stays: when it fires, it is set again for the rest.
        So heartbeats, which are frequent, need no timer changes.
        """
        if timeout_ms is None:
            timeout_ms = member.session_timeout_ms
        member.session_ends_ms = now.ticks_ms + timeout_ms
        timer_at_ms = member.session_timer_at_ms
        if timer_at_ms is None or timer_at_ms > member.session_ends_ms:
            self.set_session_timer(group, member)

    def set_session_timer(self, group: Group, member: Member) -> None:
        member.session_timer_at_ms = member.session_ends_ms
        self.set_timer(
            TimerKey(TimerKind.SESSION, group.group_id, member.member_id), member.session_ends_ms
        )

    def cancel_session_timer(self, group: Group, member: Member) -> None:
        if member.session_timer_at_ms is not None:
            member.session_timer_at_ms = None
            self.cancel_timer(TimerKey(TimerKind.SESSION, group.group_id, member.member_id))
