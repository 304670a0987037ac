"""Positions in a partition: first, last, by offset, by timestamp, and the reset policies."""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka
import pytest

from compat.clients.base import (
    HOUR_AGO_MS,
    Client,
    Consumer,
    ConsumerOptions,
    NoOffset,
    ProducerOptions,
    Record,
    wait_until,
)
from compat.conftest import TopicFactory
from penstock.testing.slowness import patient

Keep = Callable[[Consumer], Consumer]
Name = Callable[[], str]
BASE_MS = HOUR_AGO_MS


def produce_numbered(client: Client, topic: str, count: int, partition: int = 0) -> None:
    client.produce(
        topic,
        [
            Record(b"%05d" % i, partition=partition, timestamp_ms=BASE_MS + 1000 * i)
            for i in range(count)
        ],
        ProducerOptions(batch_bytes=500),
    )


def test_first_and_next_offset(client: Client, topic: TopicFactory, keep: Keep) -> None:
    """An empty partition begins and ends at 0; one with records ends after its last record."""
    name = topic(2)
    produce_numbered(client, name, 25, partition=1)
    reader = keep(client.reader(name, (0, 1)))
    assert reader.bounds(0) == (0, 0)
    assert reader.bounds(1) == (0, 25)


def test_seek_by_offset(client: Client, topic: TopicFactory, keep: Keep) -> None:
    """Forward, backward, and into the middle of a batch: reading continues exactly there."""
    name = topic()
    client.produce(name, [Record(b"%d" % i) for i in range(100)], ProducerOptions(linger_ms=50))
    reader = keep(client.reader(name))
    assert len(reader.read(100)) == 100
    for target in (0, 57, 99, 13):
        reader.seek(0, target)
        got = reader.read(100 - target)
        assert [r.offset for r in got] == list(range(target, 100))
        assert reader.position(0) == 100


def test_offsets_by_time(client: Client, topic: TopicFactory, keep: Keep) -> None:
    """The first record at or after a timestamp, by partition; none if all are older."""
    name = topic(2)
    produce_numbered(client, name, 50)
    reader = keep(client.reader(name, (0, 1)))
    assert reader.offset_at(0, BASE_MS - 1) == 0
    assert reader.offset_at(0, BASE_MS) == 0
    assert reader.offset_at(0, BASE_MS + 1) == 1
    assert reader.offset_at(0, BASE_MS + 30_000) == 30
    assert reader.offset_at(0, BASE_MS + 29_500) == 30
    assert reader.offset_at(0, BASE_MS + 49_000) == 49
    assert reader.offset_at(0, BASE_MS + 49_001) is None
    assert reader.offset_at(1, BASE_MS) is None


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_offsets_by_time_inside_one_batch(
    client: Client, topic: TopicFactory, keep: Keep, codec: str
) -> None:
    """Timestamps of records count, not of batches, compressed or not, ordered or not."""
    name = topic()
    times = [0, 10, 5, 20, 15, 30]
    client.produce(
        name,
        [Record(b"x", timestamp_ms=BASE_MS + offset_ms) for offset_ms in times],
        ProducerOptions(codec=codec, linger_ms=50),
    )
    reader = keep(client.reader(name))
    for wanted, offset in ((0, 0), (1, 1), (10, 1), (11, 3), (20, 3), (21, 5), (30, 5)):
        assert reader.offset_at(0, BASE_MS + wanted) == offset
    assert reader.offset_at(0, BASE_MS + 31) is None


def test_seek_by_time(client: Client, topic: TopicFactory, keep: Keep) -> None:
    """Seeking to the offset of a timestamp reads from that record on."""
    name = topic()
    produce_numbered(client, name, 40)
    reader = keep(client.reader(name))
    assert reader.read(40)
    found = reader.offset_at(0, BASE_MS + 25_000)
    assert found is not None
    reader.seek(0, found)
    assert [r.timestamp_ms for r in reader.read(15)][:15] == [
        BASE_MS + 1000 * i for i in range(25, 40)
    ]


def test_the_offset_with_the_largest_timestamp(client: Client, topic: TopicFactory) -> None:
    """The record with the largest timestamp need not be the last."""
    name = topic()
    client.produce(
        name, [Record(b"x", timestamp_ms=BASE_MS + t) for t in (5, 90, 30, 40)], ProducerOptions()
    )
    assert client.max_timestamp_offset(name, 0) == 1


