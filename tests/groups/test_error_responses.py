"""Every refusal can be encoded in its version, with the code where that version's clients look."""

from __future__ import annotations

import pytest

from penstock.groups.error_responses import group_append_error, offsets_append_error, refuse
from penstock.groups.offset_fetch import groups_of, response_of
from penstock.wire.codec import decode, encode
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
)
from penstock.wire.messages.base import Request

COMMIT = OffsetCommitRequest(
    "g",
    topics=[OffsetCommitRequest.Topic("t", partitions=[OffsetCommitRequest.Partition(3, 7)])],
)
FETCH = OffsetFetchRequest(
    "g",
    [OffsetFetchRequest.Topic("t", [3])],
    [OffsetFetchRequest.Group("g", topics=None), OffsetFetchRequest.Group("h", topics=None)],
)
CASES: list[tuple[Request, range]] = [
    (JoinGroupRequest("g"), range(10)),
    (SyncGroupRequest("g"), range(6)),
    (HeartbeatRequest("g"), range(5)),
    (LeaveGroupRequest("g"), range(6)),
    (COMMIT, range(2, 10)),
    (FETCH, range(1, 10)),
    (OffsetDeleteRequest("g"), range(1)),
    (DescribeGroupsRequest(["g", "h"]), range(7)),
    (ListGroupsRequest(), range(6)),
    (DeleteGroupsRequest(["g", "h"]), range(3)),
]


def codes_in(value: object) -> set[int]:
    """Returns every non-zero error code in a message, at any depth."""
    if isinstance(value, list):
        return {code for item in value for code in codes_in(item)}
    slots = getattr(type(value), "__slots__", ())
    found = {code for name in slots for code in codes_in(getattr(value, name))}
    own = getattr(value, "error_code", 0)
    return found | ({int(own)} if own else set())


@pytest.mark.parametrize(
    ("request_", "version"),
    [(request, version) for request, versions in CASES for version in versions],
    ids=lambda value: value if isinstance(value, int) else type(value).__name__,
)
def test_a_refusal_encodes_and_its_code_arrives(request_: Request, version: int) -> None:
    refusal = refuse(request_, version, ErrorCode.NOT_COORDINATOR)
    arrived = decode(type(refusal), encode(refusal, version), version)
    assert codes_in(arrived) == {ErrorCode.NOT_COORDINATOR}


def test_append_errors_become_coordinator_errors() -> None:
    """A client cannot repair a log, so the error makes it look for the coordinator again."""
    for translate in (group_append_error, offsets_append_error):
        assert translate(ErrorCode.NOT_LEADER_OR_FOLLOWER) is ErrorCode.NOT_COORDINATOR
        assert translate(ErrorCode.KAFKA_STORAGE_ERROR) is ErrorCode.NOT_COORDINATOR
        assert translate(ErrorCode.NOT_ENOUGH_REPLICAS) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert translate(ErrorCode.INVALID_RECORD) is ErrorCode.INVALID_RECORD
    assert group_append_error(ErrorCode.REQUEST_TIMED_OUT) is ErrorCode.REBALANCE_IN_PROGRESS
    assert group_append_error(ErrorCode.MESSAGE_TOO_LARGE) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert offsets_append_error(ErrorCode.REQUEST_TIMED_OUT) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    too_large = offsets_append_error(ErrorCode.MESSAGE_TOO_LARGE)
    assert too_large is ErrorCode.INVALID_COMMIT_OFFSET_SIZE


def test_a_refused_offset_fetch_lists_the_requested_partitions() -> None:
    """librdkafka retries because of the code of a partition, and never without one (its issue
    5586)."""
    topic = OffsetFetchRequest.GroupTopic("t", partition_indexes=[3, 5])
    request = OffsetFetchRequest(groups=[OffsetFetchRequest.Group("g", topics=[topic])])
    for code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
        (group,) = refuse(request, 9, code).groups  # type: ignore[attr-defined]
        assert (group.group_id, group.error_code) == ("g", code)
        assert [
            (each.partition_index, each.committed_offset, each.error_code)
            for each in group.topics[0].partitions
        ] == [(index, -1, ErrorCode.UNSTABLE_OFFSET_COMMIT) for index in (3, 5)]
    (group,) = refuse(request, 9, ErrorCode.GROUP_AUTHORIZATION_FAILED).groups  # type: ignore[attr-defined]
    assert group.topics == []


def test_old_offset_fetch_versions_are_converted() -> None:
    """Old requests are converted to the new shape, and responses back to the old one."""
    (asked,) = groups_of(FETCH, 7)
    assert asked == OffsetFetchRequest.Group(
        "g", topics=[OffsetFetchRequest.GroupTopic("t", partition_indexes=[3])]
    )
    (everything,) = groups_of(OffsetFetchRequest("g", None), 2)
    assert everything.topics is None
    assert [group.group_id for group in groups_of(FETCH, 8)] == ["g", "h"]
    partition = OffsetFetchResponse.GroupPartition(3, 42, 5, "note")
    answer = OffsetFetchResponse.Group(
        "g", [OffsetFetchResponse.GroupTopic("t", partitions=[partition])]
    )
    old = response_of([answer], 5)
    assert old.topics == [
        OffsetFetchResponse.Topic("t", [OffsetFetchResponse.Partition(3, 42, 5, "note")])
    ]
    failed = OffsetFetchResponse.Group("g", error_code=ErrorCode.NOT_COORDINATOR)
    assert response_of([failed], 5).error_code == ErrorCode.NOT_COORDINATOR
    assert response_of([answer, failed], 8).groups == [answer, failed]
