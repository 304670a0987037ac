"""Consumer groups of the new protocol in a broker: requests, rights, a restart of the shard."""

from __future__ import annotations

import asyncio

from broker.access.clients import AUTHORIZER, Client, create, entry
from broker.harness import BrokerHarness, with_harness, with_harness_of
from penstock.metadata.config_changes import ResourceType as ResourceKind
from penstock.security.acls import AclOperation, ResourceType
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

ON = {
    "group.consumer.preview.enable": "true",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.heartbeat.interval.ms": "700",
    "offsets.topic.num.partitions": "1",
}
consumer_groups = with_harness_of(kafka=ON)
BUSY = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


def joining(
    member_id: str = "a", names: tuple[str, ...] = ("orders",), regex: str | None = None
) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        "g", member_id, 0, None, None, 60_000, list(names), regex, None, []
    )


async def ask(
    harness: BrokerHarness | Client, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """Sends a heartbeat until the coordinator is there."""
    while True:
        response = await harness.ask(request, 1, ConsumerGroupHeartbeatResponse)
        if response.error_code not in BUSY:
            return response
        await harness.ask(FindCoordinatorRequest("g"), 2, FindCoordinatorResponse)
        await asyncio.sleep(0.002)


def partitions(response: ConsumerGroupHeartbeatResponse) -> dict[bytes, list[int]]:
    assert response.assignment is not None
    return {each.topic_id: each.partitions for each in response.assignment.topic_partitions}


async def advertised(harness: BrokerHarness) -> set[int]:
    response = await harness.ask(ApiVersionsRequest("test", "1"), 3, ApiVersionsResponse)
    return {each.api_key for each in response.api_keys}


@with_harness
async def test_the_new_protocol_is_not_advertised(harness: BrokerHarness) -> None:
    """Clients use it whenever it is."""
    assert not {68, 69} & await advertised(harness)
    assert ApiKey.CONSUMER_GROUP_HEARTBEAT not in harness.services.apis


@consumer_groups
async def test_a_setting_turns_the_new_protocol_on(harness: BrokerHarness) -> None:
    assert {68, 69} <= await advertised(harness)


@consumer_groups
async def test_a_group_from_its_first_member_to_its_deletion(harness: BrokerHarness) -> None:
    topic_id = await harness.create("orders", 4)
    first = await ask(harness, joining())
    assert (first.error_code, first.member_epoch) == (0, 1)
    assert first.heartbeat_interval_ms == 700
    assert partitions(first) == {topic_id: [0, 1, 2, 3]}

    committed = await harness.ask(
        OffsetCommitRequest(
            "g",
            1,
            "a",
            topics=[
                OffsetCommitRequest.Topic(
                    "orders", partitions=[OffsetCommitRequest.Partition(2, 9)]
                )
            ],
        ),
        9,
        OffsetCommitResponse,
    )
    assert committed.topics[0].partitions[0].error_code == 0
    for epoch, expected in ((1, 0), (2, ErrorCode.STALE_MEMBER_EPOCH)):
        asked = OffsetFetchRequest.Group("g", "a", epoch, None)
        fetched = await harness.ask(OffsetFetchRequest(groups=[asked]), 9, OffsetFetchResponse)
        assert fetched.groups[0].error_code == expected

    described = await harness.ask(
        ConsumerGroupDescribeRequest(["g", "none"], True), 1, ConsumerGroupDescribeResponse
    )
    found, missing = described.groups
    assert (found.group_state, found.group_epoch, found.assignor_name) == ("Stable", 1, "uniform")
    assert found.authorized_operations == 3400
    assert found.members[0].client_host == "/192.0.2.1"
    assert found.members[0].assignment.topic_partitions[0].topic_name == "orders"
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    classic = await harness.ask(DescribeGroupsRequest(["g"]), 6, DescribeGroupsResponse)
    assert classic.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    listed = await harness.ask(ListGroupsRequest([], ["consumer"]), 5, ListGroupsResponse)
    assert [(each.group_id, each.group_type) for each in listed.groups] == [("g", "consumer")]

    deleting = DeleteGroupsRequest(["g"])
    refused = await harness.ask(deleting, 2, DeleteGroupsResponse)
    assert refused.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    left = await ask(harness, ConsumerGroupHeartbeatRequest("g", "a", -1))
    assert (left.error_code, left.member_epoch) == (0, -1)
    deleted = await harness.ask(deleting, 2, DeleteGroupsResponse)
    assert deleted.results[0].error_code == 0
    again = await ask(harness, ConsumerGroupHeartbeatRequest("g", "a", 1))
    assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@consumer_groups
async def test_topics_that_are_created_later_are_assigned(harness: BrokerHarness) -> None:
    """By name, and by a regular expression that the broker resolves."""
    await ask(harness, joining(names=("orders",), regex="pay.*"))
    orders = await harness.create("orders", 1)
    payments = await harness.create("payments", 2)
    group = harness.services.groups.require("g").shard.state.consumer("g")
    assert group is not None

    async def assigned() -> dict[bytes, list[int]]:
        # The expressions of a group are resolved every ten seconds at most.
        group.resolved_ms = None
        epoch = group.current("a").epoch
        full = joining(names=("orders",), regex="pay.*")
        full.member_epoch = epoch
        return partitions(await ask(harness, full))

    while await assigned() != {orders: [0], payments: [0, 1]}:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0.002)


