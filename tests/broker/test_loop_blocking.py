"""No request blocks the event loop for long, however large it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.metadata.model import Partition, Topic
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ListGroupsRequest,
    ListGroupsResponse,
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

from .handlers.test_group_requests import find_coordinator
from .harness import BrokerHarness, open_harness
from .loop_blocking import at_best, check, counted_executor, occupation, piece_of_work_s

TOPICS = 10_000
PARTITIONS = 50_000
OFFSETS = 99_000
"""A request may have 100,000 elements in total."""
GROUPS = 20_000
CONFIGS = 1_000
CHUNK = 1_000
"""How many partitions of the large topic one key of the store holds."""
DEADLINE_S = 300.0
BIG = "big"
NAMED = [(number, f"t{number:05d}") for number in range(TOPICS)]
NAMES = [name for _, name in NAMED]


async def _no_duties() -> None:
    """Does nothing. A real controller would try to elect leaders for the partitions all the
    time.
    """


@asynccontextmanager
async def crowded(
    directory: Path, kafka: Mapping[str, str] | None = None
) -> AsyncIterator[BrokerHarness]:
    """Runs a broker whose image has many topics without leaders, so that it needs no logs for
    them.
    """
    settings = {"offsets.topic.num.partitions": "1"} | dict(kafka or {})
    with counted_executor():
        async with (
            asyncio.timeout(patient(DEADLINE_S)),
            open_harness(directory, kafka=settings) as harness,
        ):
            await find_coordinator(harness)
            harness.services.controller._do_duties = _no_duties  # type: ignore[method-assign]
            image = harness.services.image
            # Their only replica is on a broker that is gone, so no leader can be elected.
            away = Partition((7,), (7,), (), -1, 0, 0, -1, (0,))
            made = [Topic(name, (2 + at).to_bytes(16, "big"), (away,), {}) for at, name in NAMED]
            large = Topic(BIG, bytes([9] * 16), (away,) * OFFSETS, {}, chunk_partitions=CHUNK)
            made.append(large)
            image._topics.update((topic.name, topic) for topic in made)
            image._topics_by_id.update((topic.topic_id, topic) for topic in made)
            try:
                yield harness
            finally:
                for topic in made:
                    image._topics.pop(topic.name)
                    image._topics_by_id.pop(topic.topic_id)


def offsets_of(count: int) -> OffsetCommitRequest:
    partitions = [OffsetCommitRequest.Partition(index, 5) for index in range(count)]
    return OffsetCommitRequest("g", topics=[OffsetCommitRequest.Topic(BIG, partitions=partitions)])


def metadata_of(count: int) -> MetadataRequest:
    return MetadataRequest([MetadataRequest.Topic(name=name) for name in NAMES[:count]])


def configs_of(count: int) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        [DescribeConfigsRequest.Resource(2, name) for name in NAMES[:count]]
    )


def list_offsets_of(count: int) -> ListOffsetsRequest:
    partitions = [ListOffsetsRequest.Partition(at, -1, -1) for at in range(count)]
    return ListOffsetsRequest(-1, 0, [ListOffsetsRequest.Topic(BIG, partitions)])


def epochs_of(count: int) -> OffsetForLeaderEpochRequest:
    partitions = [OffsetForLeaderEpochRequest.Partition(at, -1, 0) for at in range(count)]
    return OffsetForLeaderEpochRequest(-2, [OffsetForLeaderEpochRequest.Topic(BIG, partitions)])


def producers_of(count: int) -> DescribeProducersRequest:
    return DescribeProducersRequest([DescribeProducersRequest.Topic(BIG, list(range(count)))])


def records_of(count: int) -> DeleteRecordsRequest:
    partitions = [DeleteRecordsRequest.Partition(at, 0) for at in range(count)]
    return DeleteRecordsRequest([DeleteRecordsRequest.Topic(BIG, partitions)], 10_000)


def deleted_offsets_of(count: int) -> OffsetDeleteRequest:
    partitions = [OffsetDeleteRequest.Partition(at) for at in range(count)]
    return OffsetDeleteRequest("g", [OffsetDeleteRequest.Topic(BIG, partitions)])


def fetched_offsets_of(count: int) -> OffsetFetchRequest:
    return OffsetFetchRequest("g", [OffsetFetchRequest.Topic(BIG, list(range(count)))])


def groups_of(count: int) -> list[str]:
    return [f"group-{at}" for at in range(count)]


class Large(NamedTuple):
    make: Callable[[int], Request]
    """Makes a request about this many items."""
    size: int
    version: int
    response: type[Response]


LARGE: dict[str, Large] = {
    "Metadata of all topics": Large(lambda _: MetadataRequest(None), 1, 12, MetadataResponse),
    "Metadata of one large topic": Large(
        lambda _: MetadataRequest([MetadataRequest.Topic(name=BIG)]), 1, 12, MetadataResponse
    ),
    "Metadata of named topics": Large(metadata_of, TOPICS, 12, MetadataResponse),
    "DescribeConfigs": Large(configs_of, CONFIGS, 4, DescribeConfigsResponse),
    "ListOffsets": Large(list_offsets_of, PARTITIONS, 7, ListOffsetsResponse),
    "OffsetForLeaderEpoch": Large(epochs_of, PARTITIONS, 4, OffsetForLeaderEpochResponse),
    "DescribeProducers": Large(producers_of, PARTITIONS, 0, DescribeProducersResponse),
    "DeleteRecords": Large(records_of, PARTITIONS, 2, DeleteRecordsResponse),
    "DescribeGroups": Large(
        lambda count: DescribeGroupsRequest(groups_of(count)), GROUPS, 5, DescribeGroupsResponse
    ),
    "DeleteGroups": Large(
        lambda count: DeleteGroupsRequest(groups_of(count)), GROUPS, 1, DeleteGroupsResponse
    ),
    "ListGroups": Large(lambda _: ListGroupsRequest(), 1, 4, ListGroupsResponse),
    "OffsetCommit": Large(offsets_of, OFFSETS, 8, OffsetCommitResponse),
    "OffsetFetch of all": Large(lambda _: OffsetFetchRequest("g", None), 1, 7, OffsetFetchResponse),
    "OffsetFetch of named": Large(fetched_offsets_of, OFFSETS, 7, OffsetFetchResponse),
    "OffsetDelete": Large(deleted_offsets_of, OFFSETS, 0, OffsetDeleteResponse),
}
NEEDS_OFFSETS = {"OffsetFetch of all", "OffsetFetch of named", "OffsetDelete"}


def add_groups(harness: BrokerHarness) -> None:
    """Adds many groups: one group under many names."""
    groups = harness.services.groups.require("g").shard.state.groups
    (group,) = groups.values()
    groups.update((name, group) for name in groups_of(GROUPS))


@pytest.mark.parametrize("name", LARGE)
def test_a_large_request_does_not_block_the_event_loop(tmp_path: Path, name: str) -> None:
    """The longest callback stays within the budget; see `occupation`."""
    large = LARGE[name]

    async def run_case(folder: Path) -> None:
        async with crowded(folder) as harness:
            await harness.ask(offsets_of(1), 8, OffsetCommitResponse)
            # The first use of an API compiles its codec, which happens once per process.
            await harness.ask(large.make(1), large.version, large.response)
            if name in NEEDS_OFFSETS:
                await harness.ask(offsets_of(OFFSETS), 8, OffsetCommitResponse)
            if name == "ListGroups":
                add_groups(harness)
            before_s = piece_of_work_s()
            request = large.make(large.size)
            answer, meter = await occupation(harness, request, large.version, large.response)
            check(meter, before_s)
            if isinstance(answer, OffsetCommitResponse):
                codes = [part.error_code for part in answer.topics[0].partitions]
                assert codes == [ErrorCode.NONE] * OFFSETS
            if isinstance(answer, OffsetFetchResponse):
                assert len(answer.topics[0].partitions) == OFFSETS
            if isinstance(answer, ListGroupsResponse):
                assert len(answer.groups) > GROUPS

    at_best(run_case, tmp_path)


def test_a_request_that_blocks_the_loop_is_detected(tmp_path: Path) -> None:
    """Checks the measurement itself: a handler that works for long without a pause exceeds the
    budget.
    """

    async def run_case() -> None:
        async with crowded(tmp_path) as harness:
            before_s = piece_of_work_s()
            handlers = harness.broker._dispatcher._handlers

            def slow(request: Request, context: object) -> Response:
                for _ in range(60):
                    piece_of_work_s()
                return MetadataResponse()

            handlers[MetadataRequest.API_KEY] = slow
            _, meter = await occupation(harness, MetadataRequest(None), 12, MetadataResponse)
            with pytest.raises(AssertionError, match="the loop was occupied for"):
                check(meter, before_s)

    asyncio.run(run_case())
