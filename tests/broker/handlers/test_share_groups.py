"""Share groups in a broker, with a share coordinator in memory: requests, rights, restarts."""

from __future__ import annotations

import asyncio

from broker.access.clients import AUTHORIZER, Client, create, entry
from broker.harness import BrokerHarness, with_harness, with_harness_of
from penstock.metadata.model import SHARE_STATE_TOPIC
from penstock.security.acls import AclOperation, ResourceType
from penstock.shares.state_port import SharePartitionId
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from shares.fake_state import FakeShareState

ON = {
    "group.share.assignment.interval.ms": "0",
    "group.share.heartbeat.interval.ms": "700",
    "offsets.topic.num.partitions": "1",
}
share_groups = with_harness_of(kafka=ON)
BUSY = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
KEYS = {76, 77, 90, 91, 92}


def with_state(harness: BrokerHarness) -> FakeShareState:
    state = FakeShareState()
    harness.services.groups.share_calls.share_state = state
    return state


async def beat(
    harness: BrokerHarness | Client, epoch: int = 0, names: list[str] | None = None
) -> ShareGroupHeartbeatResponse:
    """Sends a heartbeat until the coordinator is there."""
    request = ShareGroupHeartbeatRequest("g", "anna", epoch, None, names or ["jobs"])
    while True:
        response = await harness.ask(request, 1, ShareGroupHeartbeatResponse)
        if response.error_code not in BUSY:
            return response
        await harness.ask(FindCoordinatorRequest("g"), 2, FindCoordinatorResponse)
        await asyncio.sleep(0.002)


async def assigned(harness: BrokerHarness | Client) -> tuple[int, dict[bytes, list[int]]]:
    """Joins, and sends heartbeats until there is an assignment."""
    epoch = 0
    while True:
        response = await beat(harness, epoch)
        assert response.error_code == 0, response.error_message
        epoch = response.member_epoch
        assert response.assignment is not None
        if response.assignment.topic_partitions:
            topics = response.assignment.topic_partitions
            return epoch, {topic.topic_id: topic.partitions for topic in topics}
        await asyncio.sleep(0.002)


async def offsets(
    harness: BrokerHarness | Client, topics: list[str] | None = None
) -> DescribeShareGroupOffsetsResponse.Group:
    wanted = None
    if topics is not None:
        wanted = [DescribeShareGroupOffsetsRequest.Topic(name, [0, 1]) for name in topics]
    request = DescribeShareGroupOffsetsRequest(
        [DescribeShareGroupOffsetsRequest.Group("g", wanted)]
    )
    response = await harness.ask(request, 1, DescribeShareGroupOffsetsResponse)
    return response.groups[0]


def alteration(offset: int, topic: str = "jobs") -> AlterShareGroupOffsetsRequest:
    partition = AlterShareGroupOffsetsRequest.Partition(0, offset)
    return AlterShareGroupOffsetsRequest(
        "g", [AlterShareGroupOffsetsRequest.Topic(topic, [partition])]
    )


@with_harness_of(kafka={"group.share.enable": "false"})
async def test_share_groups_can_be_switched_off(harness: BrokerHarness) -> None:
    assert not KEYS & set(harness.services.apis)


@with_harness
async def test_share_groups_are_on_and_cost_nothing_until_they_are_used(
    harness: BrokerHarness,
) -> None:
    """The topic of their states is created with the first one, not with other groups."""
    assert set(harness.services.apis) >= KEYS
    await harness.create("jobs")
    partition = OffsetCommitRequest.Partition(0, 1)
    commit = OffsetCommitRequest(
        "plain", topics=[OffsetCommitRequest.Topic("jobs", partitions=[partition])]
    )
    topics = harness.broker.cluster.image.topics
    while True:
        answer = await harness.ask(commit, 8, OffsetCommitResponse)
        if not answer.topics[0].partitions[0].error_code:
            break
        await harness.ask(FindCoordinatorRequest("plain"), 2, FindCoordinatorResponse)
        await asyncio.sleep(0.002)
    described = await harness.ask(
        ShareGroupDescribeRequest(["plain"]), 1, ShareGroupDescribeResponse
    )
    assert described.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert SHARE_STATE_TOPIC not in topics
    await beat(harness)
    await harness.until(lambda: SHARE_STATE_TOPIC in topics)


@share_groups
async def test_a_group_from_its_first_member_to_its_deletion(harness: BrokerHarness) -> None:
    assert set(harness.services.apis) >= KEYS
    state = with_state(harness)
    topic_id = await harness.create("jobs", 2)
    epoch, found = await assigned(harness)
    assert found == {topic_id: [0, 1]}
    assert {each.partition for each in state.images} == {0, 1}
    settled = await beat(harness, epoch)
    assert settled.heartbeat_interval_ms == 700

    described = await harness.ask(
        ShareGroupDescribeRequest(["g", "none"], True), 1, ShareGroupDescribeResponse
    )
    group, missing = described.groups
    assert (group.group_state, group.group_epoch, group.assignor_name) == (
        "Stable",
        epoch,
        "simple",
    )
    assert group.members[0].assignment.topic_partitions[0].topic_name == "jobs"
    assert group.authorized_operations > 0
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    listed = await harness.ask(ListGroupsRequest(["Stable"], ["share"]), 5, ListGroupsResponse)
    assert [(each.group_id, each.group_type) for each in listed.groups] == [("g", "share")]

    refused = await harness.ask(DeleteGroupsRequest(["g"]), 2, DeleteGroupsResponse)
    assert refused.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    assert (await beat(harness, -1)).member_epoch == -1
    deleted = await harness.ask(DeleteGroupsRequest(["g"]), 2, DeleteGroupsResponse)
    assert deleted.results[0].error_code == 0
    assert state.images == {}
    listed = await harness.ask(ListGroupsRequest([], ["share"]), 5, ListGroupsResponse)
    assert listed.groups == []