def test_pause_and_resume(client: Client, topic: TopicFactory, keep: Keep) -> None:
    """A paused partition returns nothing while the other continues, and loses nothing."""
    name = topic(2)
    reader = keep(client.reader(name, (0, 1)))
    client.produce(name, [Record(b"a", partition=p) for p in (0, 1)])
    assert len(reader.read(2)) == 2
    reader.pause(0)
    client.produce(name, [Record(b"b", partition=p) for p in (0, 1) for _ in range(5)])
    got = reader.read(5)
    got += reader.read_nothing(0.5)
    assert {(r.partition, r.offset) for r in got} == {(1, i) for i in range(1, 6)}
    reader.resume(0)
    assert [(r.partition, r.offset) for r in reader.read(5)] == [(0, i) for i in range(1, 6)]


def test_reset_to_earliest(client: Client, topic: TopicFactory, name: Name, keep: Keep) -> None:
    """A group without offsets starts at the first record."""
    made = topic()
    produce_numbered(client, made, 10)
    member = keep(client.member(name(), made, ConsumerOptions(reset="earliest")))
    assert [r.offset for r in member.read(10)] == list(range(10))


def test_reset_to_latest(client: Client, topic: TopicFactory, name: Name, keep: Keep) -> None:
    """A group without offsets starts at the end: it reads only new records."""
    made = topic()
    produce_numbered(client, made, 10)
    member = keep(client.member(name(), made, ConsumerOptions(reset="latest")))
    assert wait_until(lambda: bool(member.assignment()), member)

    def sees_new_ones() -> bool:
        client.produce(made, [Record(b"new")])
        return bool(member.poll(0.3))

    assert wait_until(sees_new_ones, member)
    assert {r.value for r in member.received} == {b"new"}


def test_reset_to_none(client: Client, topic: TopicFactory, name: Name, keep: Keep) -> None:
    """Without an offset and without a policy the consumer fails instead of guessing."""
    made = topic()
    produce_numbered(client, made, 3)
    member = keep(client.member(name(), made, ConsumerOptions(reset="none")))
    with pytest.raises(NoOffset):
        wait_until(lambda: False, member)


def test_an_offset_out_of_range_is_reset(client: Client, topic: TopicFactory, keep: Keep) -> None:
    """A position beyond the end is reset by the policy: back to the first record."""
    name = topic()
    produce_numbered(client, name, 10)
    reader = keep(client.reader(name, options=ConsumerOptions(reset="earliest")))
    assert len(reader.read(10)) == 10
    reader.seek(0, 5000)
    assert [r.offset for r in reader.read(10)] == list(range(10))


def test_deleting_records_moves_the_log_start(
    client: Client, topic: TopicFactory, keep: Keep
) -> None:
    """After DeleteRecords the partition and its readers begin later, even inside a batch."""
    name = topic()
    client.produce(name, [Record(b"%d" % i) for i in range(30)], ProducerOptions(linger_ms=50))
    assert client.delete_records(name, 0, 12) == 12
    reader = keep(client.reader(name))
    assert reader.bounds(0) == (12, 30)
    assert [r.offset for r in reader.read(18)] == list(range(12, 30))
    assert client.delete_records(name, 0, -1) == 30
    assert reader.bounds(0) == (30, 30)
    assert client.produce(name, [Record(b"next")])[0].offset == 30


def test_librdkafka_reads_the_offset_that_it_has_just_committed(
    broker: str, topic: TopicFactory, name: Name
) -> None:
    """An asynchronous commit, followed by an OffsetFetch on the same connection."""
    topic_partition, group = topic(), name()
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker, "group.id": group, "enable.auto.commit": False}
    )
    try:
        # Once it knows its coordinator, it sends both requests at once.
        first = confluent_kafka.TopicPartition(topic_partition, 0, 0)
        consumer.commit(offsets=[first], asynchronous=False)
        seen = []
        for number in range(1, 51):
            offset = confluent_kafka.TopicPartition(topic_partition, 0, number)
            consumer.commit(offsets=[offset], asynchronous=True)
            (found,) = consumer.committed(
                [confluent_kafka.TopicPartition(topic_partition, 0)], timeout=patient(30)
            )
            seen.append(found.offset)
        assert seen == list(range(1, 51))
    finally:
        consumer.close()
