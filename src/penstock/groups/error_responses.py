"""Error responses for every group request, in the form of each version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.coordination.append_errors import append_error
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    SyncGroupRequest,
    SyncGroupResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from penstock.wire.messages.base import Request, Response

_NO_GENERATION: Final = -1
_NO_OFFSET: Final = -1
_ASK_AGAIN: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""Another broker, or this one a little later, can answer."""


def group_append_error(error: ErrorCode) -> ErrorCode:
    """Returns a member's error code for a group record that could not be appended."""
    if error is ErrorCode.REQUEST_TIMED_OUT:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return append_error(error)


def offsets_append_error(error: ErrorCode) -> ErrorCode:
    """Returns a client's error code for offsets that could not be appended."""
    return append_error(error, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)


def join_error(code: ErrorCode, member_id: str, version: int) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=code,
        generation_id=_NO_GENERATION,
        # Null exists from version 7 on; before, "no protocol" was the empty string.
        protocol_name=None if version >= 7 else "",
        member_id=member_id,
    )


def sync_error(code: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=code)


def leave_error(code: ErrorCode) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=code)


def consumer_heartbeat_error(error: KafkaError) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)


def share_heartbeat_error(error: KafkaError) -> ShareGroupHeartbeatResponse:
    return ShareGroupHeartbeatResponse(error_code=error.code, error_message=error.message)


def alter_shares_error(error: KafkaError) -> AlterShareGroupOffsetsResponse:
    return AlterShareGroupOffsetsResponse(error_code=error.code, error_message=error.message)


def delete_shares_error(error: KafkaError) -> DeleteShareGroupOffsetsResponse:
    return DeleteShareGroupOffsetsResponse(error_code=error.code, error_message=error.message)


def commit_response(
    request: OffsetCommitRequest,
    code_of: Callable[[str, OffsetCommitRequest.Partition], ErrorCode],
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.Topic(
                topic.name,
                topic.topic_id,
                [
                    OffsetCommitResponse.Partition(
                        partition.partition_index, code_of(topic.name, partition)
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def txn_commit_response(
    request: TxnOffsetCommitRequest,
    code_of: Callable[[TxnOffsetCommitRequest.Partition], ErrorCode],
) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponse.Topic(
                topic.name,
                [
                    TxnOffsetCommitResponse.Partition(partition.partition_index, code_of(partition))
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def refuse(request: Request, version: int, code: ErrorCode) -> Response:
    """Returns the response that refuses a whole request of one of the group APIs."""
    return _REFUSALS[type(request)](request, version, code)


def refused_offsets(asked: OffsetFetchRequest.Group, code: ErrorCode) -> OffsetFetchResponse.Group:
    """Returns the error response for a group whose offsets cannot be returned.

    While the coordinator moves, each requested partition gets UNSTABLE_OFFSET_COMMIT in addition to
    the group's code. Kafka lists no partition. librdkafka then never asks again, and its consumer
    reads nothing until its next assignment (its issue 5586). The code of a partition makes it ask
    again. Other clients check the group's code first.
    """
    topics = asked.topics if code in _ASK_AGAIN else None
    return OffsetFetchResponse.Group(
        asked.group_id,
        [
            OffsetFetchResponse.GroupTopic(
                topic.name,
                topic.topic_id,
                [
                    OffsetFetchResponse.GroupPartition(
                        index, _NO_OFFSET, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in topics or []
        ],
        code,
    )


def _refuse_offset_fetch(
    request: OffsetFetchRequest, version: int, code: ErrorCode
) -> OffsetFetchResponse:
    if version >= 8:
        return OffsetFetchResponse(groups=[refused_offsets(each, code) for each in request.groups])
    if version >= 2:
        return OffsetFetchResponse(error_code=code)
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponse.Topic(
                topic.name,
                [
                    OffsetFetchResponse.Partition(index, _NO_OFFSET, -1, "", code)
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or []
        ]
    )


def _refuse_describe(
    request: DescribeGroupsRequest, version: int, code: ErrorCode
) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(
        groups=[
            DescribeGroupsResponse.Group(error_code=code, group_id=group_id)
            for group_id in request.groups
        ]
    )


def _refuse_consumer_describe(
    request: ConsumerGroupDescribeRequest, version: int, code: ErrorCode
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        groups=[
            ConsumerGroupDescribeResponse.Group(code, code.message, group_id)
            for group_id in request.group_ids
        ]
    )


def _refuse_share_describe(
    request: ShareGroupDescribeRequest, version: int, code: ErrorCode
) -> ShareGroupDescribeResponse:
    return ShareGroupDescribeResponse(
        groups=[
            ShareGroupDescribeResponse.DescribedGroup(code, code.message, group_id)
            for group_id in request.group_ids
        ]
    )


def _refuse_share_offsets(
    request: DescribeShareGroupOffsetsRequest, version: int, code: ErrorCode
) -> DescribeShareGroupOffsetsResponse:
    return DescribeShareGroupOffsetsResponse(
        groups=[
            DescribeShareGroupOffsetsResponse.Group(
                group_id=each.group_id, error_code=code, error_message=code.message
            )
            for each in request.groups
        ]
    )


def _refuse_delete(
    request: DeleteGroupsRequest, version: int, code: ErrorCode
) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[DeleteGroupsResponse.Group(group_id, code) for group_id in request.groups_names]
    )


_REFUSALS: Final[Mapping[type[Request], Callable[[Any, int, ErrorCode], Response]]] = {
    JoinGroupRequest: lambda request, version, code: join_error(code, request.member_id, version),
    SyncGroupRequest: lambda request, version, code: sync_error(code),
    HeartbeatRequest: lambda request, version, code: HeartbeatResponse(error_code=code),
    LeaveGroupRequest: lambda request, version, code: leave_error(code),
    OffsetCommitRequest: lambda request, version, code: commit_response(
        request, lambda topic, partition: code
    ),
    TxnOffsetCommitRequest: lambda request, version, code: txn_commit_response(
        request, lambda partition: code
    ),
    OffsetFetchRequest: _refuse_offset_fetch,
    OffsetDeleteRequest: lambda request, version, code: OffsetDeleteResponse(error_code=code),
    DescribeGroupsRequest: _refuse_describe,
    ListGroupsRequest: lambda request, version, code: ListGroupsResponse(error_code=code),
    DeleteGroupsRequest: _refuse_delete,
    ConsumerGroupHeartbeatRequest: lambda request, version, code: consumer_heartbeat_error(
        KafkaError(code)
    ),
    ConsumerGroupDescribeRequest: _refuse_consumer_describe,
    ShareGroupHeartbeatRequest: lambda request, version, code: share_heartbeat_error(
        KafkaError(code)
    ),
    ShareGroupDescribeRequest: _refuse_share_describe,
    DescribeShareGroupOffsetsRequest: _refuse_share_offsets,
    AlterShareGroupOffsetsRequest: lambda request, version, code: alter_shares_error(
        KafkaError(code)
    ),
    DeleteShareGroupOffsetsRequest: lambda request, version, code: delete_shares_error(
        KafkaError(code)
    ),
}
