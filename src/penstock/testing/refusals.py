"""Makes error answers in place of the broker. Pure.

A refusal must be one that a broker could have sent: it names what the request named, and has the
error code where this API has it. Requests that change nothing are simpler: the broker answers them,
and the error codes in its answer are overwritten (`spoil`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from penstock.groups.error_responses import refused_offsets
from penstock.wire.api import ApiKey
from penstock.wire.codec import response_class
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    FetchRequest,
    FetchResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    ProduceRequest,
    ProduceResponse,
)
from penstock.wire.messages.base import Request, Response, Struct

_SPOILED: Final = frozenset(
    [
        ApiKey.METADATA,
        ApiKey.LIST_OFFSETS,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    ]
)


def can_fail(api: ApiKey) -> bool:
    return api in _MAKERS or api in _SPOILED or _has_code(response_class(api))


def refusal(request: Request, code: ErrorCode) -> Response | None:
    """Returns the answer to send instead of the broker's; None if `spoil` must change that one."""
    api = ApiKey(request.API_KEY)
    if api in _SPOILED:
        return None
    if api in _MAKERS:
        made: Response = _MAKERS[api](request, int(code))
        return made
    answer: Any = response_class(api)()
    answer.error_code = int(code)
    # Every response without a maker has an error code; the type checker cannot know which.
    return answer  # type: ignore[no-any-return]


def spoil(answer: Response, code: ErrorCode) -> None:
    """Overwrites the error codes in an answer, at the deepest level that has any."""
    if isinstance(answer, MetadataResponse):
        for topic in answer.topics:
            topic.error_code = int(code)
            topic.partitions = []
        return
    if not _spoil_below(answer, int(code)) and _has_code(type(answer)):
        # `_has_code` has found the field.
        answer.error_code = int(code)  # type: ignore[attr-defined]


def session_lost() -> FetchResponse:
    """Returns the answer to an incremental fetch. The client then sends a full fetch."""
    return FetchResponse(error_code=int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND))


def _has_code(kind: type[Struct]) -> bool:
    return "error_code" in kind.__slots__


def _spoil_below(struct: Struct, code: int) -> bool:
    spoiled = False
    for part in _parts(struct):
        if _spoil_below(part, code):
            spoiled = True
        elif _has_code(type(part)):
            # `_has_code` has found the field.
            part.error_code = code  # type: ignore[attr-defined]
            spoiled = True
    return spoiled


def _parts(struct: Struct) -> Iterator[Struct]:
    for name in struct.__slots__:
        value = getattr(struct, name)
        if isinstance(value, list):
            yield from (part for part in value if isinstance(part, Struct))


def _produce(request: ProduceRequest, code: int) -> ProduceResponse:
    return ProduceResponse(
        [
            ProduceResponse.Topic(
                topic.name,
                topic.topic_id,
                [
                    ProduceResponse.Partition(partition.index, code, base_offset=-1)
                    for partition in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _fetch(request: FetchRequest, code: int) -> FetchResponse:
    """Answers without a session, so that a client that wants one starts a new one."""
    return FetchResponse(
        responses=[
            FetchResponse.Topic(
                topic.topic,
                topic.topic_id,
                [
                    FetchResponse.Partition(
                        partition.partition, code, high_watermark=-1, aborted_transactions=None
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _find_coordinator(request: FindCoordinatorRequest, code: int) -> FindCoordinatorResponse:
    message = ErrorCode(code).message
    if request.key:
        return FindCoordinatorResponse(0, code, message, node_id=-1, port=-1)
    return FindCoordinatorResponse(
        coordinators=[
            FindCoordinatorResponse.Coordinator(key, -1, "", -1, code, message)
            for key in request.coordinator_keys
        ]
    )


def _offset_commit(request: OffsetCommitRequest, code: int) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.Topic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponse.Partition(partition.partition_index, code)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_fetch(request: OffsetFetchRequest, code: int) -> OffsetFetchResponse:
    if not request.groups:
        return OffsetFetchResponse(error_code=code)
    return OffsetFetchResponse(
        groups=[refused_offsets(group, ErrorCode(code)) for group in request.groups]
    )


def _create_topics(request: CreateTopicsRequest, code: int) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[
            CreateTopicsResponse.Topic(name=topic.name, error_code=code) for topic in request.topics
        ]
    )


def _delete_topics(request: DeleteTopicsRequest, code: int) -> DeleteTopicsResponse:
    named = [*request.topic_names, *(topic.name for topic in request.topics)]
    return DeleteTopicsResponse(
        responses=[DeleteTopicsResponse.Topic(name=name, error_code=code) for name in named]
    )


def _create_partitions(request: CreatePartitionsRequest, code: int) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsResponse.Topic(name=topic.name, error_code=code)
            for topic in request.topics
        ]
    )


def _delete_records(request: DeleteRecordsRequest, code: int) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsResponse.Topic(
                topic.name,
                [
                    DeleteRecordsResponse.Partition(
                        partition.partition_index, low_watermark=-1, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _delete_groups(request: DeleteGroupsRequest, code: int) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[DeleteGroupsResponse.Group(name, code) for name in request.groups_names]
    )


def _alter_configs(request: AlterConfigsRequest, code: int) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResponse.Resource(
                error_code=code,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )


def _incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, code: int
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResponse.Resource(
                error_code=code,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )


def _elect_leaders(request: ElectLeadersRequest, code: int) -> ElectLeadersResponse:
    # The code is per partition, since version 0 has no top-level code.
    return ElectLeadersResponse(
        replica_election_results=[
            ElectLeadersResponse.Topic(
                topic.topic,
                [ElectLeadersResponse.Partition(index, code) for index in topic.partitions],
            )
            for topic in request.topic_partitions or ()
        ]
    )


_MAKERS: Final[dict[ApiKey, Callable[[Any, int], Any]]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.ELECT_LEADERS: _elect_leaders,
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _incremental_alter_configs,
}
