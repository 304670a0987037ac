"""Tests micro-batches from a real broker, planned and read as by Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from penstock import Admin, Producer
from penstock.client.errors import OptionError
from penstock.spark.log_view import DataLoss
from penstock.testing import Broker, Faults
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition
from spark.direct import Stream, read_up_to, rows_of

EARLIEST = {"startingOffsets": "earliest"}
LENIENT = {**EARLIEST, "failOnDataLoss": "false"}


class Topic:
    """A topic, and a way to write to it."""

    def __init__(self, broker: Broker, producer: Producer[Any, Any], partitions: int = 1) -> None:
        self._producer = producer
        self.name = broker.new_topic(partitions)

    def write(self, count: int, partition: int = 0, size: int = 5) -> None:
        for _ in range(count):
            self._producer.send(self.name, b"x" * size, partition=partition)
        self._producer.flush()


@pytest.fixture
def topic(broker: Broker, producer: Producer[Any, Any]) -> Topic:
    return Topic(broker, producer)


@pytest.fixture
def pair(broker: Broker, producer: Producer[Any, Any]) -> Topic:
    return Topic(broker, producer, partitions=2)


@pytest.fixture
def streams(broker: Broker) -> Iterator[Any]:
    made: list[Stream] = []

    def make(topic: str | None = None, **options: str) -> Stream:
        made.append(Stream(broker.bootstrap, topic, **options))
        return made[-1]

    yield make
    for stream in made:
        stream.reader.stop()


def at(topic: Topic, *offsets: int) -> dict[str, dict[str, int]]:
    return {topic.name: {str(index): offset for index, offset in enumerate(offsets)}}


def test_a_stream_begins_at_the_end_by_default(topic: Topic, streams: Any) -> None:
    """As with Spark's Kafka source. Later records are read once, in order."""
    topic.write(3)
    stream = streams(topic.name)
    assert stream.trigger().rows == []
    topic.write(2)
    assert stream.trigger().offsets == {(topic.name, 0): [3, 4]}
    assert stream.trigger().rows == []


@pytest.mark.parametrize(
    ("options", "first"),
    [
        (EARLIEST, 0),
        ({"startingOffsets": "latest"}, 4),
        ({"startingOffsets": '{"T": {"0": 3}}'}, 3),
        ({"startingOffsets": '{"T": {"0": -2}}'}, 0),
        ({"startingTimestamp": "1"}, 0),
        ({"startingOffsetsByTimestamp": '{"T": {"0": 1}}'}, 0),
        ({"assign": '{"T": [0]}', "startingOffsets": "earliest"}, 0),
        ({"subscribePattern": "T", "startingOffsets": "earliest"}, 0),
    ],
)
def test_every_way_to_choose_the_start(
    topic: Topic, streams: Any, options: dict[str, str], first: int
) -> None:
    topic.write(4)
    given = {name: value.replace("T", topic.name) for name, value in options.items()}
    named = {} if {"assign", "subscribePattern"} & set(given) else {"topic": topic.name}
    assert read_up_to(streams(**named, **given).plan()[0]) == at(topic, first)


def test_a_limit_in_records_is_kept(pair: Topic, streams: Any) -> None:
    """Batches have at most this many records, divided in proportion, until everything is read."""
    pair.write(30)
    pair.write(10, partition=1)
    stream = streams(pair.name, **EARLIEST, maxOffsetsPerTrigger="8")
    assert stream.reader.getDefaultReadLimit() == ReadMaxRows(8)
    batches = stream.until_idle()
    assert [len(batch.rows) for batch in batches] == [8] * 5
    assert read_up_to(batches[0].end) == at(pair, 6, 2)
    assert read_up_to(batches[-1].end) == at(pair, 30, 10)


def test_a_run_that_reads_everything_ignores_the_limit(topic: Topic, streams: Any) -> None:
    """Spark requests everything when it runs once; the limit is for repeated triggers."""
    topic.write(30)
    stream = streams(topic.name, **EARLIEST, maxOffsetsPerTrigger="8")
    assert len(stream.trigger(ReadAllAvailable()).rows) == 30


def test_a_limit_in_bytes_is_kept(pair: Topic, streams: Any) -> None:
    """Large records make small batches. The sizes are those on the broker's disk."""
    pair.write(40, size=10_000)
    pair.write(40, partition=1, size=10)
    stream = streams(pair.name, **EARLIEST, maxBytesPerTrigger="100k")
    assert stream.reader.getDefaultReadLimit() == ReadMaxBytes(100 << 10)
    batches = stream.until_idle()
    assert 4 <= len(batches) <= 8
    for batch in batches:
        assert sum(len(row["value"]) for row in batch.rows) <= 110_000
    assert sum(len(batch.rows) for batch in batches) == 80


