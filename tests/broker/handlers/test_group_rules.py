"""Rules of joining groups and committing offsets that Kafka's clients rely on."""

from __future__ import annotations

import asyncio

from broker.harness import BrokerHarness, with_harness_of
from penstock.metadata.configs import BROKER_CONFIGS
from penstock.wire.codec import encode_embedded
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    ConsumerProtocolSubscription,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

from .test_group_requests import find_coordinator

SUBSCRIPTION = encode_embedded(ConsumerProtocolSubscription(["orders"]), 1)
QUICK = {"offsets.topic.num.partitions": "2", "group.initial.rebalance.delay.ms": "0"}
quick_groups = with_harness_of(kafka=QUICK)
slow_groups = with_harness_of(kafka={**QUICK, "group.initial.rebalance.delay.ms": "250"})


def join_of(
    group: str, member_id: str = "", instance: str | None = None, session_ms: int = 30_000
) -> JoinGroupRequest:
    protocols = [JoinGroupRequest.Protocol("range", SUBSCRIPTION)]
    return JoinGroupRequest(group, session_ms, 60_000, member_id, instance, "consumer", protocols)


async def join(
    harness: BrokerHarness, request: JoinGroupRequest, version: int
) -> JoinGroupResponse:
    return await harness.ask(request, version, JoinGroupResponse)


@quick_groups
async def test_from_version_4_on_a_new_member_joins_in_two_steps(harness: BrokerHarness) -> None:
    """First it gets its id with MEMBER_ID_REQUIRED, then it joins. Members below version 4 and
    members with an instance id join in one step.
    """
    await find_coordinator(harness)
    for version in range(10):
        group = f"g{version}"
        first = await join(harness, join_of(group), version)
        assert first.member_id
        if version >= 4:
            assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
            assert first.generation_id == -1
            first = await join(harness, join_of(group, first.member_id), version)
        assert (first.error_code, first.generation_id) == (0, 1)
        assert first.leader == first.member_id
        if version >= 5:
            static = await join(harness, join_of(f"static-{group}", "", "one"), version)
            assert (static.error_code, static.generation_id) == (0, 1)


@quick_groups
async def test_session_timeouts_are_limited(harness: BrokerHarness) -> None:
    """To between six seconds and half an hour, as in Kafka. Both limits are allowed."""
    await find_coordinator(harness)
    bad = ErrorCode.INVALID_SESSION_TIMEOUT
    for session_ms, code in ((5_999, bad), (6_000, 0), (1_800_000, 0), (1_800_001, bad)):
        answer = await join(harness, join_of(f"g{session_ms}", "", None, session_ms), 3)
        assert answer.error_code == code


@slow_groups
async def test_a_new_group_delays_its_first_rebalance(harness: BrokerHarness) -> None:
    """By three seconds by default, because the members of a deployment start one after the
    other.
    """
    assert BROKER_CONFIGS["group.initial.rebalance.delay.ms"].default == 3_000
    await find_coordinator(harness)
    began = asyncio.get_running_loop().time()
    assert (await join(harness, join_of("g"), 3)).error_code == 0
    assert asyncio.get_running_loop().time() - began > 0.24


@quick_groups
async def test_a_sync_must_name_the_groups_protocol(harness: BrokerHarness) -> None:
    """From version 5 on. A member that names it gets the leader's assignment, during the rebalance
    and after it.
    """
    await find_coordinator(harness)
    joined = await join(harness, join_of("g", "", "static"), 7)

    async def sync(kind: str | None, name: str | None) -> SyncGroupResponse:
        assignment = SyncGroupRequest.Assignment(joined.member_id, b"yours")
        request = SyncGroupRequest(
            "g", joined.generation_id, joined.member_id, "static", kind, name, [assignment]
        )
        return await harness.ask(request, 5, SyncGroupResponse)

    for kind, name in (("connect", "range"), ("consumer", "roundrobin")):
        answer = await sync(kind, name)
        assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    for _ in range(2):
        answer = await sync("consumer", "range")
        assert (answer.error_code, bytes(answer.assignment)) == (0, b"yours")
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


@quick_groups
async def test_an_unknown_group_is_dead_or_not_found(harness: BrokerHarness) -> None:
    """Up to version 5 the response is the state Dead, from version 6 on also an error."""
    await find_coordinator(harness)
    for version in range(7):
        request = DescribeGroupsRequest(["nobody"])
        response = await harness.ask(request, version, DescribeGroupsResponse)
        (group,) = response.groups
        found = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
        assert (group.error_code, group.group_state) == (found, "Dead")


@quick_groups
async def test_a_committed_offset_is_returned_unchanged(harness: BrokerHarness) -> None:
    """With its leader epoch and metadata, in every version. `require_stable` does not wait if there
    are no transactions.
    """
    await harness.create("orders")
    await find_coordinator(harness)
    for version in range(2, 10):
        epoch = 3 if version >= 6 else -1
        partition = OffsetCommitRequest.Partition(0, 40 + version, epoch, f"note {version} \u00e9")
        request = OffsetCommitRequest(
            "g", topics=[OffsetCommitRequest.Topic("orders", partitions=[partition])]
        )
        stored = await harness.ask(request, version, OffsetCommitResponse)
        assert stored.topics[0].partitions[0].error_code == 0
        asked = OffsetFetchRequest("g", [OffsetFetchRequest.Topic("orders", [0])], [], True)
        response = await harness.ask(asked, 7, OffsetFetchResponse)
        assert response.error_code == 0
        (one,) = response.topics[0].partitions
        assert (one.error_code, one.committed_offset) == (0, 40 + version)
        assert (one.committed_leader_epoch, one.metadata) == (epoch, f"note {version} \u00e9")
