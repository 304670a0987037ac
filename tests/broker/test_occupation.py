"""No request occupies the event loop for long, however much it asks for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.metadata.model import Partition, Topic
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from penstock.wire.messages.base import Request, Response

from .occupation import check, counted_executor, occupation, piece_of_work_s
from .stage import Stage, on_stage
from .test_group_requests import find_coordinator

TOPICS = 10_000
PARTITIONS = 10_000
CONFIGS = 1_000
DEADLINE_S = 300.0
BIG = "big"
NAMED = [(number, f"t{number:05d}") for number in range(TOPICS)]
NAMES = [name for _, name in NAMED]


@asynccontextmanager
async def crowded(directory: Path) -> AsyncIterator[Stage]:
    """A broker whose image has many topics, led by nobody: no logs need to be made for them."""
    settings = {"offsets.topic.num.partitions": "1"}
    with counted_executor():
        async with asyncio.timeout(DEADLINE_S), on_stage(directory, kafka=settings) as stage:
            await find_coordinator(stage)
            image = stage.services.image
            # Their only replica is on a broker that is gone: there is nobody to elect.
            away = Partition((7,), (7,), (), -1, 0, 0, -1, (0,))
            made = [Topic(name, (2 + at).to_bytes(16, "big"), (away,), {}) for at, name in NAMED]
            made.append(Topic(BIG, bytes([9] * 16), (away,) * PARTITIONS, {}))
            image._topics.update((topic.name, topic) for topic in made)
            image._topics_by_id.update((topic.topic_id, topic) for topic in made)
            try:
                yield stage
            finally:
                for topic in made:
                    image._topics.pop(topic.name)
                    image._topics_by_id.pop(topic.topic_id)


def offsets_of(count: int) -> OffsetCommitRequest:
    partitions = [OffsetCommitRequest.Partition(index, 5) for index in range(count)]
    return OffsetCommitRequest("g", topics=[OffsetCommitRequest.Topic(BIG, partitions=partitions)])


LARGE: dict[str, tuple[Request, int, type[Response]]] = {
    "Metadata of all topics": (MetadataRequest(None), 12, MetadataResponse),
    "Metadata of named topics": (
        MetadataRequest([MetadataRequest.Topic(name=name) for name in NAMES]),
        12,
        MetadataResponse,
    ),
    "DescribeConfigs": (
        DescribeConfigsRequest(
            [DescribeConfigsRequest.Resource(2, name) for name in NAMES[:CONFIGS]]
        ),
        4,
        DescribeConfigsResponse,
    ),
    "ListOffsets": (
        ListOffsetsRequest(
            -1,
            0,
            [
                ListOffsetsRequest.Topic(
                    BIG, [ListOffsetsRequest.Partition(at, -1, -1) for at in range(PARTITIONS)]
                )
            ],
        ),
        7,
        ListOffsetsResponse,
    ),
    "OffsetForLeaderEpoch": (
        OffsetForLeaderEpochRequest(
            -2,
            [
                OffsetForLeaderEpochRequest.Topic(
                    BIG,
                    [OffsetForLeaderEpochRequest.Partition(at, -1, 0) for at in range(PARTITIONS)],
                )
            ],
        ),
        4,
        OffsetForLeaderEpochResponse,
    ),
    "DescribeProducers": (
        DescribeProducersRequest([DescribeProducersRequest.Topic(BIG, list(range(PARTITIONS)))]),
        0,
        DescribeProducersResponse,
    ),
    "DeleteRecords": (
        DeleteRecordsRequest(
            [
                DeleteRecordsRequest.Topic(
                    BIG, [DeleteRecordsRequest.Partition(at, 0) for at in range(PARTITIONS)]
                )
            ],
            10_000,
        ),
        2,
        DeleteRecordsResponse,
    ),
    "DescribeGroups": (
        DescribeGroupsRequest([f"group-{at}" for at in range(PARTITIONS)]),
        5,
        DescribeGroupsResponse,
    ),
    "OffsetCommit": (offsets_of(PARTITIONS), 8, OffsetCommitResponse),
    "OffsetFetch of all": (OffsetFetchRequest("g", None), 7, OffsetFetchResponse),
    "OffsetDelete": (
        OffsetDeleteRequest(
            "g",
            [
                OffsetDeleteRequest.Topic(
                    BIG, [OffsetDeleteRequest.Partition(at) for at in range(PARTITIONS)]
                )
            ],
        ),
        0,
        OffsetDeleteResponse,
    ),
}
NEEDS_OFFSETS = {"OffsetFetch of all", "OffsetDelete"}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_request_lets_others_have_their_turn(tmp_path: Path, name: str) -> None:
    """The loop is never occupied for longer than the budget; see `occupation`."""
    request, version, response = LARGE[name]

    async def play() -> None:
        async with crowded(tmp_path) as stage:
            if name in NEEDS_OFFSETS:
                await stage.ask(offsets_of(PARTITIONS), 8, OffsetCommitResponse)
            # The first use of an API compiles its codec, which happens once in a broker's life.
            await stage.ask(request, version, response)
            before_s = piece_of_work_s()
            answer, meter = await occupation(stage, request, version, response)
            check(meter, before_s)
            if isinstance(answer, OffsetCommitResponse):
                codes = [part.error_code for part in answer.topics[0].partitions]
                assert codes == [ErrorCode.NONE] * PARTITIONS

    asyncio.run(play())


def test_a_request_that_occupies_the_loop_is_found(tmp_path: Path) -> None:
    """The measure itself: a handler that works for long without a pause is over the budget."""

    async def play() -> None:
        async with crowded(tmp_path) as stage:
            before_s = piece_of_work_s()
            handlers = stage.broker._dispatcher._handlers

            def slow(request: Request, context: object) -> Response:
                for _ in range(60):
                    piece_of_work_s()
                return MetadataResponse()

            handlers[MetadataRequest.API_KEY] = slow
            _, meter = await occupation(stage, MetadataRequest(None), 12, MetadataResponse)
            with pytest.raises(AssertionError, match="the loop was occupied for"):
                check(meter, before_s)

    asyncio.run(play())