def test_a_batch_waits_for_the_minimum_number_of_records(topic: Topic, streams: Any) -> None:
    """After the first batch, fewer records wait, but no longer than `maxTriggerDelay`."""
    topic.write(1)
    options = {**EARLIEST, "minOffsetsPerTrigger": "5", "maxTriggerDelay": "1h"}
    stream = streams(topic.name, **options)
    assert stream.reader.getDefaultReadLimit() == ReadMinRows(5)
    assert len(stream.trigger().rows) == 1
    topic.write(4)
    assert stream.trigger().rows == []
    topic.write(1)
    assert len(stream.trigger().rows) == 5
    soon = streams(topic.name, **{**options, "maxTriggerDelay": "0ms"})
    soon.trigger()
    topic.write(1)
    assert len(soon.trigger().rows) == 1


def test_an_available_now_run_ends(pair: Topic, streams: Any) -> None:
    """With a limit and a minimum, while more is written: it ends at the end offsets of its
    start."""
    pair.write(20)
    stream = streams(
        pair.name, **EARLIEST, maxOffsetsPerTrigger="6", minOffsetsPerTrigger="15", groupId="now"
    )
    stream.reader.prepareForTriggerAvailableNow()
    pair.write(20, partition=1)
    batches = stream.until_idle()
    assert read_up_to(batches[-1].end) == at(pair, 20, 0)
    assert sum(len(batch.rows) for batch in batches) == 20


def test_an_unfinished_batch_is_repeated_after_a_restart(pair: Topic, streams: Any) -> None:
    """The checkpoint alone defines a batch: another process plans the same one."""
    pair.write(10)
    pair.write(5, partition=1)
    stream = streams(pair.name, **EARLIEST, maxOffsetsPerTrigger="6")
    start, end = stream.plan()
    first = rows_of(stream.reader, stream.reader.partitions(start, end))
    stream.restart()
    pair.write(10)
    again = rows_of(stream.reader, stream.reader.partitions(start, end))
    assert [(row["partition"], row["offset"]) for row in again] == [
        (row["partition"], row["offset"]) for row in first
    ]
    stream.position = end
    rest = [row for batch in stream.until_idle() for row in batch.rows]
    assert len(first) + len(rest) == 25


def test_the_reader_is_pickled_without_its_connections(topic: Topic, streams: Any) -> None:
    """Spark pickles the reader for its executors, and their copies read the same."""
    topic.write(2)
    stream = streams(topic.name, **EARLIEST)
    start, end = stream.plan()
    pieces = stream.reader.partitions(start, end)
    other, parts = pickle.loads(pickle.dumps((stream.reader, pieces)))
    assert len(rows_of(other, parts)) == 2


# -- topics and partitions that appear and disappear -----------------------------------------------


def test_new_partitions_are_read_from_their_beginning(
    topic: Topic, streams: Any, admin: Admin
) -> None:
    """Even if the stream itself began at the end."""
    topic.write(2)
    stream = streams(topic.name)
    stream.trigger()
    admin.create_partitions(topic.name, 3)
    topic.write(4, partition=2)
    assert stream.trigger().offsets == {(topic.name, 2): [0, 1, 2, 3]}
    assert read_up_to(stream.position) == at(topic, 2, 0, 4)


def test_new_topics_that_match_the_pattern_are_read(
    broker: Broker, producer: Producer[Any, Any], streams: Any
) -> None:
    """A pattern may match nothing at first."""
    prefix = broker.new_name("logs")
    stream = streams(subscribePattern=f"{prefix}-.*")
    assert stream.trigger().rows == []
    for name in ("a", "b"):
        topic = broker.new_topic(name=f"{prefix}-{name}")
        producer.send(topic, b"hello").result(patient(120))
        assert stream.trigger().offsets == {(topic, 0): [0]}


def test_retention_deletes_unread_records(topic: Topic, streams: Any, admin: Admin) -> None:
    """This is data loss. With `failOnDataLoss=false`, the rest is read."""
    topic.write(4)
    strict, lenient = streams(topic.name, **EARLIEST), streams(topic.name, **LENIENT)
    assert len(strict.trigger().rows) == len(lenient.trigger().rows) == 4
    topic.write(6)
    admin.delete_records({TopicPartition(topic.name, 0): 7})
    with pytest.raises(DataLoss, match=r"offsets 4 to 6 of .* were deleted"):
        strict.trigger()
    assert lenient.trigger().offsets == {(topic.name, 0): [7, 8, 9]}


