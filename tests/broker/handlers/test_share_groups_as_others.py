"""Requests for other types of groups that name a share group: answered as Kafka 4 answers them, in
every version."""

from __future__ import annotations

from broker.handlers.test_share_groups import assigned, beat, share_groups, with_state
from broker.harness import BrokerHarness
from penstock.wire.api import SUPPORTED, ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

MANY_GROUPS_SINCE = 8
NOT_FOUND = ErrorCode.GROUP_ID_NOT_FOUND
NO_OFFSET = -1


def versions(key: ApiKey) -> list[int]:
    return [*SUPPORTED[key].served]


def commit_of(group: str) -> OffsetCommitRequest:
    partition = OffsetCommitRequest.Partition(0, 1)
    return OffsetCommitRequest(
        group, topics=[OffsetCommitRequest.Topic("jobs", partitions=[partition])]
    )


async def committed(harness: BrokerHarness, group: str, version: int = 8) -> int:
    response = await harness.ask(commit_of(group), version, OffsetCommitResponse)
    return response.topics[0].partitions[0].error_code


@share_groups
async def test_offsets_cannot_be_committed_to_a_share_group(harness: BrokerHarness) -> None:
    """With members, and without. Otherwise a tool could give the group offsets that it never
    uses."""
    with_state(harness)
    await harness.create("jobs", 2)
    epoch, _ = await assigned(harness)
    for version in versions(ApiKey.OFFSET_COMMIT):
        assert await committed(harness, "g", version) == NOT_FOUND, version
        by_member = commit_of("g")
        by_member.member_id, by_member.generation_id_or_member_epoch = "anna", epoch
        response = await harness.ask(by_member, version, OffsetCommitResponse)
        assert response.topics[0].partitions[0].error_code == NOT_FOUND, version
    await beat(harness, -1)
    assert await committed(harness, "g") == NOT_FOUND
    deletion = OffsetDeleteRequest("g", [])
    assert (await harness.ask(deletion, 0, OffsetDeleteResponse)).error_code == NOT_FOUND


@share_groups
async def test_a_share_group_has_no_committed_offsets(harness: BrokerHarness) -> None:
    """That is no error: as for a group that does not exist, the offsets are -1."""
    with_state(harness)
    await harness.create("jobs", 2)
    epoch, _ = await assigned(harness)
    for version in versions(ApiKey.OFFSET_FETCH):
        if version < MANY_GROUPS_SINCE:
            old = OffsetFetchRequest("g", [OffsetFetchRequest.Topic("jobs", [0, 1])])
            answer = await harness.ask(old, version, OffsetFetchResponse)
            assert answer.error_code == 0
            found = [
                (each.committed_offset, each.error_code) for each in answer.topics[0].partitions
            ]
            assert found == [(NO_OFFSET, 0)] * 2, version
            continue
        topics = [OffsetFetchRequest.GroupTopic("jobs", partition_indexes=[0, 1])]
        for asked in (
            OffsetFetchRequest.Group("g", topics=topics),
            OffsetFetchRequest.Group("g", "anna", epoch, topics),
            OffsetFetchRequest.Group("g", topics=None),
        ):
            new = OffsetFetchRequest(groups=[asked], require_stable=True)
            (group,) = (await harness.ask(new, version, OffsetFetchResponse)).groups
            assert group.error_code == 0
            if asked.topics is None:
                assert group.topics == []
            else:
                found = [
                    (each.committed_offset, each.error_code) for each in group.topics[0].partitions
                ]
                assert found == [(NO_OFFSET, 0)] * 2, version


@share_groups
async def test_share_groups_are_listed_and_are_no_classic_groups(harness: BrokerHarness) -> None:
    with_state(harness)
    await harness.create("jobs", 2)
    await assigned(harness)
    assert await committed(harness, "plain") == 0
    for version in versions(ApiKey.LIST_GROUPS):
        listed = (await harness.ask(ListGroupsRequest(), version, ListGroupsResponse)).groups
        assert {(each.group_id, each.protocol_type) for each in listed} == {
            ("g", "share"),
            ("plain", ""),
        }, version
    for version in versions(ApiKey.DESCRIBE_GROUPS):
        request = DescribeGroupsRequest(["g"])
        (group,) = (await harness.ask(request, version, DescribeGroupsResponse)).groups
        assert (group.group_state, group.members) == ("Dead", []), version
        assert group.error_code == (NOT_FOUND if version >= 6 else 0), version
    new = await harness.ask(ConsumerGroupDescribeRequest(["g"]), 1, ConsumerGroupDescribeResponse)
    assert new.groups[0].error_code == NOT_FOUND


@share_groups
async def test_groups_of_all_types_are_deleted_together(harness: BrokerHarness) -> None:
    state = with_state(harness)
    await harness.create("jobs", 2)
    await assigned(harness)
    assert await committed(harness, "plain") == 0
    names = ["g", "plain", "none"]
    for version, share, plain in (
        (0, ErrorCode.NON_EMPTY_GROUP, 0),
        (2, ErrorCode.NONE, NOT_FOUND),
    ):
        response = await harness.ask(DeleteGroupsRequest(names), version, DeleteGroupsResponse)
        found = {each.group_id: each.error_code for each in response.results}
        assert found == {"g": share, "plain": plain, "none": NOT_FOUND}
        await beat(harness, -1) if share else None
    assert state.images == {}
    assert (await harness.ask(ListGroupsRequest(), 5, ListGroupsResponse)).groups == []
    # The id is free: another type of group may have it.
    assert await committed(harness, "g") == 0
