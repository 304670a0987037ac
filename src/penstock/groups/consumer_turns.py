"""Decides about consumer groups one append at a time.

While records of a group are being appended, further requests to it wait. Then they are decided
together, and their records are appended together. So a heartbeat is answered when its records are
committed, and a rebalance of a large group needs few appends.

A decision changes the group in memory at once, so that the next one builds on it. If its records
cannot be appended, the group is set back to what is committed, which the shard's image has. If they
do not fit into one batch, the next batch is appended when the one before it is committed: the log
always has the first part of a decision, and never its end alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.coordination.append_errors import append_error
from penstock.coordination.batches import record_bytes, split
from penstock.coordination.effects import LogRecord, Now
from penstock.groups import consumer_timers
from penstock.groups.consumer.group import Asked, ConsumerGroup, Turn
from penstock.groups.formats import NO_TIMESTAMP, group_record
from penstock.groups.group import Group, State
from penstock.groups.rebalance import forget_pending
from penstock.groups.shard_state import ShardState
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages.base import Response

_PARTS_OF_A_BATCH: Final = 2
"""Decisions are added to an append until it fills one of so many parts of a batch."""


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
    while group.queue and size < room:
        before = len(turn.records)
        asked = group.queue.popleft()
        answers.append(_decide(asked, turn))
        size += sum(map(record_bytes, turn.records[before:]))
    if not turn.records:
        for answer in answers:
            _reply(shard, answer)
        return
    records = [*_adopt(shard, group), *turn.records]
    group.is_writing = True
    batches = list(split(records, shard.batch_bytes_max()))
    TurnsStored(group, answers, batches).start_next(shard, now)


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


def _adopt(shard: ShardState, group: ConsumerGroup) -> list[LogRecord]:
    """Makes a new group the one of its id. An empty classic group is converted: its offsets stay.

    Returns the record that ends the classic group.
    """
    before = shard.groups.get(group.group_id)
    if before is group:
        return []
    shard.groups[group.group_id] = group
    if not isinstance(before, Group):
        return []
    for member_id in list(before.pending_members):
        forget_pending(shard, before, member_id)
    group.commits_in_flight = before.commits_in_flight
    group.unstable_in_flight = before.unstable_in_flight
    if before.generation or group.group_id in shard.image.groups:
        return [group_record(group.group_id, None)]
    return []


def is_convertible(group: Group) -> bool:
    """Returns whether a classic group can become a consumer group at once."""
    return group.state is State.EMPTY and not group.members


@dataclass(slots=True)
class TurnsStored:
    """The records of decisions about one group, appended batch by batch."""

    group: ConsumerGroup
    answers: Sequence[Answer]
    batches: list[list[LogRecord]]

    def start_next(self, shard: ShardState, now: Now) -> None:
        shard.appends.start(self.batches.pop(0), self, now)

    def committed(self, shard: ShardState, now: Now) -> None:
        if self.batches:
            self.start_next(shard, now)
            return
        self._end()
        for answer in self.answers:
            _reply(shard, answer)
        self._go_on(shard, now)

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        self._end()
        refusal = KafkaError(append_error(error))
        for answer in self.answers:
            _refuse(shard, answer.asked, refusal)
        _roll_back(shard, self.group, now)
        self._go_on(shard, now)

    def _end(self) -> None:
        self.group.is_writing = self.group.is_late = False

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None:
        # Until the outcome is known, requests are refused: they would wait too long.
        self.group.is_late = True
        for answer in self.answers:
            _refuse(shard, answer.asked, KafkaError(code))
        refuse_waiting(shard, self.group, code)

    def _go_on(self, shard: ShardState, now: Now) -> None:
        if shard.groups.get(self.group.group_id) is not self.group:
            refuse_waiting(shard, self.group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif self.group.queue:
            _take_turns(shard, self.group, now)


def _roll_back(shard: ShardState, group: ConsumerGroup, now: Now) -> None:
    """Sets a group back to what is committed."""
    stored = shard.image.consumer_groups.get(group.group_id)
    if stored is not None:
        group.reset(stored)
        consumer_timers.match_members(shard, group, now)
        return
    consumer_timers.cancel_all(shard, group)
    value = shard.image.groups.get(group.group_id)
    classic = (
        Group(group.group_id, NO_TIMESTAMP)
        if value is None
        else Group.from_value(group.group_id, value)
    )
    classic.commits_in_flight = group.commits_in_flight
    classic.unstable_in_flight = group.unstable_in_flight
    is_held = group.group_id in shard.image.group_ids() or bool(group.commits_in_flight)
    if value is None and not is_held:
        del shard.groups[group.group_id]
        return
    shard.groups[group.group_id] = classic
    for member in classic.members.values():
        shard.extend_session(classic, member, now)
