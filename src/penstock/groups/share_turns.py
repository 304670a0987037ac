"""Decides about share groups one append at a time, as `consumer_turns` does for consumer groups.

A decision changes the group in memory at once, so that the next one builds on it. Its records are
appended together with those of other decisions. When they are committed, its request is answered,
and the calls of the share coordinator that it needs are made. If the records cannot be appended,
the group is set back to what is committed, and no call is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.coordination.append_errors import append_error
from penstock.coordination.batches import record_bytes, split_whole
from penstock.coordination.effects import LogRecord, Now
from penstock.groups import share_timers
from penstock.groups.effects import ShareStateCall
from penstock.groups.shard_state import ShardState
from penstock.groups.share.group import Asked, Failures, ShareGroup, Turn
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages.base import Response

_PARTS_OF_A_BATCH: Final = 2
"""Decisions are added to an append until it fills one of so many parts of a batch."""


class Answer(NamedTuple):
    asked: Asked
    response: Response | None


def submit(shard: ShardState, group: ShareGroup, asked: Asked, now: Now) -> None:
    """Decides at once, or as soon as the records of earlier decisions are committed.

    `group` may be new: it becomes the group of its id with its first record.
    """
    if group.is_late and asked.token is not None:
        _refuse(shard, asked, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    group.queue.append(asked)
    if not group.is_writing:
        _take_turns(shard, group, now)


def _take_turns(shard: ShardState, group: ShareGroup, now: Now) -> None:
    """Decides about what waits, and starts to append the records."""
    turn = Turn(group, now)
    answers: list[Answer] = []
    room = shard.batch_bytes_max() // _PARTS_OF_A_BATCH
    size = 0
    while group.queue and size < room:
        turn.next_decision()
        answers.append(_decide(group.queue.popleft(), turn))
        size += sum(map(record_bytes, turn.records))
    turn.next_decision()
    if not turn.earlier:
        _make_calls(shard, turn.calls)
        for answer in answers:
            _reply(shard, answer)
        return
    shard.share_groups[group.group_id] = group
    group.is_writing = True
    batches = list(split_whole(turn.earlier, shard.batch_bytes_max()))
    TurnsStored(group, answers, turn.calls, batches).start_next(shard, now)


def _make_calls(shard: ShardState, calls: Sequence[ShareStateCall]) -> None:
    for call in calls:
        shard.effects.add(call)


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


def on_called(shard: ShardState, group_id: str, call_id: int, failures: Failures, now: Now) -> None:
    """Takes the result of a call. A call of an earlier group of this id has no effect any more."""
    group = shard.share_groups.get(group_id)
    call = None if group is None else group.calls.pop(call_id, None)
    if group is not None and call is not None:
        finish = call.finish
        asked = Asked(lambda turn: finish(turn, failures), call.refuse, call.token)
        submit(shard, group, asked, now)


def refuse_waiting(shard: ShardState, group: ShareGroup, code: ErrorCode) -> None:
    """Answers all requests that wait for their turn. What has no request keeps waiting."""
    waiting = list(group.queue)
    group.queue.clear()
    for asked in waiting:
        if asked.token is None:
            group.queue.append(asked)
        else:
            _refuse(shard, asked, KafkaError(code))


def abandon_calls(shard: ShardState, group: ShareGroup, code: ErrorCode) -> None:
    """Answers the requests that wait for calls: their results do not count any more."""
    calls, group.calls = group.calls, {}
    for call in calls.values():
        if call.token is not None and call.refuse is not None:
            shard.effects.reply(call.token, call.refuse(KafkaError(code)))


@dataclass(slots=True)
class TurnsStored:
    """The records of decisions about one group, appended batch by batch."""

    group: ShareGroup
    answers: Sequence[Answer]
    calls: Sequence[ShareStateCall]
    batches: list[list[LogRecord]]

    def start_next(self, shard: ShardState, now: Now) -> None:
        shard.appends.start(self.batches.pop(0), self, now)

    def committed(self, shard: ShardState, now: Now) -> None:
        if self.batches:
            self.start_next(shard, now)
            return
        self.group.is_writing = False
        _make_calls(shard, self.calls)
        for answer in self.answers:
            _reply(shard, answer)
        self._go_on(shard, now)

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        self.group.is_writing = False
        refusal = KafkaError(append_error(error))
        for call in self.calls:
            self.group.calls.pop(call.call_id, None)
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
        if was_late:
            share_timers.restart(shard, group, now)
        if not group.stored:
            # It was deleted, or its first records could not be appended.
            del shard.share_groups[group.group_id]
        if group.queue:
            _take_turns(shard, group, now)


def _roll_back(shard: ShardState, group: ShareGroup, now: Now) -> None:
    """Sets a group back to what is committed."""
    stored = shard.image.share_groups.get(group.group_id)
    if stored is None:
        share_timers.cancel_all(shard, group)
        group.reset(type(group.stored)())
    else:
        group.reset(stored)
        share_timers.match_members(shard, group, now)
