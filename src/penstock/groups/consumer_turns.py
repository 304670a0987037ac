"""Decides about consumer groups one append at a time.

While records of a group are being appended, further requests to it wait. Then they are decided
together, and their records are appended together. So a heartbeat is answered when its records are
committed, and a rebalance of a large group needs few appends.

A decision changes the group in memory at once, so that the next one builds on it. If its records
cannot be appended, the group is set back to what is committed, which the shard's image has.

The records of a decision are in one batch if they fit. Those that convert a classic group, or
convert a group to a classic one, always do. Otherwise the next batch is appended when the one
before it is committed: the log may have the first part of a decision, and never its end alone. So
the state is sound after each record of a decision that may be that large: a new epoch comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.coordination.append_errors import append_error
from penstock.coordination.batches import record_bytes, split_whole
from penstock.coordination.effects import LogRecord, Now
from penstock.groups import consumer_timers
from penstock.groups.consumer.group import Asked, ConsumerGroup, Turn
from penstock.groups.consumer_migration import (
    downgrade,
    downgrade_is_due,
    downgrade_records,
    take_over,
)
from penstock.groups.formats import NO_TIMESTAMP
from penstock.groups.group import Group, State
from penstock.groups.rebalance import restore
from penstock.groups.shard_state import ShardState
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages.base import Response

_PARTS_OF_A_BATCH: Final = 2
"""Decisions are added to an append until it fills one of so many parts of a batch."""
_DECISIONS_MAX: Final = 100
"""How many decisions are made together. More would block the event loop, because all members of a
large group may be waiting."""


class Answer(NamedTuple):
    asked: Asked
    response: Response | None


def submit(shard: ShardState, group: ConsumerGroup, asked: Asked, now: Now) -> None:
    """Decides at once, or as soon as the records of earlier decisions are committed.

    `group` may be new: it becomes the group of its id with its first record.
    """
    if group.is_dead or (group.is_late and asked.token is not None):
        _refuse(shard, asked, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    group.queue.append(asked)
    if not group.is_writing:
        _take_turns(shard, group, now)


def _take_turns(shard: ShardState, group: ConsumerGroup, now: Now) -> None:
    """Decides about what waits, and starts to append the records."""
    turn = Turn(group, now)
    answers: list[Answer] = []
    room = shard.batch_bytes_max() // _PARTS_OF_A_BATCH
    size = 0
    is_downgrade = False
    while group.queue and size < room and not is_downgrade and len(answers) < _DECISIONS_MAX:
        turn.next_decision()
        asked = group.queue.popleft()
        answers.append(_decide(asked, turn))
        size += sum(map(record_bytes, turn.records))
        is_downgrade = bool(turn.records) and downgrade_is_due(shard, turn)
    if is_downgrade:
        turn.records += downgrade_records(shard, group, now)
    turn.next_decision()
    if not turn.earlier:
        for answer in answers:
            _reply(shard, answer)
        if group.queue:
            _take_turns(shard, group, now)
        return
    shard.readers.note(group)
    is_upgrade = bool(group.arrival)
    conversion = _adopt(shard, group, now)
    batches = list(split_whole([conversion, *turn.earlier], shard.batch_bytes_max()))
    group.is_writing = True
    TurnsStored(group, answers, batches, is_upgrade, is_downgrade).start_next(shard, now)


def _decide(asked: Asked, turn: Turn) -> Answer:
    try:
        return Answer(asked, asked.decide(turn))
    except KafkaError as error:
        return Answer(asked, None if asked.refuse is None else asked.refuse(error))


def _reply(shard: ShardState, answer: Answer) -> None:
    if answer.asked.token is not None and answer.response is not None:
        shard.effects.reply(answer.asked.token, answer.response)


def _refuse(shard: ShardState, asked: Asked, error: KafkaError) -> None:
    if asked.refuse is not None:
        _reply(shard, Answer(asked, asked.refuse(error)))


def refuse_waiting(shard: ShardState, group: ConsumerGroup, code: ErrorCode) -> None:
    """Answers all requests that wait for their turn. Timers that fired keep waiting."""
    waiting = list(group.queue)
    group.queue.clear()
    for asked in waiting:
        if asked.token is None:
            group.queue.append(asked)
        else:
            _refuse(shard, asked, KafkaError(code))


def _adopt(shard: ShardState, group: ConsumerGroup, now: Now) -> list[LogRecord]:
    """Makes a new group the one of its id. A classic group is converted: its offsets stay.

    Returns the records of the conversion.
    """
    before = shard.groups.get(group.group_id)
    if before is group:
        return []
    shard.groups[group.group_id] = group
    return take_over(shard, before, group, now) if isinstance(before, Group) else []


def is_convertible(group: Group) -> bool:
    """Returns whether a classic group can become a consumer group at once."""
    return group.state is State.EMPTY and not group.members


@dataclass(slots=True)
class TurnsStored:
    """The records of decisions about one group, appended batch by batch."""

    group: ConsumerGroup
    answers: Sequence[Answer]
    batches: list[list[LogRecord]]
    is_upgrade: bool = False
    """The first batch replaces a classic group with members."""
    is_downgrade: bool = False
    """The last batch replaces the group with a classic one."""

    def start_next(self, shard: ShardState, now: Now) -> None:
        shard.appends.start(self.batches.pop(0), self, now)

    def committed(self, shard: ShardState, now: Now) -> None:
        if self.batches:
            self.start_next(shard, now)
            return
        self.group.is_writing = False
        shard.counters.upgrades += self.is_upgrade
        shard.counters.downgrades += self.is_downgrade
        for answer in self.answers:
            _reply(shard, answer)
        if self.is_downgrade:
            downgrade(shard, self.group, now)
        self._go_on(shard, now)

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        self.group.is_writing = False
        refusal = KafkaError(append_error(error))
        for answer in self.answers:
            _refuse(shard, answer.asked, refusal)
        _roll_back(shard, self.group, now)
        self._go_on(shard, now)

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None:
        # Until the outcome is known, requests are refused: they would wait too long.
        self.group.is_late = True
        for answer in self.answers:
            _refuse(shard, answer.asked, KafkaError(code))
        refuse_waiting(shard, self.group, code)

    def _go_on(self, shard: ShardState, now: Now) -> None:
        group = self.group
        was_late, group.is_late = group.is_late, False
        if shard.groups.get(group.group_id) is not group:
            refuse_waiting(shard, group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        if was_late:
            consumer_timers.restart(shard, group, now)
        if group.queue:
            _take_turns(shard, group, now)


def _roll_back(shard: ShardState, group: ConsumerGroup, now: Now) -> None:
    """Sets a group back to what is committed."""
    stored = shard.image.consumer_groups.get(group.group_id)
    if stored is not None:
        group.reset(stored)
        shard.readers.note(group)
        consumer_timers.match_members(shard, group, now)
        return
    consumer_timers.cancel_all(shard, group)
    group_id = group.group_id
    shard.readers.forget(group_id)
    value = shard.image.groups.get(group_id)
    is_held = group_id in shard.image.group_ids() or bool(group.commits_in_flight)
    if value is None and not is_held:
        del shard.groups[group_id]
        return
    if value is not None:
        classic = restore(shard, group_id, value, now)
    else:
        classic = shard.groups[group_id] = Group(group_id, NO_TIMESTAMP)
    classic.commits_in_flight = group.commits_in_flight
    classic.unstable_in_flight = group.unstable_in_flight