@share_groups
async def test_offsets_are_described_altered_and_deleted(harness: BrokerHarness) -> None:
    state = with_state(harness)
    topic_id = await harness.create("jobs", 2)
    await assigned(harness)
    answer = await harness.ask(alteration(5), 0, AlterShareGroupOffsetsResponse)
    assert answer.error_code == ErrorCode.NON_EMPTY_GROUP
    await beat(harness, -1)
    answer = await harness.ask(alteration(0), 0, AlterShareGroupOffsetsResponse)
    assert answer.responses[0].partitions[0].error_code == 0
    for group in (await offsets(harness), await offsets(harness, ["jobs"])):
        (topic,) = group.topics
        assert (group.error_code, topic.topic_name, topic.topic_id) == (0, "jobs", topic_id)
        shown = [(each.partition_index, each.start_offset, each.lag) for each in topic.partitions]
        assert shown == [(0, 0, 0), (1, -1, -1)]
    unknown = await offsets(harness, ["none"])
    assert unknown.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    state.error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    failed = (await offsets(harness)).topics[0].partitions[0]
    assert failed.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    state.error = None
    deletion = DeleteShareGroupOffsetsRequest("g", [DeleteShareGroupOffsetsRequest.Topic("jobs")])
    gone = await harness.ask(deletion, 0, DeleteShareGroupOffsetsResponse)
    assert gone.responses[0].error_code == 0
    assert state.images == {}
    assert (await offsets(harness)).topics == []


@share_groups
async def test_without_a_share_coordinator_nothing_is_assigned(harness: BrokerHarness) -> None:
    await harness.create("jobs", 1)
    first = await beat(harness)
    assert (first.error_code, first.member_epoch) == (0, 1)
    again = await beat(harness, 1)
    assert again.assignment is not None
    assert again.assignment.topic_partitions == []


@share_groups
async def test_the_states_of_a_deleted_topic_are_deleted(harness: BrokerHarness) -> None:
    state = with_state(harness)
    topic_id = await harness.create("jobs", 1)
    await assigned(harness)
    assert state.images.keys() == {SharePartitionId("g", topic_id, 0)}
    for shell in harness.services.groups.loaded():
        shell.on_topics_deleted([topic_id])
    await harness.until(lambda: not state.images)
    assert ("delete", SharePartitionId("g", topic_id, 0)) in state.calls


@with_harness_of(kafka={**ON, **AUTHORIZER})
async def test_rights_are_those_of_kafka(harness: BrokerHarness) -> None:
    with_state(harness)
    await harness.create("jobs", 1)
    ann = Client(harness, "User:ann")
    refused = await ann.ask(
        ShareGroupHeartbeatRequest("g", "anna", 0, None, ["jobs"]), 1, ShareGroupHeartbeatResponse
    )
    assert refused.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    await create(harness, [entry("User:ann", ResourceType.GROUP, "g", AclOperation.READ)])
    assert (await beat(ann)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    await create(harness, [entry("User:ann", ResourceType.TOPIC, "jobs", AclOperation.DESCRIBE)])
    await assigned(ann)
    described = await ann.ask(ShareGroupDescribeRequest(["g"]), 1, ShareGroupDescribeResponse)
    assert described.groups[0].error_code == 0
    bob = Client(harness, "User:bob")
    unseen = await bob.ask(ShareGroupDescribeRequest(["g"]), 1, ShareGroupDescribeResponse)
    assert unseen.groups[0].error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert (await offsets(bob)).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    await create(harness, [entry("User:bob", ResourceType.GROUP, "g", AclOperation.DESCRIBE)])
    hidden = await bob.ask(ShareGroupDescribeRequest(["g"]), 1, ShareGroupDescribeResponse)
    assert hidden.groups[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (await offsets(bob)).topics == []
    named = (await offsets(bob, ["jobs"])).topics[0].partitions[0]
    assert named.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    await beat(ann, -1)
    altered = await ann.ask(alteration(1), 0, AlterShareGroupOffsetsResponse)
    code = altered.responses[0].partitions[0].error_code
    assert code == ErrorCode.TOPIC_AUTHORIZATION_FAILED, "READ on the topic is missing"
    deletion = DeleteShareGroupOffsetsRequest("g", [DeleteShareGroupOffsetsRequest.Topic("jobs")])
    gone = await ann.ask(deletion, 0, DeleteShareGroupOffsetsResponse)
    assert gone.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED, "DELETE on the group is missing"
