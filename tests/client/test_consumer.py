"""Tests the consumer with a real broker."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from client.consuming.open_consumers import (
    NOW_MS,
    batch_of,
    consumer_of,
    drain,
    numbered,
    produce,
    run,
    values_by_partition,
)
from client.open_clusters import cluster_of
from penstock.client.admin.operations import create_partitions
from penstock.client.consumer import Consumer
from penstock.client.consuming.record_decoder import DeserializationFailed
from penstock.client.errors import ClientError, Closed, OptionError, TopicNotFound
from penstock.client.interceptors import ConsumerInterceptor
from penstock.client.model import Record
from penstock.records.record import Record as RawRecord
from penstock.records.record import build_batch
from penstock.testing import Broker
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition


def topic_partitions(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(count)]


def test_a_subscription_without_a_group_reads_everything(live_broker: Broker) -> None:
    """All partitions are read, each in order, every record once."""
    topic = live_broker.new_topic(3)

    async def work() -> None:
        await numbered(live_broker.bootstrap, topic, 3, 250, per=40)
        async with consumer_of(live_broker.bootstrap, topics=[topic]) as consumer:
            records = await drain(consumer, 750, max_records=37)
            assert values_by_partition(records) == {index: list(range(250)) for index in range(3)}
            assert consumer.assignment() == frozenset(topic_partitions(topic, 3))
            assert consumer.subscription() == {topic}
            assert {
                topic_partition: consumer.lag(topic_partition)
                for topic_partition in topic_partitions(topic, 3)
            } == dict.fromkeys(topic_partitions(topic, 3), 0)

    run(work)


def test_iteration_returns_one_record_at_a_time(live_broker: Broker) -> None:
    """The position advances with each record. Leaving the loop and continuing later loses
    nothing."""
    topic = live_broker.new_topic()
    topic_partition = TopicPartition(topic, 0)

    async def work() -> None:
        await numbered(live_broker.bootstrap, topic, 1, 100, per=100)
        async with consumer_of(live_broker.bootstrap, max_poll_records=7) as consumer:
            consumer.assign([topic_partition])
            seen = []
            async for record in consumer:
                seen.append(int(record.value))
                assert consumer.known_position(topic_partition) == record.offset + 1
                if len(seen) == 10:
                    break
            polled = await consumer.poll(max_records=5)
            seen += [int(record.value) for record in polled]
            async for record in consumer:
                seen.append(int(record.value))
                if len(seen) == 100:
                    break
            assert seen == list(range(100))

    run(work)


def test_iteration_ends_when_the_consumer_is_closed(live_broker: Broker) -> None:
    topic = live_broker.new_topic()

    async def work() -> None:
        consumer = consumer_of(live_broker.bootstrap, topics=topic)
        await consumer.start()

        async def read() -> list[Record[Any, Any]]:
            return [record async for record in consumer]

        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read())
            await asyncio.sleep(0)
            await consumer.close()
        assert reading.result() == []
        with pytest.raises(Closed):
            await consumer.poll()
        await consumer.close()

    run(work)


def test_no_stale_record_is_returned_after_a_seek_during_a_fetch(live_broker: Broker) -> None:
    """Over many seeks at random moments, the first record after a seek is
    always the one at its target."""
    topic = live_broker.new_topic(2)
    first, second = topic_partitions(topic, 2)

    async def work() -> None:
        await numbered(live_broker.bootstrap, topic, 2, 300, per=10)
        options = {"max_partition_fetch_bytes": 2_000, "fetch_max_wait_ms": 20}
        async with consumer_of(live_broker.bootstrap, **options) as consumer:
            consumer.assign([first, second])
            for turn in range(60):
                target = (turn * 97) % 300
                consumer.seek(first, target)
                for _ in range(turn % 4):
                    await asyncio.sleep(0)
                target = (turn * 61) % 300
                consumer.seek(first, target)
                expected = {first: target}
                while expected[first] == target:
                    for record in await consumer.poll(timeout_ms=500, max_records=3):
                        assert record.offset == expected.get(record.topic_partition, record.offset)
                        expected[record.topic_partition] = record.offset + 1

    run(work)


def test_a_paused_partition_resumes_where_it_stopped(live_broker: Broker) -> None:
    topic = live_broker.new_topic(2)
    first, second = topic_partitions(topic, 2)

    async def work() -> None:
        await numbered(live_broker.bootstrap, topic, 2, 60, per=20)
        async with consumer_of(live_broker.bootstrap) as consumer:
            consumer.assign([first, second])
            seen = await consumer.poll(timeout_ms=2_000, max_records=5)
            consumer.pause(first)
            assert consumer.paused() == {first}
            others: list[Record[Any, Any]] = []
            while len(others) < 60 - sum(record.partition == 1 for record in seen):
                others += await consumer.poll(timeout_ms=500, max_records=7)
            assert {record.partition for record in others} == {1}
            assert await consumer.poll(timeout_ms=30) == []
            consumer.resume(first)
            rest = await drain(consumer, 120 - len(seen) - len(others))
            everything = values_by_partition([*seen, *others, *rest])
            assert everything == {0: list(range(60)), 1: list(range(60))}

    run(work)


def test_pausing_during_iteration_keeps_the_remaining_records(live_broker: Broker) -> None:
    topic = live_broker.new_topic(2)
    first, second = topic_partitions(topic, 2)

    async def work() -> None:
        await numbered(live_broker.bootstrap, topic, 2, 30, per=30)
        async with consumer_of(live_broker.bootstrap) as consumer:
            consumer.assign([first, second])
            seen = []
            async for record in consumer:
                seen.append(record)
                if len(seen) == 10:
                    consumer.pause(record.topic_partition)
                    break
            async for record in consumer:
                seen.append(record)
                if len(seen) == 40:
                    break
            assert seen[10].topic_partition != seen[0].topic_partition
            consumer.resume(*consumer.paused())
            seen += await drain(consumer, 20)
            assert values_by_partition(seen) == {0: list(range(30)), 1: list(range(30))}

    run(work)


def test_seeking_by_time_and_looking_up_offsets(live_broker: Broker) -> None:
    topic = live_broker.new_topic()
    topic_partition = TopicPartition(topic, 0)
    middle = datetime.fromtimestamp((NOW_MS + 5) / 1000, UTC)

    async def work() -> None:
        await produce(
            live_broker.bootstrap, topic_partition, batch_of([b"%d" % n for n in range(10)])
        )
        async with consumer_of(live_broker.bootstrap) as consumer:
            assert await consumer.beginning_offsets([topic_partition]) == {topic_partition: 0}
            assert await consumer.end_offsets([topic_partition]) == {topic_partition: 10}
            found = await consumer.offsets_for_times({topic_partition: middle})
            answer = found[topic_partition]
            assert answer is not None
            assert (answer.offset, answer.timestamp) == (5, NOW_MS + 5)
            assert await consumer.offsets_for_times({topic_partition: NOW_MS + 99}) == {
                topic_partition: None
            }
            with pytest.raises(TopicNotFound):
                await consumer.end_offsets([TopicPartition(topic, 9)])
            with pytest.raises(OptionError, match="time zone"):
                await consumer.offsets_for_times({topic_partition: middle.replace(tzinfo=None)})
            consumer.assign([topic_partition])
            consumer.seek_to_time(middle)
            assert [record.offset for record in await drain(consumer, 5)] == [5, 6, 7, 8, 9]
            consumer.seek_to_end()
            assert await consumer.position(topic_partition) == 10
            consumer.seek_to_beginning(topic_partition)
            assert await consumer.position(topic_partition) == 0
            consumer.seek_to_time(NOW_MS + 99)
            assert await consumer.position(topic_partition) == 10
            with pytest.raises(ClientError, match="negative"):
                consumer.seek(topic_partition, -1)
            assert await consumer.partitions_for(topic) == 1
            assert (await consumer.topics())[topic] == 1

    run(work)


def test_the_reset_policy_may_be_a_timestamp(live_broker: Broker) -> None:
    topic = live_broker.new_topic()
    topic_partition = TopicPartition(topic, 0)

    async def work() -> None:
        await produce(
            live_broker.bootstrap, topic_partition, batch_of([b"%d" % n for n in range(10)])
        )
        policy = f"timestamp:{NOW_MS + 7}"
        async with consumer_of(live_broker.bootstrap, auto_offset_reset=policy) as consumer:
            consumer.assign([topic_partition])
            assert [record.offset for record in await drain(consumer, 3)] == [7, 8, 9]

    run(work)


def test_a_group_shares_partitions_and_calls_its_listeners(live_broker: Broker) -> None:
    """Listeners are called inside `poll`. Records of a revoked partition are not returned."""
    topic, group = live_broker.new_topic(4), live_broker.new_name("group")

    class Told:
        def __init__(self) -> None:
            self.owned: set[TopicPartition] = set()

        async def on_assigned(self, found: list[TopicPartition]) -> None:
            await asyncio.sleep(0)
            self.owned |= set(found)

        def on_revoked(self, gone: list[TopicPartition]) -> None:
            self.owned -= set(gone)

    async def work() -> None:
        await numbered(live_broker.bootstrap, topic, 4, 50, per=10)
        first, second = Told(), Told()
        options: dict[str, Any] = {"group_id": group, "topics": [topic], "max_poll_records": 5}
        options["heartbeat_interval_ms"] = 100
        async with consumer_of(live_broker.bootstrap, listener=first, **options) as one:
            seen: list[Record[Any, Any]] = []
            while len(first.owned) < 4:
                seen += await one.poll(timeout_ms=1_000)
            assert first.owned == set(topic_partitions(topic, 4)) == one.assignment()
            async with consumer_of(live_broker.bootstrap, listener=second, **options) as two:
                while not (len(first.owned) == len(second.owned) == 2) or len(seen) < 200:
                    for consumer, told in ((one, first), (two, second)):
                        records = await consumer.poll(timeout_ms=20)
                        assert {record.topic_partition for record in records} <= told.owned
                        seen += records
                assert first.owned | second.owned == set(topic_partitions(topic, 4))
        assert values_by_partition(seen) == {index: list(range(50)) for index in range(4)}

    run(work)


def test_a_pattern_subscription_finds_topics_created_later(live_broker: Broker) -> None:
    """New topics are found within `metadata_max_age_ms` and read from their first
    record, with any reset policy."""
    prefix = live_broker.new_name("pattern")
    old = live_broker.new_topic(name=f"{prefix}.old")

    async def work() -> None:
        await numbered(live_broker.bootstrap, old, 1, 3, per=3)
        options: dict[str, Any] = {"metadata_max_age_ms": 50}
        async with consumer_of(live_broker.bootstrap, **options) as consumer:
            await consumer.subscribe(pattern=rf"{prefix}\..*")
            await drain(consumer, 3)
            new = live_broker.new_topic(2, name=f"{prefix}.new")
            await numbered(live_broker.bootstrap, new, 2, 4, per=4)
            await drain(consumer, 8)
            assert consumer.subscription() == {old, new}

    run(work)


def test_added_partitions_are_found(live_broker: Broker) -> None:
    """They are read from their first record, even with `auto_offset_reset` set to `latest`."""
    topic = live_broker.new_topic(1)

    async def work() -> None:
        options: dict[str, Any] = {"metadata_max_age_ms": 50, "auto_offset_reset": "latest"}
        async with consumer_of(live_broker.bootstrap, topics=[topic], **options) as consumer:
            while consumer.assignment() != frozenset(topic_partitions(topic, 1)):
                assert await consumer.poll(timeout_ms=200) == []
            async with cluster_of(live_broker.bootstrap) as cluster:
                await create_partitions(cluster, topic, 3)
            await produce(live_broker.bootstrap, TopicPartition(topic, 2), batch_of([b"new"]))
            assert [record.value for record in await drain(consumer, 1)] == [b"new"]
            assert consumer.assignment() == frozenset(topic_partitions(topic, 3))

    run(work)


def test_the_consumer_waits_for_a_topic_that_does_not_exist_yet(live_broker: Broker) -> None:
    topic = live_broker.new_name("later")

    async def work() -> None:
        options: dict[str, Any] = {"allow_auto_create_topics": False}
        async with consumer_of(live_broker.bootstrap, topics=[topic], **options) as consumer:
            assert await consumer.poll(timeout_ms=100) == []
            live_broker.new_topic(name=topic)
            await numbered(live_broker.bootstrap, topic, 1, 3, per=3)
            await drain(consumer, 3)

    run(work)


def test_an_invalid_topic_name_is_an_error(live_broker: Broker) -> None:
    async def work() -> None:
        async with consumer_of(live_broker.bootstrap, topics=["no/such name"]) as consumer:
            with pytest.raises(ClientError, match="no/such name"):
                await consumer.poll(timeout_ms=60_000)

    run(work)


def test_values_are_deserialized_and_bad_ones_can_be_skipped(live_broker: Broker) -> None:
    topic = live_broker.new_topic()
    topic_partition = TopicPartition(topic, 0)

    async def work() -> None:
        await produce(live_broker.bootstrap, topic_partition, batch_of([b"1", b"[2]", b"{", b"4"]))
        async with Consumer(
            live_broker.bootstrap, value_deserializer=json.loads, auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([topic_partition])
            values = []
            for _ in range(2):
                try:
                    async for record in consumer:
                        values.append(record.value)
                        if record.offset == 3:
                            break
                except DeserializationFailed as error:
                    assert (error.topic_partition, error.offset, error.record.value) == (
                        topic_partition,
                        2,
                        b"{",
                    )
                    consumer.seek(error.topic_partition, error.offset + 1)
            assert values == [1, [2], 4]

    run(work)


def test_headers_keys_and_timestamps_are_returned(live_broker: Broker) -> None:
    topic = live_broker.new_topic()
    topic_partition = TopicPartition(topic, 0)
    raw = RawRecord(0, NOW_MS, b"key", None, (("h", b"1"), ("h", None)))

    async def work() -> None:
        await produce(live_broker.bootstrap, topic_partition, build_batch([raw]))
        async with consumer_of(live_broker.bootstrap) as consumer:
            consumer.assign([topic_partition])
            (record,) = await drain(consumer, 1)
            assert record == Record(topic, 0, 0, NOW_MS, b"key", None, raw.headers, leader_epoch=0)

    run(work)


def test_interceptors_see_records_and_commits(live_broker: Broker) -> None:
    topic, group = live_broker.new_topic(), live_broker.new_name("group")
    topic_partition = TopicPartition(topic, 0)

    class OnlyEven(ConsumerInterceptor):
        committed: Any = None

        def on_consume(self, records: list[Record[Any, Any]]) -> list[Record[Any, Any]]:
            return [record for record in records if int(record.value) % 2 == 0]

        def on_commit(self, offsets: Any) -> None:
            self.committed = offsets

    async def work() -> None:
        await numbered(live_broker.bootstrap, topic, 1, 10, per=3)
        interceptor = OnlyEven()
        options: dict[str, Any] = {"interceptors": [interceptor], "group_id": group}
        async with consumer_of(live_broker.bootstrap, max_poll_records=1, **options) as consumer:
            consumer.assign([topic_partition])
            seen = []
            async for record in consumer:
                seen.append(int(record.value))
                if record.offset == 8:
                    break
            assert seen == [0, 2, 4, 6, 8]
            await consumer.commit()
            assert interceptor.committed[topic_partition].offset == 9

    run(work)


def test_wrong_use_raises_an_error_that_says_what_to_do(live_broker: Broker) -> None:
    topic = live_broker.new_topic()
    topic_partition = TopicPartition(topic, 0)

    async def work() -> None:
        consumer = consumer_of(live_broker.bootstrap)
        with pytest.raises(ClientError, match="async with"):
            await consumer.poll()
        async with consumer:
            with pytest.raises(ClientError, match="not assigned"):
                consumer.seek(topic_partition, 0)
            with pytest.raises(ClientError, match="give group_id"):
                await consumer.commit({topic_partition: 1})
            with pytest.raises(ClientError, match="exactly one of them"):
                await consumer.subscribe()
            consumer.assign([topic_partition])
            with pytest.raises(ClientError, match="unsubscribe"):
                await consumer.subscribe(topic)
            await consumer.unsubscribe()
            await consumer.subscribe(topic)
            async with asyncio.TaskGroup() as tasks:
                polling = tasks.create_task(consumer.poll(timeout_ms=5_000))
                await asyncio.sleep(0)
                with pytest.raises(ClientError, match="another task"):
                    await consumer.poll()
                consumer.wakeup()
            assert polling.result() == []

    run(work)


def test_a_seek_does_not_wait_for_the_running_long_poll(live_broker: Broker) -> None:
    """A fetch at the end of the log waits for a long time. After a seek back,
    records are returned at once."""
    topic = live_broker.new_topic()
    topic_partition = TopicPartition(topic, 0)

    async def work() -> None:
        await numbered(live_broker.bootstrap, topic, 1, 5, per=5)
        limit_s = patient(55.0)
        wait_ms = int(1_100 * limit_s)
        options = {"fetch_max_wait_ms": wait_ms, "request_timeout_ms": 2 * wait_ms}
        async with consumer_of(live_broker.bootstrap, **options) as consumer:
            consumer.assign([topic_partition])
            async with asyncio.timeout(limit_s):
                await drain(consumer, 5)
                for _ in range(5):
                    consumer.seek_to_beginning()
                    await drain(consumer, 5)

    run(work)