def test_retention_deletes_records_between_planning_and_reading(
    topic: Topic, streams: Any, admin: Admin
) -> None:
    """The task notices and reports the same."""
    topic.write(5)
    strict, lenient = streams(topic.name, **EARLIEST), streams(topic.name, **LENIENT)
    start, end = strict.plan()
    pieces = strict.reader.partitions(start, end)
    admin.delete_records({TopicPartition(topic.name, 0): 3})
    with pytest.raises(DataLoss, match="does not hold offset 0"):
        rows_of(strict.reader, pieces)
    assert [row["offset"] for row in rows_of(lenient.reader, pieces)] == [3, 4]


def test_a_topic_is_deleted_while_a_stream_reads_it(
    broker: Broker, pair: Topic, topic: Topic, streams: Any, admin: Admin
) -> None:
    """With `failOnDataLoss=false`, the other topics are still read. If the topic is
    created again, it is a new one."""
    both = f"{pair.name},{topic.name}"
    strict, lenient = streams(both, **EARLIEST), streams(both, **LENIENT)
    topic.write(3)
    pair.write(3)
    assert len(strict.trigger().rows) == len(lenient.trigger().rows) == 6
    admin.delete_topic(topic.name)
    pair.write(2)
    with pytest.raises(DataLoss, match=f"deleted, or no longer in the options: {topic.name}-0"):
        strict.trigger()
    assert lenient.trigger().offsets == {(pair.name, 0): [3, 4]}
    assert topic.name not in lenient.position
    broker.new_topic(name=topic.name)
    topic.write(5)
    assert lenient.trigger().offsets == {(topic.name, 0): [0, 1, 2, 3, 4]}


def test_a_topic_is_deleted_during_an_available_now_run(
    pair: Topic, topic: Topic, streams: Any, admin: Admin
) -> None:
    """The run ends nevertheless."""
    topic.write(3)
    pair.write(3)
    lenient = streams(f"{pair.name},{topic.name}", **LENIENT, maxOffsetsPerTrigger="2")
    lenient.reader.prepareForTriggerAvailableNow()
    lenient.plan()
    admin.delete_topic(topic.name)
    rows = [row for batch in lenient.until_idle() for row in batch.rows]
    assert [row["offset"] for row in rows if row["topic"] == pair.name] == [0, 1, 2]


@pytest.mark.parametrize("count", [2, 4, 9])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_recreated_topic_is_read_from_its_beginning(
    broker: Broker, topic: Topic, streams: Any, admin: Admin, count: int, restarted: bool
) -> None:
    """It is detected by its id, which is in the checkpoint: also after a restart, and also if the
    new log is as long as the old one, or longer."""
    topic.write(4)
    strict, lenient = streams(topic.name, **EARLIEST), streams(topic.name, **LENIENT)
    assert len(strict.trigger().rows) == len(lenient.trigger().rows) == 4
    admin.delete_topic(topic.name)
    broker.new_topic(name=topic.name)
    topic.write(count)
    if restarted:
        strict.restart()
        lenient.restart()
    with pytest.raises(DataLoss, match="created again"):
        strict.trigger()
    offsets = [row["offset"] for batch in lenient.until_idle() for row in batch.rows]
    assert offsets == list(range(count))
    assert read_up_to(lenient.position) == at(topic, count)


def test_a_batch_of_a_topic_that_was_recreated_is_not_repeated_with_other_records(
    broker: Broker, topic: Topic, streams: Any, admin: Admin
) -> None:
    """The batch was in the checkpoint, but not completed, when its query ended."""
    topic.write(4)
    stream = streams(topic.name, **EARLIEST)
    start, end = stream.plan()
    admin.delete_topic(topic.name)
    broker.new_topic(name=topic.name)
    topic.write(9)
    stream.restart()
    with pytest.raises(DataLoss, match=r"created again.*not completed"):
        stream.reader.partitions(start, end)


def test_such_a_batch_reads_nothing_if_losses_are_accepted(
    broker: Broker, topic: Topic, streams: Any, admin: Admin
) -> None:
    """The next batches read the new topic, from its beginning: every record once."""
    topic.write(4)
    stream = streams(topic.name, **LENIENT)
    start, end = stream.plan()
    admin.delete_topic(topic.name)
    broker.new_topic(name=topic.name)
    topic.write(9)
    stream.restart()
    assert rows_of(stream.reader, stream.reader.partitions(start, end)) == []
    stream.position = end
    offsets = [row["offset"] for batch in stream.until_idle() for row in batch.rows]
    assert offsets == list(range(9))


