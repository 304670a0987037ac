"""Consumer groups of the new protocol in a broker: requests, rights, a restart of the shard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar, cast

from broker.access.clients import AUTHORIZER, Client, create, entry
from broker.harness import BrokerHarness, with_harness, with_harness_of
from penstock.groups.consumer.records import EpochEntry, GroupEpoch, record_of
from penstock.metadata.config_changes import ResourceType as ResourceKind
from penstock.records.batch import iter_batches
from penstock.records.record import Record
from penstock.security.acls import AclOperation, ResourceType
from penstock.wire.api import ApiKey
from penstock.wire.codec import decode_embedded, encode_embedded
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

T = TypeVar("T")
ON = {
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.heartbeat.interval.ms": "700",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "offsets.topic.num.partitions": "1",
}
consumer_groups = with_harness_of(kafka=ON)
migrating = with_harness_of(kafka={**ON, "group.initial.rebalance.delay.ms": "0"})
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
async def test_the_new_protocol_is_advertised(harness: BrokerHarness) -> None:
    """Clients decide by the advertised keys alone."""
    assert {68, 69} <= await advertised(harness)


@with_harness_of(kafka={"group.coordinator.rebalance.protocols": "classic"})
async def test_a_setting_turns_the_new_protocol_off(harness: BrokerHarness) -> None:
    assert not {68, 69} & await advertised(harness)
    assert ApiKey.CONSUMER_GROUP_HEARTBEAT not in harness.services.apis


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


def subscription() -> bytes:
    return encode_embedded(ConsumerProtocolSubscription(["orders"]), 1)


async def join_classic(harness: BrokerHarness, member_id: str = "") -> JoinGroupResponse:
    request = JoinGroupRequest(
        "g",
        10_000,
        60_000,
        member_id,
        None,
        "consumer",
        [JoinGroupRequest.Protocol("range", subscription())],
    )
    while True:
        response = await harness.ask(request, 3, JoinGroupResponse)
        if response.error_code not in BUSY:
            return response
        await harness.ask(FindCoordinatorRequest("g"), 2, FindCoordinatorResponse)
        await asyncio.sleep(0.002)


async def sync_classic(
    harness: BrokerHarness, joined: JoinGroupResponse, given: bytes = b""
) -> dict[str, list[int]]:
    """Returns the assignment. The leader of a classic group gives itself `given`."""
    assignments = [SyncGroupRequest.Assignment(joined.member_id, given)] if given else []
    request = SyncGroupRequest("g", joined.generation_id, joined.member_id, assignments=assignments)
    response = await harness.ask(request, 3, SyncGroupResponse)
    assert response.error_code == 0
    _, found = decode_embedded(ConsumerProtocolAssignment, response.assignment)
    return {each.topic: each.partitions for each in found.assigned_partitions}


@migrating
async def test_a_live_group_changes_its_protocol_and_changes_back(harness: BrokerHarness) -> None:
    topic_id = await harness.create("orders", 4)
    joined = await join_classic(harness)
    every = [ConsumerProtocolAssignment.TopicPartition("orders", [0, 1, 2, 3])]
    everything = encode_embedded(ConsumerProtocolAssignment(every), 1)
    assert await sync_classic(harness, joined, everything) == {"orders": [0, 1, 2, 3]}

    first = await ask(harness, joining())
    assert (first.error_code, first.member_epoch) == (0, joined.generation_id + 1)
    assert partitions(first) == {}, "the classic member still owns them"
    beat = HeartbeatRequest("g", joined.generation_id, joined.member_id)
    told = await harness.ask(beat, 3, HeartbeatResponse)
    assert told.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    again = await join_classic(harness, joined.member_id)
    assert (again.generation_id, again.leader) == (first.member_epoch, "")
    kept = (await sync_classic(harness, again))["orders"]
    assert len(kept) == 2
    full = joining()
    full.member_epoch = first.member_epoch
    rest = partitions(await ask(harness, full))[topic_id]
    assert sorted([*kept, *rest]) == [0, 1, 2, 3]

    await ask(harness, ConsumerGroupHeartbeatRequest("g", "a", -1))
    listed = await harness.ask(ListGroupsRequest([], ["classic"]), 5, ListGroupsResponse)
    assert [each.group_id for each in listed.groups] == ["g"]
    back = await join_classic(harness, joined.member_id)
    assert (back.error_code, back.leader) == (0, joined.member_id)
    assert await sync_classic(harness, back, everything) == {"orders": [0, 1, 2, 3]}


class Counting:
    """An executor that counts what it does."""

    def __init__(self) -> None:
        self.works = 0

    async def run(self, work: Callable[[], T]) -> T:
        self.works += 1
        return work()


@consumer_groups
async def test_expressions_are_matched_on_threads_of_their_own(harness: BrokerHarness) -> None:
    """A slow one must not delay the syncing of logs."""
    payments = await harness.create("payments", 2)
    await ask(harness, joining())
    shell = harness.services.groups.require("g")
    own, shared = Counting(), Counting()
    shell._env = replace(shell._env, matching=own, executor=shared)
    full = joining(regex="pay.*")
    while payments not in partitions(response := await ask(harness, full)):
        full.member_epoch = response.member_epoch
        await asyncio.sleep(0.002)
    assert (own.works, shared.works) == (1, 0)


class TooSlow:
    """An executor on which no expression is matched in time."""

    async def run(self, work: Callable[[], T]) -> T:
        return cast("T", {"pay.*": None})


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collects what the group coordinator logs."""
    lines: list[str] = []
    handler = logging.Handler()
    # A class of its own would say no more.
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("penstock.broker.coordinators.groups")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


@consumer_groups
async def test_an_expression_that_takes_too_long_by_now_is_logged_and_goes_on(
    harness: BrokerHarness,
) -> None:
    payments = await harness.create("payments", 2)
    full = joining(names=(), regex="pay.*")
    while payments not in partitions(response := await ask(harness, full)):
        full.member_epoch = response.member_epoch
        await asyncio.sleep(0.002)
    shell = harness.services.groups.require("g")
    shell._env = replace(shell._env, matching=TooSlow())
    group, counters = shell.shard.state.consumer("g"), shell.shard.state.counters
    assert group is not None
    with logged() as lines:
        for number in range(2):
            await harness.create(f"pay{number}", 1)
            while counters.regexes_outgrown == number:
                group.resolved_ms = None  # it need not wait for ten seconds
                group.topics_were_created = True
                full.member_epoch = response.member_epoch
                response = await ask(harness, full)
                assert response.error_code == 0
                await asyncio.sleep(0.002)
    assert partitions(response) == {payments: [0, 1]}
    (line,) = lines
    assert line.startswith("group g does not get new topics: the regular expression 'pay.*' takes")


@consumer_groups
async def test_records_that_are_too_new_are_logged_once(harness: BrokerHarness) -> None:
    await harness.create("orders", 1)
    await ask(harness, joining())
    shell = harness.services.groups.require("g")
    entry = record_of(EpochEntry("g", GroupEpoch(9)))
    assert entry.value is not None
    newer = Record(0, 0, entry.key, b"\x00\x09" + entry.value[2:])
    header = shell.hosted.log.read(0, 1 << 20, shell.hosted.log.end_offset)
    assert header is not None
    _, first = next(iter(iter_batches(header.data)))
    with logged() as lines:
        for _ in range(3):
            shell.replay(first, [newer, newer])
    assert [line for line in lines if "EpochValue has version 9" in line] == lines
    assert len(lines) == 1
    assert (await ask(harness, ConsumerGroupHeartbeatRequest("g", "a", 1))).error_code == 0
