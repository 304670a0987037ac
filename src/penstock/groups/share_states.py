"""The share states of a group: they are initialized before a partition is assigned, and deleted.

Both happen at the share coordinator, by calls (`effects.ShareStateCall`) whose result is an event.
What is to be done is in the log first: a coordinator that loads the log finds partitions that are
listed as initializing, or topics as deleting, and repeats the calls with the next heartbeat. A call
that fails is repeated after a pause that doubles.

The state epoch of an initialization is the epoch of the group, which grows. So a call that was
delayed for long does not undo a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from penstock.coordination.effects import Now, Token
from penstock.groups.consumer.records import TopicIdPartition
from penstock.groups.effects import InitializeShare, ShareStateCall
from penstock.groups.shard_state import ShardState
from penstock.groups.share.group import Asked, Call, Failures, ShareGroup, Turn
from penstock.groups.share.records import ShareStates, StatesEntry, TopicShares
from penstock.groups.share_targets import raise_epoch
from penstock.groups.share_turns import submit
from penstock.wire.errors import KafkaError
from penstock.wire.messages.base import Response

ANY_START: Final = -1
"""The leader of the partition chooses the start offset when it is first used."""
INITIALIZED_AT_ONCE: Final = 1_000
"""How many partitions a group initializes in one call. The coordinator does nothing else while it
prepares one."""
_RETRY_MS: Final = 1_000


class Finish:
    """What happens when a call has ended: after its result is written, a request is answered."""

    def __init__(
        self,
        answer: Callable[[Turn, Failures], Response | None] | None = None,
        refuse: Callable[[KafkaError], Response] | None = None,
        token: Token = None,
    ) -> None:
        self.answer = answer
        self.refuse = refuse
        self.token = token


# What members need


def provide(shard: ShardState, turn: Turn) -> bool:
    """Begins to initialize what members subscribe to, and to delete what is listed for it.

    Returns whether partitions are missing that members subscribe to.
    """
    group, now = turn.group, turn.now
    if not group.may_lack_states:
        return False
    missing = _missing(shard, group)
    deletable = [each for each in group.stored.states.deleting if not group.is_topic_called(each)]
    if not missing and not deletable:
        group.may_lack_states = bool(group.calls)
        return bool(group.calls)
    if group.retry_at_ms is not None and now.ticks_ms < group.retry_at_ms:
        return True
    if deletable:
        delete_topics(shard, turn, deletable, Finish())
    starts = {
        TopicIdPartition(topic_id, index): ANY_START
        for topic_id, topic in missing.items()
        for index in topic.partitions
    }
    if starts:
        names = {topic_id: topic.name for topic_id, topic in missing.items()}
        initialize(shard, turn, names, starts, Finish())
    return True


def _missing(shard: ShardState, group: ShareGroup) -> dict[bytes, TopicShares]:
    """Returns partitions that must be initialized, and for which no call is under way. If there are
    many, these are the first of them; the others follow when they are initialized."""
    found: dict[bytes, TopicShares] = {}
    room = INITIALIZED_AT_ONCE
    for name in sorted(group.subscribed_topics):
        facts = shard.consumers.topics.find(name)
        if facts is None or facts.topic_id in group.stored.states.deleting:
            continue
        ready = group.initialized(facts.topic_id)
        if len(ready) == facts.partitions:
            continue
        lacking = (
            index
            for index in range(facts.partitions)
            if index not in ready and not group.is_called(TopicIdPartition(facts.topic_id, index))
        )
        indexes = frozenset(islice(lacking, room))
        if indexes:
            found[facts.topic_id] = TopicShares(name, indexes)
        room -= len(indexes)
        if not room:
            break
    return found


# Calls


def initialize(
    shard: ShardState,
    turn: Turn,
    names: Mapping[bytes, str],
    starts: Mapping[TopicIdPartition, int],
    finish: Finish,
) -> None:
    """Lists partitions as initializing, and calls the share coordinator when that is committed."""
    group = turn.group
    states = _without(group.stored.states, starts)
    listed = _with(states.initializing, names, starts)
    _write(turn, replace(states, initializing=listed))

    def end(turn: Turn, failures: Failures) -> Response | None:
        _finish_initialization(shard, turn, names, starts, failures)
        return None if finish.answer is None else finish.answer(turn, failures)

    wanted = tuple(InitializeShare(each, group.epoch, start) for each, start in starts.items())
    _call(shard, turn, starts, end, finish, initialize=wanted)


def _finish_initialization(
    shard: ShardState,
    turn: Turn,
    names: Mapping[bytes, str],
    starts: Collection[TopicIdPartition],
    failures: Failures,
) -> None:
    group = turn.group
    states = group.stored.states
    # What was removed from the list meanwhile stays removed.
    done = [each for each in starts if each not in failures and _is_initializing(states, each)]
    _note_result(shard, group, failures, turn.now)
    if done:
        kept = _without(states, done)
        _write(turn, replace(kept, initialized=_with(kept.initialized, names, done)))
        if group.members:
            raise_epoch(shard, turn, is_changed=True)
            if not failures:
                provide(shard, turn)


def _is_initializing(states: ShareStates, partition: TopicIdPartition) -> bool:
    listed = states.initializing.get(partition.topic_id)
    return listed is not None and partition.partition in listed.partitions


def delete_topics(
    shard: ShardState, turn: Turn, topic_ids: Collection[bytes], finish: Finish
) -> None:
    """Lists topics as deleting, and calls the share coordinator when that is committed."""
    group = turn.group
    states = group.stored.states
    deleting = dict(states.deleting)
    partitions: list[TopicIdPartition] = []
    for topic_id in topic_ids:
        listed = group.listed(topic_id)
        deleting.setdefault(topic_id, "" if listed is None else listed.name)
        if listed is not None:
            partitions += [TopicIdPartition(topic_id, each) for each in sorted(listed.partitions)]
    gone = frozenset(topic_ids)
    _write(turn, replace(states, deleting=deleting))

    def end(turn: Turn, failures: Failures) -> Response | None:
        _finish_deletion(shard, turn, gone, failures)
        return None if finish.answer is None else finish.answer(turn, failures)

    _call(shard, turn, partitions, end, finish, delete=tuple(partitions))


def _finish_deletion(
    shard: ShardState, turn: Turn, topic_ids: Collection[bytes], failures: Failures
) -> None:
    group = turn.group
    failed = {partition.topic_id for partition in failures}
    done = {each for each in topic_ids if each in group.stored.states.deleting} - failed
    _note_result(shard, group, failures, turn.now)
    if done:
        states = group.stored.states
        _write(
            turn,
            ShareStates(
                {each: topic for each, topic in states.initializing.items() if each not in done},
                {each: topic for each, topic in states.initialized.items() if each not in done},
                {each: name for each, name in states.deleting.items() if each not in done},
            ),
        )
        if group.members:
            raise_epoch(shard, turn, is_changed=True)


def forget_topics(shard: ShardState, topic_ids: Collection[bytes], now: Now) -> None:
    """Deletes the states of topics that were deleted."""
    for group in list(shard.share_groups.values()):
        gone = [each for each in topic_ids if group.listed(each) is not None]
        if gone:

            def decide(turn: Turn, gone: list[bytes] = gone) -> None:
                left = [each for each in gone if turn.group.listed(each) is not None]
                if left:
                    delete_topics(shard, turn, left, Finish())

            submit(shard, group, Asked(decide), now)


def _call(
    shard: ShardState,
    turn: Turn,
    partitions: Iterable[TopicIdPartition],
    end: Callable[[Turn, Failures], Response | None],
    finish: Finish,
    initialize: tuple[InitializeShare, ...] = (),
    delete: tuple[TopicIdPartition, ...] = (),
) -> None:
    shard.share_calls += 1
    call_id = shard.share_calls
    turn.group.calls[call_id] = Call(frozenset(partitions), end, finish.refuse, finish.token)
    turn.calls.append(ShareStateCall(turn.group.group_id, call_id, initialize, delete))


def _note_result(shard: ShardState, group: ShareGroup, failures: Failures, now: Now) -> None:
    """Sets the time of the next call: at once after a success, later after a failure."""
    group.may_lack_states = True
    if not failures:
        group.retry_at_ms, group.retry_pause_ms = None, 0
        return
    doubled = min(max(_RETRY_MS, 2 * group.retry_pause_ms), shard.shares.config.retry_max_ms)
    group.retry_pause_ms = doubled
    group.retry_at_ms = now.ticks_ms + doubled


# Lists of partitions


def _write(turn: Turn, states: ShareStates) -> None:
    if states != turn.group.stored.states:
        turn.write(StatesEntry(turn.group.group_id, states))


def _with(
    topics: Mapping[bytes, TopicShares],
    names: Mapping[bytes, str],
    partitions: Iterable[TopicIdPartition],
) -> dict[bytes, TopicShares]:
    added: dict[bytes, set[int]] = {}
    for topic_id, index in partitions:
        added.setdefault(topic_id, set()).add(index)
    result = dict(topics)
    for topic_id, indexes in added.items():
        known = result.get(topic_id, TopicShares(names[topic_id], frozenset()))
        result[topic_id] = TopicShares(known.name, known.partitions | indexes)
    return result


def _without(states: ShareStates, partitions: Collection[TopicIdPartition]) -> ShareStates:
    """Returns the lists without these partitions."""
    gone: dict[bytes, set[int]] = {}
    for topic_id, index in partitions:
        gone.setdefault(topic_id, set()).add(index)

    def kept(topics: Mapping[bytes, TopicShares]) -> dict[bytes, TopicShares]:
        left = {
            topic_id: TopicShares(topic.name, topic.partitions - gone.get(topic_id, set()))
            for topic_id, topic in topics.items()
        }
        return {topic_id: topic for topic_id, topic in left.items() if topic.partitions}

    return replace(
        states, initializing=kept(states.initializing), initialized=kept(states.initialized)
    )
