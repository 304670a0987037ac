"""Tests that crashing brokers and slow callers cause no loss, duplicates or memory growth."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import pytest

from client.consuming.open_consumers import (
    batch_of,
    consumer_of,
    drain,
    numbered,
    produce,
    run,
    values_by_partition,
)
from penstock.client.errors import ClientError, ConnectFailed
from penstock.client.model import Record
from penstock.testing import Broker, Faults
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition

ALL = {0: list(range(400)), 1: list(range(400))}


@pytest.mark.parametrize("way", ["restart", "kill"])
def test_a_broker_restart_while_reading_loses_nothing(own_broker: Broker, way: str) -> None:
    """Half of the records are read before the restart, half afterwards. Polls in between return
    in time and raise nothing."""
    topic = own_broker.new_topic(2)

    async def work() -> None:
        await numbered(own_broker.bootstrap, topic, 2, 400, per=10)
        options: dict[str, Any] = {"max_partition_fetch_bytes": 2_000, "queued_bytes_max": 8_000}
        async with consumer_of(own_broker.bootstrap, topics=[topic], **options) as consumer:
            seen: list[Record[Any, Any]] = []
            while len(seen) < 300:
                seen += await consumer.poll(timeout_ms=1_000, max_records=50)
            if way == "kill":
                await asyncio.to_thread(own_broker.kill)
                for _ in range(4):
                    seen += await consumer.poll(timeout_ms=50)
                await asyncio.to_thread(own_broker.start)
            else:
                await asyncio.to_thread(own_broker.restart)
            seen += await drain(consumer, 800 - len(seen))
            assert values_by_partition(seen) == ALL

    run(work)


def test_a_group_member_continues_after_a_broker_restart(own_broker: Broker) -> None:
    topic, group = own_broker.new_topic(2), own_broker.new_name("group")

    async def work() -> None:
        await numbered(own_broker.bootstrap, topic, 2, 400, per=10)
        options: dict[str, Any] = {
            "group_id": group,
            "max_partition_fetch_bytes": 2_000,
            "queued_bytes_max": 8_000,
            "heartbeat_interval_ms": 100,
        }
        async with consumer_of(own_broker.bootstrap, topics=[topic], **options) as consumer:
            seen: list[Record[Any, Any]] = []
            while len(seen) < 300:
                seen += await consumer.poll(timeout_ms=1_000, max_records=50)
            await consumer.commit()
            await asyncio.to_thread(own_broker.restart)
            while len(seen) < 800:
                seen += await consumer.poll(timeout_ms=1_000)
            assert values_by_partition(seen) == ALL

    run(work)


def test_a_frozen_broker_blocks_no_call_forever(own_broker: Broker) -> None:
    """Polls return in time, lookups end with an error, and closing is bounded. After
    a thaw, reading continues."""
    topic = own_broker.new_topic(1)
    topic_partition = TopicPartition(topic, 0)

    async def work() -> None:
        await numbered(own_broker.bootstrap, topic, 1, 50, per=10)
        options: dict[str, Any] = {
            "request_timeout_ms": int(patient(2_000)),
            "default_api_timeout_ms": int(patient(4_000)),
            "socket_connection_setup_timeout_ms": int(patient(2_000)),
        }
        async with consumer_of(own_broker.bootstrap, topics=[topic], **options) as consumer:
            await drain(consumer, 50)
            own_broker.freeze()
            try:
                async with asyncio.timeout(patient(120)):
                    assert await consumer.poll(timeout_ms=100) == []
                    with pytest.raises(ClientError):
                        await consumer.end_offsets([topic_partition])
                    consumer.seek(topic_partition, 10)
                    assert await consumer.poll(timeout_ms=100) == []
            finally:
                own_broker.thaw()
            assert [record.offset for record in await drain(consumer, 40)] == list(range(10, 50))
            own_broker.freeze()
            try:
                async with asyncio.timeout(patient(120)):
                    await consumer.close(timeout_s=1)
            finally:
                own_broker.thaw()

    run(work)


def test_an_unreachable_broker_fails_at_once(own_broker: Broker) -> None:
    own_broker.stop()

    async def work() -> None:
        with pytest.raises(ConnectFailed, match="connection refused"):
            await consumer_of(own_broker.bootstrap).start()

    run(work)


def test_buffered_bytes_stay_within_their_limit(live_broker: Broker) -> None:
    """This holds for slow callers and many partitions, and every record is still returned."""
    topic = live_broker.new_topic(4)
    bound = 60_000

    async def work() -> None:
        batch = batch_of([b"%d" % n + b" " * 500 for n in range(20)])
        for partition in range(4):
            await produce(live_broker.bootstrap, TopicPartition(topic, partition), *[batch] * 20)
        options: dict[str, Any] = {"queued_bytes_max": bound, "max_partition_fetch_bytes": 12_000}
        async with consumer_of(live_broker.bootstrap, topics=[topic], **options) as consumer:
            seen = len(await consumer.poll(timeout_ms=30_000, max_records=40))
            while consumer.metrics().queued_bytes <= bound // 4:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.005)
            most = consumer.metrics().queued_bytes
            while seen < 1_600:
                seen += len(await consumer.poll(timeout_ms=1_000, max_records=40))
                for _ in range(5):
                    await asyncio.sleep(0.001)
                    most = max(most, consumer.metrics().queued_bytes)
            assert bound // 4 < most <= bound

    run(work)


def test_a_stalled_caller_uses_no_more_memory_than_the_limit(live_broker: Broker) -> None:
    """Measures actual memory: of sixteen megabytes, two are fetched ahead, and stored only once."""
    topic = live_broker.new_topic(2)
    bound = 2 << 20

    async def work() -> None:
        batch = batch_of([bytes(1_000)] * 250)
        for partition in range(2):
            await produce(live_broker.bootstrap, TopicPartition(topic, partition), *[batch] * 32)
        options: dict[str, Any] = {"queued_bytes_max": bound, "max_partition_fetch_bytes": 1 << 19}
        async with consumer_of(live_broker.bootstrap, topics=[topic], **options) as consumer:
            tracemalloc.start()
            try:
                assert len(await consumer.poll(timeout_ms=30_000, max_records=1)) == 1
                while consumer.metrics().queued_bytes <= bound // 2:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.005)
                for _ in range(60):
                    await asyncio.sleep(0.005)
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            # In addition to the buffered bytes, the rows of one decoded batch are in memory.
            assert bound // 2 < most < bound + 2 * len(batch) + (1 << 19)
            await drain(consumer, 16_000 - 1)

    run(work)


def test_a_paused_partition_does_not_starve_others_of_buffer_space(live_broker: Broker) -> None:
    """The paused partition had filled the whole buffer. Its records are
    returned after it is resumed."""
    topic = live_broker.new_topic(2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)

    async def work() -> None:
        batch = batch_of([b"x" * 500] * 20)
        for topic_partition in (first, second):
            await produce(live_broker.bootstrap, topic_partition, *[batch] * 10)
        options: dict[str, Any] = {"queued_bytes_max": 30_000, "max_partition_fetch_bytes": 30_000}
        async with consumer_of(live_broker.bootstrap, **options) as consumer:
            consumer.assign([first])
            assert len(await consumer.poll(timeout_ms=30_000, max_records=1)) == 1
            consumer.pause(first)
            consumer.assign([first, second])
            records = await drain(consumer, 200)
            assert {record.topic_partition for record in records} == {second}
            consumer.resume(first)
            records = await drain(consumer, 199)
            assert [record.offset for record in records] == list(range(1, 200))

    run(work)


def test_batches_larger_than_every_limit_are_returned(live_broker: Broker) -> None:
    """Batches over the limit are fetched one at a time from all partitions; otherwise the
    consumer would be stuck forever."""
    topic = live_broker.new_topic(3)

    async def work() -> None:
        for partition in range(3):
            topic_partition = TopicPartition(topic, partition)
            batches = [batch_of([bytes([n]) * 20_000]) for n in range(3)]
            await produce(live_broker.bootstrap, topic_partition, *batches)
        options: dict[str, Any] = {
            "max_partition_fetch_bytes": 100,
            "fetch_max_bytes": 100,
            "queued_bytes_max": 200,
        }
        async with consumer_of(live_broker.bootstrap, topics=[topic], **options) as consumer:
            records = await drain(consumer, 9)
            for partition in range(3):
                found = [record.value[0] for record in records if record.partition == partition]
                assert found == [0, 1, 2]

    run(work)


def test_repeated_network_failures_lose_nothing(live_broker: Broker) -> None:
    """Connections are cut while idle and in the middle of responses, responses are
    swallowed, and leaders claim not to lead. Every record is returned once and in order,
    as records and as tables."""
    topic = live_broker.new_topic(2)

    async def work() -> None:
        await numbered(live_broker.bootstrap, topic, 2, 400, per=10)
        options: dict[str, Any] = {
            "max_partition_fetch_bytes": 1_500,
            "queued_bytes_max": 4_000,
            "request_timeout_ms": int(patient(1_000)),
        }
        with Faults(live_broker.bootstrap) as faults:
            troubles: Iterator[Callable[[], object]] = cycle(
                [
                    faults.drop_connections,
                    lambda: faults.cut_after(700, api="Fetch"),
                    lambda: faults.fail(api="Fetch", error="NOT_LEADER_OR_FOLLOWER", times=2),
                    lambda: faults.silence(api="Fetch", times=1),
                    lambda: faults.fail(api="ListOffsets", error="LEADER_NOT_AVAILABLE", times=1),
                    lambda: faults.fail(api="Fetch", error="FENCED_LEADER_EPOCH", times=1),
                ]
            )
            async with consumer_of(faults.bootstrap, topics=[topic], **options) as consumer:
                seen: dict[int, list[int]] = {0: [], 1: []}
                while sum(map(len, seen.values())) < 800:
                    for record in await consumer.poll(timeout_ms=500, max_records=20):
                        seen[record.partition].append(int(record.value))
                    next(troubles)()
                    table = await consumer.poll_table(timeout_ms=20, max_rows=20)
                    for row in table.to_pylist():
                        seen[row["partition"]].append(int(row["value"]))
                faults.clear()
                assert seen == ALL
                assert await consumer.poll(timeout_ms=50) == []

    run(work)
