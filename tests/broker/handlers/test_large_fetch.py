"""Changes between the slices of a large fetch are neither missed nor mixed up."""

from __future__ import annotations

import asyncio

from broker.harness import BrokerHarness, with_harness_of
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.ports import DIVIDE_ALL
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    FetchRequest,
    FetchResponse,
)

PARTITIONS = 6
VERSION = 17
LONG_MS = 90_000


with_harness = with_harness_of(slicing=DIVIDE_ALL)
"""Every fetch counts as large, and every slice is a single partition."""


def request(
    topic_id: bytes, offset: int, *, wait_ms: int = LONG_MS, session: tuple[int, int] = (0, -1)
) -> FetchRequest:
    partitions = [
        FetchRequest.Partition(index, 0, offset, partition_max_bytes=1 << 20)
        for index in range(PARTITIONS)
    ]
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchRequest.Topic(topic_id=topic_id, partitions=partitions)],
    )


async def ask(harness: BrokerHarness, asked: FetchRequest) -> FetchResponse:
    return await harness.ask(asked, VERSION, FetchResponse)


def given(answer: FetchResponse) -> list[int]:
    return [
        each.partition_index
        for topic in answer.responses
        for each in topic.partitions
        if each.records
    ]


async def reached(harness: BrokerHarness, index: int) -> HostedPartition:
    """Waits until the fetch listens to a partition, which it does as soon as it has read it."""
    hosted = harness.hosted("many", index)
    while not hosted._commit_listeners:  # noqa: ASYNC110 - it takes a few runs of the loop
        await asyncio.sleep(0)
    return hosted


@with_harness
async def test_records_that_arrive_between_two_slices_end_the_wait(harness: BrokerHarness) -> None:
    """The first partition has already been read when its record arrives, the last one has not."""
    topic_id = await harness.create("many", PARTITIONS, {"durability": "replicated"})
    fetch = asyncio.ensure_future(ask(harness, request(topic_id, 0)))
    await reached(harness, 0)
    assert not harness.hosted("many", PARTITIONS - 1)._commit_listeners
    await harness.produce("many", [b"news"])
    assert given(await fetch) == [0]
    assert not any(harness.hosted("many", index)._commit_listeners for index in range(PARTITIONS))


@with_harness
async def test_records_that_arrive_after_the_last_slice_end_the_wait(
    harness: BrokerHarness,
) -> None:
    topic_id = await harness.create("many", PARTITIONS, {"durability": "replicated"})
    fetch = asyncio.ensure_future(ask(harness, request(topic_id, 0)))
    await reached(harness, PARTITIONS - 1)
    await harness.produce("many", [b"news"], index=3)
    assert given(await fetch) == [3]


@with_harness
async def test_a_fetch_without_new_records_ends_at_its_timeout(harness: BrokerHarness) -> None:
    topic_id = await harness.create("many", PARTITIONS)
    answer = await ask(harness, request(topic_id, 0, wait_ms=20))
    assert len(answer.responses[0].partitions) == PARTITIONS and not given(answer)
    assert not any(harness.hosted("many", index)._commit_listeners for index in range(PARTITIONS))


@with_harness
async def test_a_topic_deleted_between_two_slices_ends_the_wait(harness: BrokerHarness) -> None:
    topic_id = await harness.create("many", PARTITIONS)
    fetch = asyncio.ensure_future(ask(harness, request(topic_id, 0)))
    await reached(harness, 0)
    named = [DeleteTopicsRequest.Topic("many")]
    await harness.ask(DeleteTopicsRequest(named, timeout_ms=30_000), 6, DeleteTopicsResponse)
    answer = await fetch
    codes = {each.error_code for each in answer.responses[0].partitions}
    assert codes and ErrorCode.NONE not in codes


@with_harness
async def test_a_session_replaced_between_two_slices_is_counted_once(
    harness: BrokerHarness,
) -> None:
    """The client begins a new session on another connection while its fetch is in progress."""
    topic_id = await harness.create("many", PARTITIONS, {"durability": "replicated"})
    sessions = harness.services.fetch_sessions
    first = await ask(harness, request(topic_id, 0, wait_ms=0, session=(0, 0)))
    assert sessions._client_partitions == PARTITIONS
    fetch = asyncio.ensure_future(ask(harness, request(topic_id, 0, session=(first.session_id, 1))))
    await reached(harness, 0)
    second = await ask(harness, request(topic_id, 0, wait_ms=0, session=(first.session_id, 0)))
    assert second.session_id not in (0, first.session_id)
    await harness.produce("many", [b"news"], index=1)
    assert given(await fetch) == [1]
    assert (len(sessions), sessions._client_partitions) == (1, PARTITIONS)
    gone = await ask(harness, request(topic_id, 0, wait_ms=0, session=(first.session_id, 2)))
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@with_harness
async def test_the_slices_together_give_the_same_response_as_one_read(
    harness: BrokerHarness,
) -> None:
    topic_id = await harness.create("many", PARTITIONS, {"durability": "replicated"})
    for index in (1, 4):
        await harness.produce("many", [b"value"], index=index)
    answer = await ask(harness, request(topic_id, 0, session=(0, 0)))
    assert len(answer.responses) == 1 and given(answer) == [1, 4]
    again = await ask(
        harness,
        FetchRequest(max_wait_ms=0, min_bytes=1, session_id=answer.session_id, session_epoch=1),
    )
    assert given(again) == [1, 4]
