"""Requests of one connection take effect in the order in which they were sent.

A client may send its next request before it has the response to the last one. Each pair here is
sent in one write. The second request must see the effect of the first, on a single broker and on
one of three brokers that is not the controller.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.records.record import Record, build_batch
from penstock.testing.slowness import patient
from penstock.wire.codec import decode_response, encode_request
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    FetchRequest,
    FetchResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    ProduceRequest,
    ProduceResponse,
)
from penstock.wire.messages.base import Request, Response

from .three_brokers import NOW_MS, ThreeBrokers, three_brokers

TRIES = 12
LIMIT_MS = round(patient(100) * 1000)
"""The time limit of requests. No test waits for its end."""
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
TOPIC_CONFIG = 2

Sent = tuple[Request, int, type[Response]]
"""A request, its version, and the class of its response."""


class Line:
    """One connection on which requests are sent together."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._correlation_ids = count(1)

    async def send(self, *requests: Sent) -> list[Any]:
        """Writes all requests at once and returns their responses."""
        numbers = [next(self._correlation_ids) for _ in requests]
        frames = [
            b"".join(encode_request(request, version, number, "line"))
            for number, (request, version, _) in zip(numbers, requests, strict=True)
        ]
        self._writer.write(b"".join(frames))
        answers = []
        for number, (_, version, response_class) in zip(numbers, requests, strict=True):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            data = memoryview(await self._reader.readexactly(size))
            answered, answer = decode_response(response_class, data, version)
            assert answered == number
            answers.append(answer)
        return answers

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


class Lane:
    """A connection to one broker of a cluster, with requests for it."""

    def __init__(self, cluster: ThreeBrokers, broker_id: int, line: Line) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.line = line
        replicas = [broker_id, *(node.broker_id for node in cluster.nodes)]
        self.replicas = list(dict.fromkeys(replicas))

    def creation(self, name: str) -> Sent:
        """Returns a request for a topic of one partition that this broker leads."""
        assigned = CreateTopicsRequest.Assignment(0, self.replicas)
        topic = CreateTopicsRequest.Topic(name, -1, -1, [assigned])
        return CreateTopicsRequest([topic], LIMIT_MS), 7, CreateTopicsResponse

    async def create(self, name: str) -> None:
        (made,) = await self.line.send(self.creation(name))
        assert made.topics[0].error_code == 0, made.topics[0].error_message

    async def group(self) -> str:
        """Returns a group that this broker coordinates.

        If another broker coordinates it, the lane connects to that one.
        """
        while True:
            (found,) = await self.line.send(
                (FindCoordinatorRequest("g", 0), 3, FindCoordinatorResponse)
            )
            if found.error_code == ErrorCode.NONE:
                break
            await asyncio.sleep(0.05)
        if found.node_id != self.broker_id:
            self.broker_id = found.node_id
            await self.line.close()
            self.line = await line_to(self.cluster, found.node_id)
        # The coordinator may still be loading its groups.
        while True:
            (loaded,) = await self.line.send(committed("g", "t"))
            if loaded.error_code == ErrorCode.NONE:
                return "g"
            await asyncio.sleep(0.05)


async def line_to(cluster: ThreeBrokers, broker_id: int) -> Line:
    port = cluster.nodes[broker_id].port
    return Line(*await asyncio.open_connection("127.0.0.1", port))


def produce(topic: str, acks: int = -1, version: int = 9) -> Sent:
    batch = bytes(build_batch([Record(0, NOW_MS, b"k", b"v")]))
    part = ProduceRequest.Partition(0, batch)
    topics = [ProduceRequest.Topic(topic, partition_data=[part])]
    return ProduceRequest(None, acks, LIMIT_MS, topics), version, ProduceResponse


def list_offsets(topic: str, timestamp: int) -> Sent:
    part = ListOffsetsRequest.Partition(0, timestamp=timestamp)
    request = ListOffsetsRequest(topics=[ListOffsetsRequest.Topic(topic, [part])])
    return request, 4, ListOffsetsResponse


def fetch(topic: str, offset: int, max_wait_ms: int = 0) -> Sent:
    part = FetchRequest.Partition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[FetchRequest.Topic(topic, partitions=[part])],
    )
    return request, 11, FetchResponse


