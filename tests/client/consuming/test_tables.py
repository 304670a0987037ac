"""Tests reading Arrow tables: the same records as with `poll`, without an object for each."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.consuming.logs import MadeLog, fill, logs, value
from client.consuming.open_consumers import NOW_MS, batch_of, consumer_of, numbered, produce, run
from client.open_clusters import cluster_of
from penstock.client.admin.offsets import delete_records
from penstock.client.consumer import Consumer
from penstock.client.consuming.reading import Reading
from penstock.client.consuming.record_decoder import RecordMaker
from penstock.client.consuming.subscription import Subscription
from penstock.client.consuming.tables import SCHEMA, TablePoll
from penstock.client.errors import BrokerError, OptionError, OutsideLog, TopicNotFound
from penstock.client.options import ConsumerOptions
from penstock.records.record import Record as RawRecord
from penstock.records.record import build_batch
from penstock.testing import Broker
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition

TOPIC_PARTITION = TopicPartition("t", 0)
OPTIONS = ConsumerOptions.parse("localhost:9092", {})


def cells(table: pa.Table) -> list[tuple[int, int, bytes | None]]:
    columns = (table.column(name).to_pylist() for name in ("partition", "offset", "value"))
    return sorted(zip(*columns, strict=True))


async def drain_tables(consumer: Consumer[Any, Any], count: int, **poll: Any) -> pa.Table:
    tables: list[pa.Table] = []
    while sum(table.num_rows for table in tables) < count:
        tables.append(await consumer.poll_table(timeout_ms=1_000, **poll))
    whole = pa.concat_tables(tables)
    assert whole.num_rows == count
    return whole


async def delete_records_before(
    broker: Broker, topic_partition: TopicPartition, offset: int
) -> None:
    async with cluster_of(broker.bootstrap) as cluster:
        await delete_records(cluster, {topic_partition: offset})


@settings(deadline=None, max_examples=80)
@given(
    logs(),
    st.lists(st.integers(0, 20), max_size=4),
    st.integers(1, 20),
    st.integers(1, 500),
    st.booleans(),
    st.booleans(),
)
def test_tables_hold_the_same_records_as_polling(
    log: MadeLog,
    where: list[int],
    rows_max: int,
    bytes_max: int,
    committed_only: bool,
    mixed: bool,
) -> None:
    """With any limits, also alternating with `poll`: every visible record once, in order, and never
    more rows than requested."""
    subscription = Subscription(committed_only=committed_only)
    subscription.assign([TOPIC_PARTITION])
    state = subscription.state(TOPIC_PARTITION)
    subscription.set_position(state, 0, -1)
    fill(state.buffer, log, where)
    reading = Reading(subscription, RecordMaker(None, None))
    poll = TablePoll(subscription, reading, OPTIONS, headers=True)
    seen: list[tuple[int, bytes | None]] = []
    while state.buffer:
        if mixed:
            seen += [(record.offset, record.value) for record in reading.collect(2)]
        table = poll.take(rows_max, bytes_max)
        assert table.schema == SCHEMA
        assert table.num_rows <= rows_max
        seen += [(offset, data) for _, offset, data in cells(table)]
    offsets = log.seen(committed_only=committed_only)
    assert seen == [(offset, value(offset)) for offset in offsets]
    assert state.position == log.end


def test_a_corrupt_batch_leaves_the_position_before_it() -> None:
    log = MadeLog()
    log.add(range(3), 3)
    log.batches[0] = log.batches[0][:-1] + b"?"
    subscription = Subscription()
    subscription.assign([TOPIC_PARTITION])
    state = subscription.state(TOPIC_PARTITION)
    subscription.set_position(state, 0, -1)
    fill(state.buffer, log, [])
    reading = Reading(subscription, RecordMaker(None, None))
    assert TablePoll(subscription, reading, OPTIONS, headers=True).take(None, None).num_rows == 0
    assert state.position == 0
    assert isinstance(subscription.take_error(0.0, again=False), BrokerError)


def several(logs: dict[TopicPartition, MadeLog]) -> tuple[Subscription, TablePoll]:
    subscription = Subscription()
    subscription.assign(list(logs))
    for topic_partition, log in logs.items():
        state = subscription.state(topic_partition)
        subscription.set_position(state, 0, -1)
        fill(state.buffer, log, [])
    reading = Reading(subscription, RecordMaker(None, None))
    return subscription, TablePoll(subscription, reading, OPTIONS, headers=True)


def logs_of(*names: str, rows: int = 3) -> dict[TopicPartition, MadeLog]:
    logs = {}
    for name in names:
        topic, _, partition = name.partition("-")
        log = logs[TopicPartition(topic, int(partition))] = MadeLog()
        log.add(range(rows), rows)
    return logs


def test_a_corrupt_partition_does_not_hold_back_others() -> None:
    """All partitions of a topic are decoded together; the intact ones are returned nevertheless."""
    logs = logs_of("t-0", "t-1", "t-2")
    bad = TopicPartition("t", 1)
    logs[bad].batches[0] = logs[bad].batches[0][:-1] + b"?"
    subscription, poll = several(logs)
    table = poll.take(None, None)
    assert [partition for partition, _, _ in cells(table)] == [0] * 3 + [2] * 3
    assert [state.position for state in subscription.states.values()] == [3, 0, 3]
    assert isinstance(subscription.take_error(0.0, again=False), BrokerError)


def test_partitions_of_a_topic_share_an_arrow_batch() -> None:
    subscription, poll = several(logs_of("t-0", "u-0", "t-1"))
    table = poll.take(None, None)
    assert table.num_rows == 9
    assert table.column("topic").num_chunks == 2
    assert [state.position for state in subscription.states.values()] == [3, 3, 3]


@pytest.mark.parametrize(("rows_max", "sizes"), [(3, [3, 3, 3]), (4, [4, 4, 1]), (7, [7, 2])])
def test_limits_hold_across_partitions(rows_max: int, sizes: list[int]) -> None:
    """Batches are cut at the row limit. A batch over the byte limit waits, unless it is the
    first."""
    _, poll = several(logs_of("t-0", "t-1", "t-2"))
    assert [poll.take(rows_max, None).num_rows for _ in sizes] == sizes
    logs = logs_of("t-0", "t-1", "t-2")
    size = len(logs[TOPIC_PARTITION].batches[0])
    _, poll = several(logs)
    assert [poll.take(None, limit).num_rows for limit in (1, 2 * size - 1, size)] == [3, 3, 3]


def test_polling_tables_from_several_topics(live_broker: Broker) -> None:
    """All columns are filled, with the topic as a dictionary column.
    Positions advance as with `poll`."""
    first, second = live_broker.new_topic(2), live_broker.new_topic(1)

    async def work() -> None:
        await numbered(live_broker.bootstrap, first, 2, 30, per=7)
        raw = RawRecord(0, NOW_MS, b"k", None, (("h", b"1"), ("i", None)))
        await produce(live_broker.bootstrap, TopicPartition(second, 0), build_batch([raw]))
        async with consumer_of(live_broker.bootstrap, topics=[first, second]) as consumer:
            table = await drain_tables(consumer, 61)
            rows = table.to_pylist()
            assert table.schema == SCHEMA
            assert [row for row in rows if row["topic"] == second] == [
                {
                    "topic": second,
                    "partition": 0,
                    "offset": 0,
                    "timestamp": datetime.fromtimestamp(NOW_MS / 1000, UTC),
                    "timestamp_type": 0,
                    "key": b"k",
                    "value": None,
                    "headers": [{"key": "h", "value": b"1"}, {"key": "i", "value": None}],
                }
            ]
            for partition in range(2):
                found = [
                    int(row["value"])
                    for row in rows
                    if (row["topic"], row["partition"]) == (first, partition)
                ]
                assert found == list(range(30))
            assert {position.offset for position in consumer.positions().values()} == {30, 1}
            empty = await consumer.poll_table(timeout_ms=20, headers=False)
            assert (empty.num_rows, empty.schema.names) == (0, SCHEMA.names[:-1])

    run(work)


def test_alternating_between_tables_and_records(live_broker: Broker) -> None:
    topic = live_broker.new_topic(1)

    async def work() -> None:
        await numbered(live_broker.bootstrap, topic, 1, 200, per=50)
        async with consumer_of(live_broker.bootstrap, topics=[topic]) as consumer:
            seen: list[int] = []
            while len(seen) < 200:
                seen += [record.offset for record in await consumer.poll(max_records=7)]
                table = await consumer.poll_table(max_rows=11)
                seen += table.column("offset").to_pylist()
                if len(seen) < 200:
                    async for record in consumer:
                        seen.append(record.offset)
                        break
            assert seen == list(range(200))

    run(work)


class TestRanges:
    def test_reading_a_whole_topic(self, live_broker: Broker) -> None:
        """Reads up to the end offsets at the time of the call; the consumer's
        own positions do not move."""
        topic = live_broker.new_topic(3)

        async def work() -> None:
            await numbered(live_broker.bootstrap, topic, 3, 100, per=30)
            async with consumer_of(live_broker.bootstrap, topics=[topic]) as consumer:
                await consumer.poll(timeout_ms=60_000, max_records=5)
                before = consumer.positions()
                table = await consumer.read_table(topic)
                assert cells(table) == [
                    (partition, n, b"%d" % n) for partition in range(3) for n in range(100)
                ]
                assert consumer.positions() == before

        run(work)

    def test_bounds_by_offset_and_by_time(self, live_broker: Broker) -> None:
        topic = live_broker.new_topic(2)

        async def work() -> None:
            for partition in range(2):
                topic_partition = TopicPartition(topic, partition)
                batch = batch_of([b"%d" % n for n in range(20)])
                await produce(live_broker.bootstrap, topic_partition, batch)
            async with consumer_of(live_broker.bootstrap) as consumer:

                async def offsets(*bounds: Any, **how: Any) -> list[tuple[int, int]]:
                    table = await consumer.read_table(topic, *bounds, **how)
                    return [(partition, offset) for partition, offset, _ in cells(table)]

                assert await offsets({0: 18, 1: 5}, {0: 20, 1: 7}) == [
                    (0, 18),
                    (0, 19),
                    (1, 5),
                    (1, 6),
                ]
                time = datetime.fromtimestamp((NOW_MS + 17) / 1000, UTC)
                assert await offsets(time, partitions=[1]) == [(1, 17), (1, 18), (1, 19)]
                assert await offsets("earliest", NOW_MS + 2, partitions=[0]) == [(0, 0), (0, 1)]
                assert await offsets(NOW_MS + 99) == []
                assert await offsets("latest") == []
                assert await offsets({0: 7, 1: 7}, {0: 7, 1: 3}) == []

        run(work)

    def test_invalid_bounds_are_refused(self, live_broker: Broker) -> None:
        topic = live_broker.new_topic(2)

        async def work() -> None:
            async with consumer_of(live_broker.bootstrap) as consumer:
                with pytest.raises(OptionError, match=r"no offset for partitions \[1\]"):
                    await consumer.read_table(topic, {0: 0})
                with pytest.raises(OptionError, match="earliest"):
                    await consumer.read_table(topic, "yesterday")
                with pytest.raises(TopicNotFound, match="partition 5"):
                    await consumer.read_table(topic, partitions=[5])
                with pytest.raises(TopicNotFound):
                    await consumer.read_table(live_broker.new_name("none"))

        run(work)

    def test_a_range_with_deleted_records_is_an_error(self, live_broker: Broker) -> None:
        """The caller asked for the whole range."""
        topic = live_broker.new_topic(1)
        topic_partition = TopicPartition(topic, 0)

        async def work() -> None:
            await numbered(live_broker.bootstrap, topic, 1, 20, per=5)
            await delete_records_before(live_broker, topic_partition, 10)
            async with consumer_of(live_broker.bootstrap) as consumer:
                assert len(await consumer.read_table(topic)) == 10
                with pytest.raises(OutsideLog, match="does not hold offset 3") as why:
                    await consumer.read_table(topic, {0: 3})
                found = why.value
                assert (found.topic_partition, found.offset, found.log_start) == (
                    topic_partition,
                    3,
                    10,
                )
                with pytest.raises(OutsideLog) as why:
                    await consumer.read_table(topic, {0: 10}, {0: 21})
                assert (why.value.offset, why.value.log_end) == (21, 20)

        run(work)

    def test_records_deleted_while_a_range_is_read_are_an_error(self, live_broker: Broker) -> None:
        """Retention may be faster than a slow reader."""
        topic = live_broker.new_topic(1)
        topic_partition = TopicPartition(topic, 0)

        async def work() -> None:
            batch = batch_of([b"x" * 1_000] * 100)
            await produce(live_broker.bootstrap, topic_partition, *[batch] * 10)
            options: dict[str, Any] = {"queued_bytes_max": 150_000}
            async with consumer_of(live_broker.bootstrap, **options) as consumer:
                with pytest.raises(OutsideLog) as why:
                    async for _ in consumer.read_batches(topic):
                        await delete_records_before(live_broker, topic_partition, 900)
                assert (why.value.topic_partition, why.value.log_start, why.value.log_end) == (
                    topic_partition,
                    900,
                    1000,
                )

        run(work)

    def test_batches_use_bounded_memory_and_reading_may_stop_early(
        self, live_broker: Broker
    ) -> None:
        """A reader that stops early leaves nothing behind, and another one can begin at once."""
        topic = live_broker.new_topic(2)

        async def work() -> None:
            batch = batch_of([b"x" * 1000] * 200)
            for partition in range(2):
                topic_partition = TopicPartition(topic, partition)
                await produce(live_broker.bootstrap, topic_partition, *[batch] * 10)
            options: dict[str, Any] = {"queued_bytes_max": 500_000}
            async with consumer_of(live_broker.bootstrap, **options) as consumer:
                rows = 0
                async for part in consumer.read_batches(topic):
                    assert part.nbytes < 1_200_000
                    rows += part.num_rows
                assert rows == 4_000
                before = asyncio.all_tasks()
                batches = consumer.read_batches(topic)
                async for _ in batches:
                    break
                await batches.aclose()  # type: ignore[attr-defined]
                # Tasks of the consumer itself begin and end at any time.
                async with asyncio.timeout(patient(60)):
                    while asyncio.all_tasks() - before:  # noqa: ASYNC110 - no event tells
                        await asyncio.sleep(0.005)

        run(work)
