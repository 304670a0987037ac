"""OffsetFetch 1-9: returns the committed offsets of groups.

Up to version 7 a request names one group, from version 8 on any number; here every request is
converted to the newer form. Null topics (from version 2 on) ask for all. A partition without a
committed offset is not an error: its offset is -1. Version 1 has no field for an error about the
whole group.

From version 7 on a client may require stable offsets. A partition with an offset in an open
transaction, or in one that is being appended, then gets UNSTABLE_OFFSET_COMMIT: the client asks
again when the transaction has ended.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Set
from typing import TypeVar

from penstock.groups.consumer_offsets import require_fetcher
from penstock.groups.error_responses import refused_offsets
from penstock.groups.formats import OffsetValue
from penstock.groups.shard_state import ShardState
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import OffsetFetchRequest, OffsetFetchResponse

T = TypeVar("T")

_MANY_GROUPS_SINCE = 8
_NOTHING = OffsetValue(-1)
_PER_STEP = 100


def groups_of(request: OffsetFetchRequest, version: int) -> list[OffsetFetchRequest.Group]:
    """Returns what a request asks for, by group."""
    if version >= _MANY_GROUPS_SINCE:
        return request.groups
    topics = request.topics
    if topics is None:
        return [OffsetFetchRequest.Group(request.group_id, topics=None)]
    asked = [
        OffsetFetchRequest.GroupTopic(topic.name, partition_indexes=topic.partition_indexes)
        for topic in topics
    ]
    return [OffsetFetchRequest.Group(request.group_id, topics=asked)]


def response_of(groups: list[OffsetFetchResponse.Group], version: int) -> OffsetFetchResponse:
    """Returns the answers of all groups in the form of the version."""
    return _drained(response_steps(groups, version))


def response_steps(
    groups: list[OffsetFetchResponse.Group], version: int
) -> Generator[None, None, OffsetFetchResponse]:
    """Like `response_of`, with a pause after each part of the work."""
    if version >= _MANY_GROUPS_SINCE:
        return OffsetFetchResponse(groups=groups)
    (group,) = groups
    response = OffsetFetchResponse(error_code=group.error_code)
    for topic in group.topics:
        answer = OffsetFetchResponse.Topic(topic.name)
        response.topics.append(answer)
        for start in range(0, len(topic.partitions), _PER_STEP):
            for one in topic.partitions[start : start + _PER_STEP]:
                answer.partitions.append(
                    OffsetFetchResponse.Partition(
                        one.partition_index,
                        one.committed_offset,
                        one.committed_leader_epoch,
                        one.metadata,
                        one.error_code,
                    )
                )
            yield
    return response


def fetch_offsets(
    shard: ShardState, asked: OffsetFetchRequest.Group, *, require_stable: bool
) -> OffsetFetchResponse.Group:
    return _drained(fetch_steps(shard, asked, require_stable=require_stable))


def _drained(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def fetch_steps(
    shard: ShardState, asked: OffsetFetchRequest.Group, *, require_stable: bool
) -> Generator[None, None, OffsetFetchResponse.Group]:
    """Like `fetch_offsets`, with a pause after each part of the work."""
    group = shard.consumer(asked.group_id)
    if group is not None:
        try:
            require_fetcher(group, asked.member_id, asked.member_epoch)
        except KafkaError as error:
            return refused_offsets(asked, error.code)
    known = shard.image.offsets_of(asked.group_id)
    unstable = _unstable(shard, asked.group_id) if require_stable else frozenset()
    if asked.topics is None:
        indexes: dict[str, list[int]] = {}
        # A copy, because offsets may be committed between two steps.
        for number, (name, index) in enumerate([*known, *(unstable - known.keys())], 1):
            indexes.setdefault(name, []).append(index)
            if number % _PER_STEP == 0:
                yield
        wanted = [(name, bytes(16), sorted(indexes[name])) for name in sorted(indexes)]
    else:
        wanted = [(each.name, each.topic_id, each.partition_indexes) for each in asked.topics]
    answer = OffsetFetchResponse.Group(asked.group_id)
    for name, topic_id, those in wanted:
        topic = OffsetFetchResponse.GroupTopic(name, topic_id)
        answer.topics.append(topic)
        for start in range(0, len(those), _PER_STEP):
            part = those[start : start + _PER_STEP]
            topic.partitions.extend(_partitions(name, part, known, unstable))
            yield
    return answer


def _unstable(shard: ShardState, group_id: str) -> Set[TopicPartition]:
    group = shard.groups.get(group_id)
    in_flight: Iterable[TopicPartition] = () if group is None else group.unstable_in_flight
    return frozenset((*shard.image.pending_of(group_id), *in_flight))


def _partitions(
    name: str,
    indexes: Iterable[int],
    known: Mapping[TopicPartition, OffsetValue],
    unstable: Set[TopicPartition],
) -> list[OffsetFetchResponse.GroupPartition]:
    partitions = []
    for index in indexes:
        about = TopicPartition(name, index)
        is_stable = about not in unstable
        value = known.get(about, _NOTHING) if is_stable else _NOTHING
        partitions.append(
            OffsetFetchResponse.GroupPartition(
                index,
                value.offset,
                value.leader_epoch,
                value.metadata,
                ErrorCode.NONE if is_stable else ErrorCode.UNSTABLE_OFFSET_COMMIT,
            )
        )
    return partitions
