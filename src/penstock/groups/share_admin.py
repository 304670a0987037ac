"""ShareGroupDescribe, AlterShareGroupOffsets, DeleteShareGroupOffsets and DeleteGroups for share
groups, and what requests of other protocols do to them.

Offsets are altered and deleted, and groups deleted, only while a group has no members. The states
are at the share coordinator: the request is answered when its call has ended and the result is
written. If a call fails, the request may be sent again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.coordination.effects import Now, Token
from penstock.groups.consumer.records import TopicIdPartition, by_topic
from penstock.groups.error_responses import alter_shares_error, delete_shares_error, refuse
from penstock.groups.shard_state import ShardState
from penstock.groups.share.group import Asked, Failures, ShareGroup, Turn
from penstock.groups.share_states import Finish, delete_topics, initialize
from penstock.groups.share_targets import raise_epoch
from penstock.groups.share_turns import submit
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    ShareGroupDescribeResponse,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)

SHARE_GROUP_TYPE: Final = "share"
_ASSIGNOR: Final = "simple"
_NO_ID: Final = bytes(16)
_Described = ShareGroupDescribeResponse
_Altered = AlterShareGroupOffsetsResponse
_Deleted = DeleteShareGroupOffsetsResponse

_OtherRequest = (
    ConsumerGroupHeartbeatRequest
    | HeartbeatRequest
    | JoinGroupRequest
    | LeaveGroupRequest
    | OffsetCommitRequest
    | OffsetDeleteRequest
    | SyncGroupRequest
    | TxnOffsetCommitRequest
)
_REFUSALS: Final = {
    JoinGroupRequest: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    SyncGroupRequest: ErrorCode.UNKNOWN_MEMBER_ID,
    HeartbeatRequest: ErrorCode.UNKNOWN_MEMBER_ID,
    LeaveGroupRequest: ErrorCode.UNKNOWN_MEMBER_ID,
}
"""How requests of the classic protocol are answered; all others are GROUP_ID_NOT_FOUND."""


def refuse_others(shard: ShardState, request: _OtherRequest, version: int, token: Token) -> bool:
    """Refuses a request for another type of group, if the group is a share group."""
    if request.group_id not in shard.share_groups:
        return False
    code = _REFUSALS.get(type(request), ErrorCode.GROUP_ID_NOT_FOUND)
    shard.effects.reply(token, refuse(request, version, code))
    return True


# Views


def describe(shard: ShardState, group_id: str) -> ShareGroupDescribeResponse.DescribedGroup:
    group = shard.share_groups.get(group_id)
    if group is None:
        return _Described.DescribedGroup(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"there is no share group {group_id} on this coordinator",
            group_id,
        )
    return _Described.DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=_ASSIGNOR,
        members=[
            _Described.Member(
                member_id=member_id,
                rack_id=member.rack_id,
                member_epoch=group.current(member_id).epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=sorted(member.names),
                assignment=_describe_partitions(shard, group.current(member_id).assigned),
            )
            for member_id, member in group.members.items()
        ],
    )


def _describe_partitions(
    shard: ShardState, partitions: Iterable[TopicIdPartition]
) -> ShareGroupDescribeResponse.Assignment:
    """A topic that was deleted is left out."""
    return _Described.Assignment(
        [
            _Described.TopicPartitions(topic_id, name, indexes)
            for topic_id, indexes in by_topic(partitions).items()
            if (name := shard.consumers.topics.name_of(topic_id)) is not None
        ]
    )


def listed(group: ShareGroup) -> ListGroupsResponse.Group:
    return ListGroupsResponse.Group(
        group.group_id, SHARE_GROUP_TYPE, group.state.value, SHARE_GROUP_TYPE
    )


def initialized_partitions(shard: ShardState, group_id: str) -> dict[bytes, frozenset[int]]:
    """Returns the partitions of each topic whose offsets can be described.

    Raises GROUP_ID_NOT_FOUND if there is no such share group.
    """
    group = shard.share_groups.get(group_id)
    if group is None:
        raise _no_share_group(group_id)
    found = {topic_id: group.initialized(topic_id) for topic_id in group.listed_topics()}
    return {topic_id: indexes for topic_id, indexes in found.items() if indexes}


# Changes


def alter_offsets(
    shard: ShardState, request: AlterShareGroupOffsetsRequest, token: Token, now: Now
) -> None:
    """Begins new states with the given start offsets. Creates the group if there is none."""
    group = shard.share_groups.get(request.group_id)
    if group is None and request.group_id in shard.groups:
        shard.effects.reply(token, alter_shares_error(_no_share_group(request.group_id)))
        return

    def decide(turn: Turn) -> AlterShareGroupOffsetsResponse | None:
        _require_empty(turn.group)
        response = _alter_response(shard, request)
        names, starts = _starts(response, request)
        for topic_id in names:
            _require_free(turn.group, topic_id)
        if not starts:
            return response
        raise_epoch(shard, turn, is_changed=True)
        finish = Finish(
            lambda turn, failures: _with_failures(response, failures), alter_shares_error, token
        )
        initialize(shard, turn, names, starts, finish)
        return None

    group = group or ShareGroup(request.group_id)
    submit(shard, group, Asked(decide, alter_shares_error, token), now)


def _alter_response(
    shard: ShardState, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    """Returns the answer if all calls succeed."""
    response = _Altered()
    for topic in request.topics:
        facts = shard.consumers.topics.find(topic.topic_name)
        count = 0 if facts is None else facts.partitions
        partitions = []
        for each in topic.partitions:
            code, message = ErrorCode.NONE, None
            if not 0 <= each.partition_index < count:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                message = f"There is no partition {topic.topic_name}-{each.partition_index}."
            elif each.start_offset < 0:
                code = ErrorCode.INVALID_REQUEST
                message = f"The start offset is {each.start_offset}: send 0 or more."
            partitions.append(_Altered.Partition(each.partition_index, code, message))
        topic_id = _NO_ID if facts is None else facts.topic_id
        response.responses.append(_Altered.TopicResponse(topic.topic_name, topic_id, partitions))
    return response


def _starts(
    response: AlterShareGroupOffsetsResponse, request: AlterShareGroupOffsetsRequest
) -> tuple[dict[bytes, str], dict[TopicIdPartition, int]]:
    """Returns the names of topics by their ids, and the start offsets that can be set."""
    names: dict[bytes, str] = {}
    starts: dict[TopicIdPartition, int] = {}
    for topic, asked in zip(response.responses, request.topics, strict=True):
        for result, wanted in zip(topic.partitions, asked.partitions, strict=True):
            if not result.error_code:
                names[topic.topic_id] = topic.topic_name
                partition = TopicIdPartition(topic.topic_id, wanted.partition_index)
                starts[partition] = wanted.start_offset
    return names, starts


def _with_failures(
    response: AlterShareGroupOffsetsResponse, failures: Failures
) -> AlterShareGroupOffsetsResponse:
    for topic in response.responses:
        for each in topic.partitions:
            error = failures.get(TopicIdPartition(topic.topic_id, each.partition_index))
            if error is not None and not each.error_code:
                each.error_code, each.error_message = error.code, error.message
    return response


def delete_offsets(
    shard: ShardState, request: DeleteShareGroupOffsetsRequest, token: Token, now: Now
) -> None:
    """Deletes the states of topics. A topic without any is no error."""
    group = shard.share_groups.get(request.group_id)
    if group is None:
        shard.effects.reply(token, delete_shares_error(_no_share_group(request.group_id)))
        return

    def decide(turn: Turn) -> DeleteShareGroupOffsetsResponse | None:
        _require_empty(turn.group)
        response = _Deleted()
        doomed: list[bytes] = []
        for name in dict.fromkeys(topic.topic_name for topic in request.topics):
            facts = shard.consumers.topics.find(name)
            if facts is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                result = _Deleted.TopicResponse(name, _NO_ID, code, code.message)
            else:
                _require_free(turn.group, facts.topic_id)
                result = _Deleted.TopicResponse(name, facts.topic_id)
                if facts.topic_id in turn.group.listed_topics():
                    doomed.append(facts.topic_id)
            response.responses.append(result)
        if not doomed:
            return response

        def answer(turn: Turn, failures: Failures) -> DeleteShareGroupOffsetsResponse:
            errors = {partition.topic_id: error for partition, error in failures.items()}
            for topic in response.responses:
                if (error := errors.get(topic.topic_id)) is not None:
                    topic.error_code, topic.error_message = error.code, error.message
            return response

        delete_topics(shard, turn, doomed, Finish(answer, delete_shares_error, token))
        return None

    submit(shard, group, Asked(decide, delete_shares_error, token), now)


def delete_group(shard: ShardState, group: ShareGroup, token: Token, now: Now) -> None:
    """Answers DeleteGroups: deletes all states of the group first, then the group."""
    group_id = group.group_id

    def refused(error: KafkaError) -> DeleteGroupsResponse:
        return DeleteGroupsResponse(results=[DeleteGroupsResponse.Group(group_id, error.code)])

    def answer(turn: Turn, failures: Failures) -> DeleteGroupsResponse:
        for error in failures.values():
            return refused(error)
        if turn.group.members:
            return refused(KafkaError(ErrorCode.NON_EMPTY_GROUP))
        for entry in turn.group.tombstones():
            turn.write(entry)
        return DeleteGroupsResponse(results=[DeleteGroupsResponse.Group(group_id)])

    def decide(turn: Turn) -> DeleteGroupsResponse | None:
        _require_empty(turn.group)
        topic_ids = turn.group.listed_topics()
        for topic_id in topic_ids:
            _require_free(turn.group, topic_id)
        if not topic_ids:
            return answer(turn, {})
        delete_topics(shard, turn, topic_ids, Finish(answer, refused, token))
        return None

    submit(shard, group, Asked(decide, refused, token), now)


def _require_empty(group: ShareGroup) -> None:
    if group.members:
        raise KafkaError(
            ErrorCode.NON_EMPTY_GROUP, f"The group {group.group_id} has members: stop them first."
        )


def _require_free(group: ShareGroup, topic_id: bytes) -> None:
    if group.is_topic_called(topic_id):
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            "Another change of these offsets is under way: send the request again.",
        )


def _no_share_group(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no share group {group_id}.")