def commit(group: str, topic: str, offset: int) -> Sent:
    part = OffsetCommitRequest.Partition(0, offset)
    topics = [OffsetCommitRequest.Topic(topic, partitions=[part])]
    return OffsetCommitRequest(group, topics=topics), 8, OffsetCommitResponse


def committed(group: str, topic: str) -> Sent:
    return (
        OffsetFetchRequest(group, [OffsetFetchRequest.Topic(topic, [0])]),
        5,
        OffsetFetchResponse,
    )


def metadata(topic: str) -> Sent:
    request = MetadataRequest([MetadataRequest.Topic(name=topic)], allow_auto_topic_creation=False)
    return request, 9, MetadataResponse


async def produce_then_list_offsets(lane: Lane) -> None:
    await lane.create("t")
    for number in range(TRIES):
        made, found = await lane.line.send(produce("t"), list_offsets("t", -1))
        assert made.responses[0].partition_responses[0].error_code == 0
        assert found.topics[0].partitions[0].offset == number + 1


async def produce_then_fetch(lane: Lane) -> None:
    await lane.create("t")
    for number in range(TRIES):
        made, found = await lane.line.send(produce("t"), fetch("t", number))
        assert made.responses[0].partition_responses[0].error_code == 0
        assert found.responses[0].partitions[0].high_watermark == number + 1
        assert found.responses[0].partitions[0].records


async def delete_records_then_list_offsets(lane: Lane) -> None:
    await lane.create("t")
    await lane.line.send(*(produce("t") for _ in range(TRIES)))
    for number in range(TRIES):
        part = DeleteRecordsRequest.Partition(0, number + 1)
        request = DeleteRecordsRequest([DeleteRecordsRequest.Topic("t", [part])], LIMIT_MS)
        made, found = await lane.line.send(
            (request, 2, DeleteRecordsResponse), list_offsets("t", -2)
        )
        assert made.topics[0].partitions[0].error_code == 0
        assert found.topics[0].partitions[0].offset == number + 1


async def offset_commit_then_offset_fetch(lane: Lane) -> None:
    await lane.create("t")
    group = await lane.group()
    for number in range(TRIES):
        made, found = await lane.line.send(commit(group, "t", number + 1), committed(group, "t"))
        assert made.topics[0].partitions[0].error_code == 0
        assert found.topics[0].partitions[0].committed_offset == number + 1


async def delete_groups_then_offset_fetch(lane: Lane) -> None:
    await lane.create("t")
    group = await lane.group()
    for _ in range(TRIES):
        deletion = (DeleteGroupsRequest([group]), 1, DeleteGroupsResponse)
        _, deleted, found = await lane.line.send(
            commit(group, "t", 7), deletion, committed(group, "t")
        )
        assert deleted.results[0].error_code == 0
        assert found.topics[0].partitions[0].committed_offset == -1


async def alter_configs_then_describe_configs(lane: Lane) -> None:
    await lane.create("t")
    for number in range(TRIES):
        value = str(100_000 + number)
        altered = AlterConfigsRequest.Resource(
            TOPIC_CONFIG, "t", [AlterConfigsRequest.Config("retention.ms", value)]
        )
        described = DescribeConfigsRequest.Resource(TOPIC_CONFIG, "t", ["retention.ms"])
        made, found = await lane.line.send(
            (AlterConfigsRequest([altered]), 1, AlterConfigsResponse),
            (DescribeConfigsRequest([described]), 1, DescribeConfigsResponse),
        )
        assert made.responses[0].error_code == 0
        assert found.results[0].configs[0].value == value


async def create_topics_then_metadata(lane: Lane) -> None:
    for number in range(TRIES):
        made, found = await lane.line.send(lane.creation(f"t{number}"), metadata(f"t{number}"))
        assert made.topics[0].error_code == 0
        assert found.topics[0].error_code == 0
        assert found.topics[0].partitions[0].leader_id == lane.broker_id


async def create_topics_then_produce(lane: Lane) -> None:
    for number in range(TRIES):
        made, written = await lane.line.send(lane.creation(f"t{number}"), produce(f"t{number}"))
        assert made.topics[0].error_code == 0
        assert written.responses[0].partition_responses[0].error_code == 0


