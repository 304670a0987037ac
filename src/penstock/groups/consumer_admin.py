"""ConsumerGroupDescribe 0-1, and what classic requests do to consumer groups.

LeaveGroup removes members by their ids or instance ids: operators use it, and members of the
classic protocol when they leave. When such a member joins an empty group, the group becomes a
classic one and keeps its offsets.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.coordination.effects import Now, Token
from penstock.groups.consumer.group import Asked, ConsumerGroup, Turn
from penstock.groups.consumer.records import TopicIdPartition, by_topic
from penstock.groups.consumer_targets import remove_members
from penstock.groups.consumer_turns import submit
from penstock.groups.error_responses import leave_error
from penstock.groups.group import Group
from penstock.groups.shard_state import ShardState
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import (
    ConsumerGroupDescribeResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
)

_BATCHED_LEAVE_SINCE = 3
_MEMBER_TYPE_CLASSIC, _MEMBER_TYPE_CONSUMER = 0, 1
_Described = ConsumerGroupDescribeResponse


# ConsumerGroupDescribe


def describe(shard: ShardState, group_id: str) -> ConsumerGroupDescribeResponse.Group:
    group = shard.consumer(group_id)
    if group is None or group.is_dead:
        return _Described.Group(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"there is no consumer group {group_id} on this coordinator",
            group_id,
        )
    return _Described.Group(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.preferred_assignor(shard.consumers.config.assignors),
        members=[_describe_member(shard, group, member_id) for member_id in group.members],
    )


def _describe_member(
    shard: ShardState, group: ConsumerGroup, member_id: str
) -> ConsumerGroupDescribeResponse.Member:
    metadata, current = group.members[member_id], group.current(member_id)
    return _Described.Member(
        member_id=member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=current.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=sorted(metadata.names),
        subscribed_topic_regex=metadata.regex,
        assignment=_describe_partitions(shard, current.assigned.keys()),
        target_assignment=_describe_partitions(shard, group.target(member_id)),
        member_type=(_MEMBER_TYPE_CONSUMER if metadata.classic is None else _MEMBER_TYPE_CLASSIC),
    )


def _describe_partitions(
    shard: ShardState, partitions: Iterable[TopicIdPartition]
) -> ConsumerGroupDescribeResponse.Assignment:
    """A topic that was deleted is left out."""
    return _Described.Assignment(
        [
            _Described.TopicPartitions(topic_id, name, indexes)
            for topic_id, indexes in by_topic(partitions).items()
            if (name := shard.consumers.topics.name_of(topic_id)) is not None
        ]
    )


# LeaveGroup


def leave_group(
    shard: ShardState,
    group: ConsumerGroup,
    request: LeaveGroupRequest,
    version: int,
    token: Token,
    now: Now,
) -> None:
    is_batched = version >= _BATCHED_LEAVE_SINCE
    leaving = request.members if is_batched else [LeaveGroupRequest.Member(request.member_id)]

    def decide(turn: Turn) -> LeaveGroupResponse:
        results = [
            LeaveGroupResponse.Member(each.member_id, each.group_instance_id) for each in leaving
        ]
        gone: dict[str, None] = {}
        for result in results:
            try:
                gone[_leaver(turn.group, result.member_id, result.group_instance_id)] = None
            except KafkaError as error:
                result.error_code = error.code
        if gone:
            remove_members(shard, turn, gone)
        if is_batched:
            return LeaveGroupResponse(members=results)
        return LeaveGroupResponse(error_code=results[0].error_code)

    submit(shard, group, Asked(decide, lambda error: leave_error(error.code), token), now)


def _leaver(group: ConsumerGroup, member_id: str, instance_id: str | None) -> str:
    """Returns the id of the member that leaves."""
    if instance_id is not None:
        known_id = group.static_members.get(instance_id)
        if known_id is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if member_id not in ("", known_id):
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        member_id = known_id
    if member_id not in group.members:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member_id


# Conversion


def become_classic(shard: ShardState, group: ConsumerGroup, now: Now) -> Group:
    """Converts an empty consumer group; raises if it is being deleted."""
    if group.is_dead:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    classic = Group(group.group_id, now.wall_ms)
    classic.commits_in_flight = group.commits_in_flight
    classic.unstable_in_flight = group.unstable_in_flight
    # The generations of the classic group continue the epochs: no old member passes for a new one.
    classic.generation = group.epoch
    return classic
