"""A fetch of 50,000 partitions does not block the event loop for long, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.metadata.model import Partition, Topic
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    FetchRequest,
    FetchResponse,
)

from .harness import BrokerHarness, open_harness
from .loop_blocking import Meter, at_best, check, counted_executor, occupation, piece_of_work_s

PARTITIONS = 50_000
BIG = "big"
BIG_ID = bytes([9] * 16)
VERSION = 17
DEADLINE_S = 300.0
NEVER_MS = 250_000
FOLLOWER = 1
LONG_POLL_MS = 700


@asynccontextmanager
async def leading(directory: Path, *, in_sync: bool) -> AsyncIterator[BrokerHarness]:
    """Runs a broker that leads many partitions. They share one log, because creating 50,000 takes
    minutes.
    """
    with counted_executor():
        async with (
            asyncio.timeout(patient(DEADLINE_S)),
            open_harness(directory, brokers=2) as harness,
        ):
            await _create_one(harness)
            replicas, image, like = (
                harness.broker.replicas,
                harness.services.image,
                harness.hosted("one"),
            )
            epoch = replicas.broker_epoch
            epochs = epoch, image.brokers[FOLLOWER].broker_epoch
            count = 2 if in_sync else 1
            state = Partition((0, 1), (0, 1)[:count], (), 0, 0, 0, epoch, epochs[:count])
            for index in range(PARTITIONS):
                hosted = HostedPartition(
                    BIG, BIG_ID, index, like.log, like.settings, replicas.flusher
                )
                hosted.lead(0, epoch, state, image.living, replicas.monotonic_ms(), 30_000)
                replicas._hosted[BIG, index] = hosted
            # The topic is known by its id only. Only fetches use ids, so no other work touches it.
            image._topics_by_id[BIG_ID] = Topic(BIG, BIG_ID, (state,) * PARTITIONS, {})
            try:
                yield harness
            finally:
                del image._topics_by_id[BIG_ID]
                for index in range(PARTITIONS):
                    del replicas._hosted[BIG, index]


async def _create_one(harness: BrokerHarness) -> None:
    """Creates a partition on the first broker, with one record."""
    topic = CreateTopicsRequest.Topic(
        "one",
        -1,
        -1,
        assignments=[CreateTopicsRequest.Assignment(0, [0])],
        configs=[CreateTopicsRequest.Config("durability", "replicated")],
    )
    created = await harness.ask(CreateTopicsRequest([topic]), 7, CreateTopicsResponse)
    assert created.topics[0].error_code == ErrorCode.NONE
    await harness.produce("one", [b"value"])


def asked(offset: int) -> list[FetchRequest.Topic]:
    partitions = [
        FetchRequest.Partition(index, 0, offset, partition_max_bytes=1 << 20)
        for index in range(PARTITIONS)
    ]
    return [FetchRequest.Topic(topic_id=BIG_ID, partitions=partitions)]


def fetch(
    offset: int | None,
    *,
    wait_ms: int = 0,
    session: tuple[int, int] = (0, -1),
    follower: tuple[int, int] | None = None,
) -> FetchRequest:
    """Returns a fetch of all partitions from `offset`. None names no partition."""
    session_id, session_epoch = session
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=50 << 20,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[] if offset is None else asked(offset),
    )
    if follower is not None:
        request.replica_state = FetchRequest.ReplicaState(*follower)
    return request


async def measured(
    harness: BrokerHarness,
    request: FetchRequest,
    meanwhile: Callable[[], Awaitable[None]] | None = None,
) -> FetchResponse:
    before_s = piece_of_work_s()
    meter: Meter
    answer, meter = await occupation(harness, request, VERSION, FetchResponse, meanwhile=meanwhile)
    check(meter, before_s)
    assert answer.error_code == ErrorCode.NONE
    return answer


def partitions(answer: FetchResponse) -> Iterator[FetchResponse.Partition]:
    for topic in answer.responses:
        yield from topic.partitions


async def _warm(harness: BrokerHarness) -> None:
    """Compiles the codec of Fetch, which happens once per process."""
    await harness.ask(FetchRequest(session_epoch=-1), VERSION, FetchResponse)


async def _full(harness: BrokerHarness) -> None:
    answer = await measured(harness, fetch(0))
    given = [each for each in partitions(answer) if each.records]
    assert len(list(partitions(answer))) == len(given) == PARTITIONS


async def _session(harness: BrokerHarness) -> None:
    answer = await measured(harness, fetch(1, session=(0, 0)))
    assert len(list(partitions(answer))) == PARTITIONS and answer.session_id > 0
    again = await measured(harness, fetch(0, session=(answer.session_id, 1)))
    assert sum(1 for each in partitions(again) if each.records) == PARTITIONS
    quiet = await measured(harness, fetch(1, session=(answer.session_id, 2)))
    assert not quiet.responses
    renewed = await measured(harness, fetch(1, session=(answer.session_id, 0)))
    assert renewed.session_id != answer.session_id
    await measured(harness, fetch(1, session=(renewed.session_id, -1)))


async def _expiry(harness: BrokerHarness) -> None:
    answer = await measured(harness, fetch(1, session=(0, 0), wait_ms=LONG_POLL_MS))
    again = await measured(
        harness, fetch(None, session=(answer.session_id, 1), wait_ms=LONG_POLL_MS)
    )
    assert not again.responses
    assert not harness.hosted(BIG, 7)._commit_listeners


async def _wake(harness: BrokerHarness) -> None:
    answer = await harness.ask(fetch(1, session=(0, 0)), VERSION, FetchResponse)
    last = harness.hosted(BIG, PARTITIONS - 1)

    async def write() -> None:
        await harness.until(lambda: bool(last._commit_listeners))
        await harness.produce(BIG, [b"news"], index=7)

    woken = await measured(
        harness, fetch(None, session=(answer.session_id, 1), wait_ms=NEVER_MS), write
    )
    # The partitions share their log, so all have new records when one is written to.
    assert PARTITIONS >= sum(1 for each in partitions(woken) if each.records) > 0
    assert not last._commit_listeners


async def _follower(harness: BrokerHarness) -> None:
    replica = FOLLOWER, harness.services.image.brokers[FOLLOWER].broker_epoch
    answer = await measured(harness, fetch(1, session=(0, 0), follower=replica))
    assert len(list(partitions(answer))) == PARTITIONS
    again = fetch(None, session=(answer.session_id, 1), wait_ms=LONG_POLL_MS, follower=replica)
    await measured(harness, again)
    assert harness.services.fetch_sessions._followers


async def _unknown(harness: BrokerHarness) -> None:
    request = fetch(0, session=(0, 0), wait_ms=NEVER_MS)
    request.topics[0].topic_id = bytes([8] * 16)
    answer = await measured(harness, request)
    assert {each.error_code for each in partitions(answer)} == {ErrorCode.UNKNOWN_TOPIC_ID}


CASES = {
    "consumers": (_full, _session, _expiry, _unknown, _wake),
    "followers": (_follower,),
}


@pytest.mark.parametrize("who", CASES)
def test_a_fetch_of_50000_partitions_does_not_block_the_event_loop(
    tmp_path: Path, who: str
) -> None:
    """All at once, with a session, timing out, refused, and woken up. One broker serves all cases,
    because it takes a while until it leads 50,000 partitions.
    """

    async def run(folder: Path) -> None:
        async with leading(folder, in_sync=who == "followers") as harness:
            await _warm(harness)
            for run_case in CASES[who]:
                await run_case(harness)

    at_best(run, tmp_path)