async def delete_topics_then_metadata(lane: Lane) -> None:
    for number in range(TRIES):
        name = f"t{number}"
        deletion = DeleteTopicsRequest(topic_names=[name], timeout_ms=LIMIT_MS)
        made, deleted, found = await lane.line.send(
            lane.creation(name), (deletion, 4, DeleteTopicsResponse), metadata(name)
        )
        assert made.topics[0].error_code == 0
        assert deleted.responses[0].error_code == 0
        assert found.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


PAIRS = (
    produce_then_list_offsets,
    produce_then_fetch,
    delete_records_then_list_offsets,
    offset_commit_then_offset_fetch,
    delete_groups_then_offset_fetch,
    alter_configs_then_describe_configs,
    create_topics_then_metadata,
    create_topics_then_produce,
    delete_topics_then_metadata,
)

Case = Callable[[Lane], Awaitable[None]]


def run_on(directory: Path, brokers: int, case: Case) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(patient(120)),
            three_brokers(directory, SETTINGS, brokers) as cluster,
        ):
            controller = cluster.broker(0).cluster.image.controller
            assert controller is not None
            others = [
                node.broker_id
                for node in cluster.nodes
                if node.broker_id != controller.broker_id or brokers == 1
            ]
            lane = Lane(cluster, others[0], await line_to(cluster, others[0]))
            try:
                await case(lane)
            finally:
                await lane.line.close()

    asyncio.run(run())


@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("case", PAIRS, ids=lambda case: case.__name__)
def test_a_request_sees_the_effect_of_the_previous_one(
    tmp_path: Path, case: Case, brokers: int
) -> None:
    """As in Kafka, which starts no request before the previous one of the connection is
    answered.
    """
    run_on(tmp_path, brokers, case)


def test_a_request_waits_behind_a_long_poll(tmp_path: Path) -> None:
    """Even a request that has nothing to do with the poll: the order holds for a connection."""

    async def case(lane: Lane) -> None:
        await lane.create("t")
        other = await line_to(lane.cluster, lane.broker_id)
        poll = fetch("t", 0, max_wait_ms=LIMIT_MS)
        async with asyncio.TaskGroup() as tasks:
            both = tasks.create_task(lane.line.send(poll, lane.creation("behind")))
            await asyncio.sleep(0)
            # If the creation overlapped the poll, it would be done before these later ones.
            for name in ("first", "second", "third"):
                (made,) = await other.send(lane.creation(name))
                assert made.topics[0].error_code == 0
            topics = lane.cluster.broker(lane.broker_id).cluster.image.topics
            assert "third" in topics
            assert "behind" not in topics
            await other.send(produce("t"))
        polled, made = both.result()
        assert polled.responses[0].partitions[0].records
        assert made.topics[0].error_code == 0
        assert "behind" in topics
        await other.close()

    run_on(tmp_path, 1, case)


def test_a_produce_behind_a_long_poll_does_not_end_it(tmp_path: Path) -> None:
    """The batch is not appended before the poll is answered, so the poll cannot return it."""

    async def case(lane: Lane) -> None:
        await lane.create("t")
        polled, written = await lane.line.send(fetch("t", 0, max_wait_ms=300), produce("t"))
        assert not polled.responses[0].partitions[0].records
        assert written.responses[0].partition_responses[0].base_offset == 0

    run_on(tmp_path, 1, case)


def test_pipelined_produce_requests_overlap_and_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is appended when it arrives. The request after them waits until all are
    committed.
    """
    append = HostedPartition.append
    most = 0

    def count_uncommitted(hosted: HostedPartition, *args: Any, **named: Any) -> Any:
        nonlocal most
        written = append(hosted, *args, **named)
        if hosted.topic == "t":
            most = max(most, hosted.log.end_offset - hosted.high_watermark)
        return written

    async def case(lane: Lane) -> None:
        await lane.create("t")
        monkeypatch.setattr(HostedPartition, "append", count_uncommitted)
        *made, found = await lane.line.send(
            *(produce("t") for _ in range(20)), list_offsets("t", -1)
        )
        offsets = [each.responses[0].partition_responses[0].base_offset for each in made]
        assert offsets == list(range(20))
        assert found.topics[0].partitions[0].offset == 20
        assert most > 1, "each produce waited for the commit of the one before"

    run_on(tmp_path, 3, case)