def test_a_checkpoint_of_an_older_version_gets_the_ids_of_its_topics(
    broker: Broker, topic: Topic, streams: Any, admin: Admin
) -> None:
    topic.write(4)
    stream = streams(topic.name, **EARLIEST)
    stream.trigger()
    stream.position = read_up_to(stream.position)
    stream.restart()
    assert stream.trigger().rows == []
    admin.delete_topic(topic.name)
    broker.new_topic(name=topic.name)
    topic.write(9)
    stream.restart()
    with pytest.raises(DataLoss, match="deleted and created again"):
        stream.trigger()


def test_a_stream_survives_a_broker_restart() -> None:
    """Planning and reading both wait for it."""
    with Broker() as own, Producer(own.bootstrap) as writer:
        topic = own.new_topic()
        writer.send(topic, b"one").result(patient(120))
        with Stream(own.bootstrap, topic, **EARLIEST) as stream:
            assert stream.trigger().offsets == {(topic, 0): [0]}
            own.restart()
            writer.send(topic, b"two").result(patient(120))
            assert stream.trigger().offsets == {(topic, 0): [1]}


def test_a_missing_topic_is_refused_at_the_start(streams: Any) -> None:
    with pytest.raises(OptionError, match="topic nowhere does not exist: create it with"):
        streams("nowhere").trigger()


# -- progress --------------------------------------------------------------------------------------


def test_a_group_shows_the_progress_of_a_stream(pair: Topic, streams: Any, admin: Admin) -> None:
    """The offsets of a finished batch are committed when Spark asks for the next one, so that no
    lag remains after the last."""
    pair.write(5)
    group = f"group-of-{pair.name}"
    stream = streams(pair.name, **EARLIEST, groupId=group, maxOffsetsPerTrigger="3")
    start, _ = stream.plan()
    assert read_up_to(start) == at(pair, 0, 0)
    assert {
        topic_partition.partition: one.offset
        for topic_partition, one in admin.group_offsets(group).items()
    } == {
        0: 0,
        1: 0,
    }
    stream.until_idle()
    assert {
        topic_partition.partition: one.offset
        for topic_partition, one in admin.group_offsets(group).items()
    } == {
        0: 5,
        1: 0,
    }


def test_a_failed_group_commit_does_not_stop_the_stream(
    broker: Broker, topic: Topic, admin: Admin
) -> None:
    """The checkpoint is what counts; the commit is repeated at the next trigger."""
    topic.write(1)
    group = f"group-of-{topic.name}"
    with (
        Faults(broker.bootstrap) as faults,
        Stream(faults.bootstrap, topic.name, **EARLIEST, groupId=group) as stream,
    ):
        stream.trigger()
        faults.fail("OffsetCommit", "GROUP_AUTHORIZATION_FAILED", times=1)
        assert stream.trigger().rows == []
        assert admin.group_offsets(group)[TopicPartition(topic.name, 0)].offset == 0
        assert stream.trigger().rows == []
        assert admin.group_offsets(group)[TopicPartition(topic.name, 0)].offset == 1


def test_the_latest_offsets_are_reported(topic: Topic, streams: Any) -> None:
    """The end of the log, not of the batch: Spark shows both, and so the lag."""
    topic.write(10)
    stream = streams(topic.name, **EARLIEST, maxOffsetsPerTrigger="3")
    assert stream.reader.reportLatestOffset() is None
    stream.trigger()
    assert read_up_to(stream.position) == at(topic, 3)
    assert stream.reader.reportLatestOffset() == at(topic, 10)


def test_a_trigger_costs_two_requests(broker: Broker, pair: Topic) -> None:
    """One for the topics and one for their end offsets, on connections that stay open.

    The reader of the first trigger may have had one more Fetch in flight when it stopped, which the
    broker may receive later.
    """
    pair.write(1)
    with (
        Faults(broker.bootstrap) as faults,
        Stream(faults.bootstrap, pair.name, **EARLIEST) as stream,
    ):
        stream.trigger()
        before = len(faults.requests)
        for _ in range(5):
            stream.trigger()
        asked = [request.api for request in faults.requests[before:]]
        assert [api for api in asked if api != "Fetch"] == ["Metadata", "ListOffsets"] * 5
        assert asked.count("Fetch") <= 1