@consumer_groups
async def test_a_group_may_have_settings_of_its_own(harness: BrokerHarness) -> None:
    await harness.create("orders", 1)
    await ask(harness, joining())
    change = IncrementalAlterConfigsRequest.Config("consumer.heartbeat.interval.ms", 0, "900")
    request = IncrementalAlterConfigsRequest(
        [IncrementalAlterConfigsRequest.Resource(ResourceKind.GROUP, "g", [change])]
    )
    altered = await harness.ask(request, 1, IncrementalAlterConfigsResponse)
    assert altered.responses[0].error_code == 0, altered.responses[0].error_message
    beat = await ask(harness, ConsumerGroupHeartbeatRequest("g", "a", 1))
    assert beat.heartbeat_interval_ms == 900
    resources = await harness.ask(
        ListConfigResourcesRequest([ResourceKind.GROUP]), 1, ListConfigResourcesResponse
    )
    assert [each.resource_name for each in resources.config_resources] == ["g"]


@consumer_groups
async def test_a_coordinator_that_loads_its_log_goes_on(harness: BrokerHarness) -> None:
    await harness.create("orders", 2)
    await ask(harness, joining())
    await ask(harness, joining("b"))
    shell = harness.services.groups.require("g")
    before = shell.shard.state.consumer("g")
    assert before is not None
    shell.break_off(RuntimeError("a test"))
    beat = await ask(harness, ConsumerGroupHeartbeatRequest("g", "a", 1))
    assert beat.error_code == 0
    after = harness.services.groups.require("g").shard.state.consumer("g")
    assert after is not None
    assert after is not before
    assert set(after.members) == {"a", "b"}


@with_harness_of(kafka=ON | AUTHORIZER)
async def test_members_need_rights(harness: BrokerHarness) -> None:
    """READ on the group and DESCRIBE on the topics; others that match are left out."""
    orders = await harness.create("orders", 1)
    await harness.create("other", 1)
    await ask(harness, joining("x"))
    await ask(harness, ConsumerGroupHeartbeatRequest("g", "x", -1))
    ann = Client(harness, "User:ann")
    assert (await ask(ann, joining())).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    await create(harness, [entry("User:ann", ResourceType.GROUP, "g", AclOperation.READ)])
    refused = await ask(ann, joining())
    assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert "orders" in (refused.error_message or "")
    allowed = entry("User:ann", ResourceType.TOPIC, "orders", AclOperation.DESCRIBE)
    await create(harness, [allowed])
    assert partitions(await ask(ann, joining())) == {orders: [0]}

    await ask(ann, joining(names=(), regex="o.*"))
    group = harness.services.groups.require("g").shard.state.consumer("g")
    assert group is not None
    await harness.until(lambda: bool(group.stored.regexes))
    assert group.matches("o.*") == {"orders"}

    described = await ann.ask(ConsumerGroupDescribeRequest(["g"]), 1, ConsumerGroupDescribeResponse)
    assert described.groups[0].error_code == 0
    await ask(harness, joining("x", ("other",)))
    hidden = await ann.ask(ConsumerGroupDescribeRequest(["g"]), 1, ConsumerGroupDescribeResponse)
    assert hidden.groups[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert hidden.groups[0].members == []
    bob = Client(harness, "User:bob")
    unseen = await bob.ask(ConsumerGroupDescribeRequest(["g"]), 1, ConsumerGroupDescribeResponse)
    assert unseen.groups[0].error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
