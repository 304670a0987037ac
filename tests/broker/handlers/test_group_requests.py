"""Group requests on a whole broker: errors, responses, and what is written to the log."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine
from random import Random
from typing import Any

from broker.harness import BrokerHarness, InTurn, NoNetwork, with_harness, with_harness_of
from penstock.broker.coordinators.groups import GroupShell
from penstock.groups.config import GroupConfig
from penstock.groups.effects import RequestInfo
from penstock.groups.shard_state import ConsumerContext
from penstock.metadata.model import OFFSETS_TOPIC
from penstock.ports import Env
from penstock.records.batch import iter_batches
from penstock.runtime import SystemClock, SystemRandom
from penstock.security.acls import OPERATIONS_NOT_REQUESTED as NOT_ASKED
from penstock.sim.disk.disk import SimDisk
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from penstock.wire.messages.base import Response

GROUP_OPERATIONS = 3400
"""What Kafka 4.0 without an authorizer answers."""
SMALL = {"offsets.topic.num.partitions": "2"}
few_groups = with_harness_of(kafka=SMALL)


async def find_coordinator(harness: BrokerHarness) -> None:
    """Waits until the internal topic for groups exists and the shard of group "g" is loaded."""
    while True:
        found = await harness.ask(FindCoordinatorRequest("g"), 2, FindCoordinatorResponse)
        asked = await harness.ask(HeartbeatRequest("g", 1, "m"), 2, HeartbeatResponse)
        if (found.error_code, asked.error_code) == (0, ErrorCode.UNKNOWN_MEMBER_ID):
            return
        await asyncio.sleep(0.002)


def commit_of(group: str, topic: str, offsets: dict[int, int]) -> OffsetCommitRequest:
    partitions = [OffsetCommitRequest.Partition(*item) for item in offsets.items()]
    return OffsetCommitRequest(
        group, topics=[OffsetCommitRequest.Topic(topic, partitions=partitions)]
    )


async def commit(
    harness: BrokerHarness, group: str, topic: str, offsets: dict[int, int]
) -> list[int]:
    response = await harness.ask(commit_of(group, topic, offsets), 8, OffsetCommitResponse)
    return [each.error_code for each in response.topics[0].partitions]


async def committed(
    harness: BrokerHarness, group: str, topic: str, indexes: list[int]
) -> list[int]:
    asked = OffsetFetchRequest(group, [OffsetFetchRequest.Topic(topic, indexes)])
    response = await harness.ask(asked, 7, OffsetFetchResponse)
    return [each.committed_offset for each in response.topics[0].partitions]


async def delete_offsets(
    harness: BrokerHarness, group: str, topics: dict[str, list[int]]
) -> tuple[int, dict[str, list[tuple[int, int]]]]:
    request = OffsetDeleteRequest(
        group,
        [
            OffsetDeleteRequest.Topic(name, [OffsetDeleteRequest.Partition(at) for at in indexes])
            for name, indexes in topics.items()
        ],
    )
    response = await harness.ask(request, 0, OffsetDeleteResponse)
    return response.error_code, {
        topic.name: [(each.partition_index, each.error_code) for each in topic.partitions]
        for topic in response.topics
    }


@few_groups
async def test_committed_offsets_of_unknown_partitions_cannot_be_deleted(
    harness: BrokerHarness,
) -> None:
    """Each is refused on its own, in the order of the request. The other offsets are deleted."""
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await harness.create("orders", 2)
    await find_coordinator(harness)
    assert await commit(harness, "g", "orders", {0: 5, 1: 6}) == [0, 0]
    assert await delete_offsets(harness, "g", {"none": [0], "orders": [9, 0]}) == (
        0,
        {"none": [(0, unknown)], "orders": [(9, unknown), (0, 0)]},
    )
    assert await committed(harness, "g", "orders", [0, 1]) == [-1, 6]
    assert await delete_offsets(harness, "g", {"none": [0]}) == (0, {"none": [(0, unknown)]})


@few_groups
async def test_an_unknown_group_is_an_error_of_the_whole_offset_delete_response(
    harness: BrokerHarness,
) -> None:
    """The response lists no topics."""
    await harness.create("orders")
    await find_coordinator(harness)
    for asked in ({"orders": [0]}, {"none": [0]}):
        assert await delete_offsets(harness, "nobody", asked) == (ErrorCode.GROUP_ID_NOT_FOUND, {})
        assert await delete_offsets(harness, "", asked) == (ErrorCode.INVALID_GROUP_ID, {})


@few_groups
async def test_the_group_with_an_empty_id_has_offsets_but_no_members(
    harness: BrokerHarness,
) -> None:
    """As in Kafka, it accepts commits and can be described and deleted, but not joined."""
    await harness.create("orders")
    await find_coordinator(harness)

    async def delete() -> int:
        response = await harness.ask(DeleteGroupsRequest([""]), 2, DeleteGroupsResponse)
        return response.results[0].error_code

    assert await delete() == ErrorCode.GROUP_ID_NOT_FOUND
    assert await commit(harness, "", "orders", {0: 5}) == [0]
    assert await committed(harness, "", "orders", [0]) == [5]
    described = await harness.ask(DescribeGroupsRequest([""]), 5, DescribeGroupsResponse)
    assert (described.groups[0].error_code, described.groups[0].group_state) == (0, "Empty")
    beat = await harness.ask(HeartbeatRequest("", 1, "m"), 4, HeartbeatResponse)
    assert beat.error_code == ErrorCode.INVALID_GROUP_ID
    assert await delete() == ErrorCode.NONE
    assert await committed(harness, "", "orders", [0]) == [-1]


@few_groups
async def test_describe_groups_returns_authorized_operations_on_request(
    harness: BrokerHarness,
) -> None:
    """From version 3 on. Version 6 leaves them out for a group that it does not find."""
    await harness.create("orders")
    await find_coordinator(harness)
    await commit(harness, "g", "orders", {0: 5})
    for version in range(3, 7):
        for asked in (True, False):
            request = DescribeGroupsRequest(["g", "nobody"], asked)
            response = await harness.ask(request, version, DescribeGroupsResponse)
            there, nobody = (each.authorized_operations for each in response.groups)
            assert there == (GROUP_OPERATIONS if asked else NOT_ASKED)
            assert nobody == (GROUP_OPERATIONS if asked and version < 6 else NOT_ASKED)


MANY = 50_000
ENV = Env(
    clock=SystemClock(),
    random=SystemRandom(),
    disk=SimDisk(Random(1), Random(1)),
    network=NoNetwork(),
    executor=InTurn(),
    store=None,  # type: ignore[arg-type]  # a shard needs the clock and randomness
)


def no_tasks(work: Coroutine[Any, Any, None]) -> None:
    raise AssertionError("this shard resolves no regular expressions")


async def runtime(harness: BrokerHarness) -> GroupShell:
    """Loads a second shard next to the broker's own.

    It accepts offsets of 50,000 partitions without a topic of that size.
    """
    await find_coordinator(harness)
    loaded = GroupShell(
        ENV, harness.hosted(OFFSETS_TOPIC, 1), GroupConfig(), ConsumerContext(), no_tasks, set()
    )
    await loaded.load()
    return loaded


def info() -> RequestInfo:
    return RequestInfo("client", "/192.0.2.1", 8)


async def ask_commit(shard: GroupShell, group: str, offsets: range) -> Response:
    request = commit_of(group, "a-topic-with-a-name-of-middling-length", dict.fromkeys(offsets, 7))
    return await shard.ask(
        lambda shard, token, now: shard.offset_commit(request, info(), token, now)
    )


async def ask_delete(shard: GroupShell, group: str) -> int:
    request = DeleteGroupsRequest([group])
    response = await shard.ask(
        lambda shard, token, now: shard.delete_groups(request, info(), token, now)
    )
    assert isinstance(response, DeleteGroupsResponse)
    return response.results[0].error_code


@few_groups
async def test_a_group_with_many_offsets_is_deleted_in_several_batches(
    harness: BrokerHarness,
) -> None:
    """None is larger than max.message.bytes, and after a reload nothing of the group is left."""
    shard = await runtime(harness)
    for start in range(0, MANY, 10_000):
        await ask_commit(shard, "large", range(start, start + 10_000))
    await ask_commit(shard, "small", range(3))
    log = shard.hosted.log
    before = log.end_offset
    limit = shard.hosted.settings.max_message_bytes
    assert await ask_delete(shard, "large") == 0
    sizes = []
    offset = before
    while offset < log.end_offset and (piece := log.read(offset, 1 << 20, log.end_offset)):
        for _, header in iter_batches(piece.data):
            sizes.append(header.size)
            offset = header.next_offset
    assert log.end_offset - before == MANY
    assert len(sizes) > 1
    assert max(sizes) <= limit
    assert min(sizes[:-1]) > limit // 2
    again = await runtime(harness)
    for image in (shard.shard.state.image, again.shard.state.image):
        assert set(image.offsets) == {"small"}
    assert await ask_delete(again, "large") == ErrorCode.GROUP_ID_NOT_FOUND
    for each in (shard, again):
        each.unload()


@few_groups
async def test_a_failed_append_does_not_fail_the_commits_in_progress(
    harness: BrokerHarness,
) -> None:
    """The disk accepts one commit and refuses the next before the first is synced. Each client gets
    its own result, and the coordinator goes on.
    """
    shard = await runtime(harness)
    disk = harness.disks[0]
    first = asyncio.ensure_future(ask_commit(shard, "g", range(1)))
    await asyncio.sleep(0)
    assert not first.done()
    disk.fail_next("pwrite", errno.ENOSPC, path_contains=f"{OFFSETS_TOPIC}-1/")
    second = asyncio.ensure_future(ask_commit(shard, "g", range(1, 2)))
    answers = [await first, await second]
    codes = [
        answer.topics[0].partitions[0].error_code
        for answer in answers
        if isinstance(answer, OffsetCommitResponse)
    ]
    assert codes == [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR]
    shard.unload()


@few_groups
async def test_a_coordinator_that_fails_to_read_its_log_retries(harness: BrokerHarness) -> None:
    """While the disk fails to read, clients get COORDINATOR_LOAD_IN_PROGRESS. The coordinator loads
    again from the beginning for as long as it leads.
    """
    await harness.create("orders")
    await find_coordinator(harness)
    assert await commit(harness, "g", "orders", {0: 5}) == [ErrorCode.NONE]
    groups = harness.services.groups
    hosted = harness.hosted(OFFSETS_TOPIC, groups.index_of("g"))
    # More often than it is retried, however late this process runs.
    harness.disks[0].fail_next("pread", errno.EIO, path_contains=OFFSETS_TOPIC, times=1_000_000)
    groups.on_leading(hosted)
    await asyncio.sleep(0.1)
    waits = await harness.ask(HeartbeatRequest("g", 1, "m"), 2, HeartbeatResponse)
    assert waits.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    harness.disks[0].heal()
    await find_coordinator(harness)
    assert await committed(harness, "g", "orders", [0]) == [5]


@few_groups
async def test_loading_is_not_retried_when_the_leadership_is_over(harness: BrokerHarness) -> None:
    """The next leadership has its own shell, and a late retry must not replace it."""
    await harness.create("orders")
    await find_coordinator(harness)
    groups = harness.services.groups
    hosted = harness.hosted(OFFSETS_TOPIC, groups.index_of("g"))
    assert await commit(harness, "g", "orders", {0: 5}) == [ErrorCode.NONE]
    harness.disks[0].fail_next("pread", errno.EIO, path_contains=OFFSETS_TOPIC)
    groups.on_leading(hosted)
    await asyncio.sleep(0.1)
    groups.on_leading(hosted)
    await find_coordinator(harness)
    shell = groups.require("g")
    await asyncio.sleep(0.5)
    assert groups.require("g") is shell


@with_harness
async def test_there_is_no_coordinator_before_the_internal_topic_exists(
    harness: BrokerHarness,
) -> None:
    """The error makes clients look for the coordinator again."""
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await delete_offsets(harness, "g", {"none": [0]}) == (code, {})
