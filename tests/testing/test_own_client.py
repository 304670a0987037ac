"""Tests Penstock's own client through the fault proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from penstock import aio
from penstock.testing import Broker, Faults
from penstock.testing.plugin import TopicFactory
from penstock.testing.slowness import patient

T = TypeVar("T")
VALUES = [b"%d" % number for number in range(20)]
DEADLINE_S = 150.0


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        async with asyncio.timeout(patient(DEADLINE_S)):
            return await work()

    return asyncio.run(main())


async def send(producer: aio.Producer[bytes | None, bytes | None], topic: str) -> list[int]:
    deliveries = [await producer.send(topic, value, partition=0) for value in VALUES]
    return [(await delivery).offset for delivery in deliveries]


async def receive(
    consumer: aio.Consumer[bytes | None, bytes | None], count: int
) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        found += [record.value for record in await consumer.poll(1000)]
    return found


Script = Callable[[Faults], None]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(
            lambda faults: faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2), id="refused"
        ),
        pytest.param(lambda faults: faults.cut_after(10, api="Produce"), id="cut"),
        pytest.param(lambda faults: faults.delay(100, api="Produce", times=3), id="late"),
        pytest.param(
            lambda faults: faults.fail("InitProducerId", "COORDINATOR_LOAD_IN_PROGRESS"),
            id="no identity yet",
        ),
        pytest.param(
            lambda faults: faults.fail("Metadata", "LEADER_NOT_AVAILABLE", times=2), id="no leader"
        ),
    ],
)
def test_every_record_is_stored_once(
    script: Script, penstock_faults: Faults, penstock_topic: TopicFactory
) -> None:
    """This holds whether or not the broker had written a batch before its response was lost."""
    topic = penstock_topic()

    async def work() -> None:
        async with aio.Producer(penstock_faults.bootstrap, retry_backoff_ms=10) as producer:
            script(penstock_faults)
            assert await send(producer, topic) == list(range(20))
        async with aio.Consumer(
            penstock_faults.bootstrap, topics=topic, auto_offset_reset="earliest"
        ) as consumer:
            assert await receive(consumer, 20) == VALUES
            assert await consumer.poll(50) == []

    run(work)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(
            lambda faults: faults.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", times=2), id="refused"
        ),
        pytest.param(lambda faults: faults.cut_after(40, api="Fetch"), id="cut"),
        pytest.param(
            lambda faults: faults.fail("ListOffsets", "LEADER_NOT_AVAILABLE"), id="no position yet"
        ),
        pytest.param(
            lambda faults: faults.fail("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
            id="no coordinator yet",
        ),
        pytest.param(
            lambda faults: faults.fail("JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS"),
            id="coordinator loading",
        ),
        pytest.param(
            lambda faults: faults.fail("SyncGroup", "REBALANCE_IN_PROGRESS"), id="rebalance"
        ),
    ],
)
def test_a_group_member_reads_every_record_once(
    script: Script, penstock_broker: Broker, penstock_faults: Faults, penstock_topic: TopicFactory
) -> None:
    topic = penstock_topic()

    async def work() -> None:
        async with aio.Producer(penstock_broker.bootstrap) as producer:
            await send(producer, topic)
        script(penstock_faults)
        async with aio.Consumer(
            penstock_faults.bootstrap,
            topics=topic,
            group_id=f"group-{topic}",
            auto_offset_reset="earliest",
            retry_backoff_ms=10,
        ) as consumer:
            assert await receive(consumer, 20) == VALUES
            assert await consumer.poll(50) == []

    run(work)


def test_a_consumer_survives_dropped_connections(
    penstock_faults: Faults, penstock_topic: TopicFactory
) -> None:
    topic = penstock_topic()

    async def work() -> None:
        async with (
            aio.Producer(penstock_faults.bootstrap) as producer,
            aio.Consumer(
                penstock_faults.bootstrap, topics=topic, auto_offset_reset="earliest"
            ) as consumer,
        ):
            for round_number in range(3):
                assert await send(producer, topic) == [20 * round_number + at for at in range(20)]
                assert await receive(consumer, 20) == VALUES
                assert penstock_faults.drop_connections() > 0

    run(work)


def test_a_silenced_request_is_retried_after_its_timeout(
    penstock_faults: Faults, penstock_topic: TopicFactory
) -> None:
    """The client gives up the request after `request_timeout_ms` and retries on another connection.
    The broker had written the first one, and recognizes the second as a duplicate."""
    topic = penstock_topic()

    async def work() -> None:
        async with aio.Producer(
            penstock_faults.bootstrap,
            request_timeout_ms=round(patient(2_000)),
            retry_backoff_ms=10,
        ) as producer:
            await producer.partitions_for(topic)
            penstock_faults.silence(api="Produce", times=1)
            assert await send(producer, topic) == list(range(20))

    run(work)
    assert penstock_faults.count("Produce") >= 2
