"""Tests streams that read a share group: called as Spark calls them, and with real Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock import Producer, Queue
from penstock.client.errors import OptionError, TopicNotFound
from penstock.spark.share_stream_reader import ShareStreamReader
from penstock.testing import Broker
from penstock.testing.slowness import patient
from spark.conftest import Read
from spark.direct import COLUMNS, Deadline, rows_of, source
from spark.following import END_S, Followed


def limit_s() -> float:
    """How long to wait; longer while the machine is busy."""
    return patient(60.0)


Make = Callable[..., ShareStreamReader]


@pytest.fixture
def readers(broker: Broker) -> Iterator[Make]:
    """`readers(topic)` is a reader as the driver of a query has it. Its share group has the name of
    the topic."""
    made: list[ShareStreamReader] = []

    def make(topic: str, **options: str) -> ShareStreamReader:
        reader = source(broker.bootstrap, topic, shareGroup=topic, **options).streamReader(COLUMNS)
        assert isinstance(reader, ShareStreamReader)
        made.append(reader)
        return reader

    yield make
    for reader in made:
        reader.stop()


def fill(producer: Producer[Any, Any], topic: str, count: int, partitions: int = 1) -> None:
    for number in range(count):
        producer.send(topic, b"%d" % number, partition=number % partitions)
    producer.flush()


def numbers(broker: Broker, topic: str) -> tuple[int, int | None]:
    """Returns how many records are not done, and how many are in flight."""
    with Queue(broker.bootstrap, topic) as queue:
        found = queue.stats()
    return found.depth, found.in_flight


def next_batch(reader: ShareStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """Asks for the next batch until there is one."""
    deadline = Deadline(limit_s())
    while (end := reader.latestOffset(start, ReadMaxRows(1))) == start:
        deadline.check("a batch")
    return end


def settled(reader: ShareStreamReader, broker: Broker, topic: str, at: dict[str, Any]) -> None:
    """Lets Spark look for more records until all are done. There must be no other batch."""
    deadline = Deadline(limit_s())
    while numbers(broker, topic) != (0, 0):
        assert reader.latestOffset(at, ReadMaxRows(1)) == at
        deadline.check("the end of the queue")


def offsets(reader: ShareStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    return sorted(row["offset"] for row in rows_of(reader, reader.partitions(start, end)))


def test_a_batch_is_acknowledged_when_spark_goes_on(
    broker: Broker, producer: Producer[Any, Any], readers: Make
) -> None:
    """Its records stay locked until then. Each partition is one task."""
    topic = broker.new_topic(partitions=2)
    fill(producer, topic, 4, partitions=2)
    reader = readers(topic)
    begin = reader.initialOffset()
    at = begin
    rows: list[dict[str, Any]] = []
    while len(rows) < 4:
        end = next_batch(reader, at)
        taken = rows_of(reader, reader.partitions(at, end))
        depth, in_flight = numbers(broker, topic)
        # The records of a partition may come later than those of the other one.
        assert len(taken) <= (in_flight or 0) <= depth == 4 - len(rows)
        assert len(reader.partitions(at, end)) == len(end["records"][topic])
        rows += taken
        at = end
    assert sorted(int(row["value"]) for row in rows) == [0, 1, 2, 3]
    reader.commit(at)
    assert numbers(broker, topic) == (0, 0)
    assert reader.latestOffset(at, ReadMaxRows(1)) == at
    assert reader.partitions(at, at) == []


def test_a_batch_keeps_its_limit_and_leaves_the_rest_to_others(
    broker: Broker, producer: Producer[Any, Any], readers: Make
) -> None:
    topic = broker.new_topic()
    fill(producer, topic, 6)
    first, second = (readers(topic, maxOffsetsPerTrigger="3") for _ in range(2))
    begin = first.initialOffset()
    ends = [next_batch(reader, begin) for reader in (first, second)]
    found = [offsets(reader, begin, end) for reader, end in zip((first, second), ends, strict=True)]
    assert sorted(found) == [[0, 1, 2], [3, 4, 5]]
    assert first.getDefaultReadLimit() == ReadMaxRows(3)


def test_a_driver_that_ends_before_the_commit_gives_its_records_back(
    broker: Broker, producer: Producer[Any, Any], readers: Make
) -> None:
    """Another query gets them. A restart of the first repeats its batch, with the same records."""
    topic = broker.new_topic()
    fill(producer, topic, 3)
    first = readers(topic)
    begin = first.initialOffset()
    end = next_batch(first, begin)
    before = offsets(first, begin, end)
    first.stop()
    other = readers(topic)
    their_end = next_batch(other, begin)
    assert offsets(other, begin, their_end) == before == [0, 1, 2]
    other.commit(their_end)
    assert numbers(broker, topic) == (0, 0)
    restarted = readers(topic)
    assert offsets(restarted, begin, end) == before, "Spark repeats the batch"
    assert restarted.latestOffset(end, ReadMaxRows(1)) == end


def test_a_committed_batch_that_was_not_acknowledged_is_not_processed_again(
    broker: Broker, producer: Producer[Any, Any], readers: Make
) -> None:
    """The driver died between Spark's commit and the acknowledgement. The next one gets the records
    again, and only acknowledges them."""
    topic = broker.new_topic()
    fill(producer, topic, 3)
    first = readers(topic)
    end = next_batch(first, first.initialOffset())
    first.stop()
    assert numbers(broker, topic) == (3, 0)
    settled(readers(topic), broker, topic, end)


def test_mistakes_are_reported(broker: Broker, readers: Make) -> None:
    reader = readers(broker.new_name("none"))
    with pytest.raises(TopicNotFound):
        reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))
    with pytest.raises(OptionError, match="shareGroup is for streams"):
        source(broker.bootstrap, "t", shareGroup="g").reader(COLUMNS)


# -- with Spark ---------------------------------------------------------------------------------


def test_two_queries_drain_one_queue(
    broker: Broker, producer: Producer[Any, Any], read_stream: Read, tmp_path: Path
) -> None:
    """Every record is processed by one of them, and then the queue is empty. The second waits
    until the first has a batch that it does not finish, so both get something."""
    topic = broker.new_topic(partitions=2)
    fill(producer, topic, 40, partitions=2)
    held: list[Any] = []
    ones, others = Followed(), Followed()

    def hold(frame: DataFrame, batch_id: int) -> None:
        """The first query waits in its first batch until the second is done."""
        if not held:
            held.append(others.start(stream(), str(tmp_path / "b")))
            assert held[0].awaitTermination(int(patient(END_S))), held[0].lastProgress
        ones.take(frame, batch_id)

    def stream() -> DataFrame:
        return read_stream(topic, shareGroup=topic, maxOffsetsPerTrigger="15")

    writer = stream().writeStream.option("checkpointLocation", str(tmp_path / "a"))
    query = writer.foreachBatch(hold).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(int(patient(2 * END_S))), query.lastProgress
    finally:
        query.stop()
    processed = sorted((row.partition, row.offset) for row in [*ones.rows, *others.rows])
    assert processed == [(part, offset) for part in range(2) for offset in range(20)]
    assert ones.rows and others.rows
    assert numbers(broker, topic) == (0, 0)


def test_a_query_that_fails_before_its_commit_leaves_its_records_to_another(
    broker: Broker, producer: Producer[Any, Any], read_stream: Read, tmp_path: Path
) -> None:
    topic = broker.new_topic()
    fill(producer, topic, 5)
    frame = read_stream(topic, shareGroup=topic)
    seen: list[int] = []

    def fail(batch: DataFrame, batch_id: int) -> None:
        seen.extend(row.offset for row in batch.select("offset").collect())
        raise RuntimeError("the work failed")

    writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "failed"))
    query = writer.foreachBatch(fail).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="the work failed"):
        query.awaitTermination(int(patient(END_S)))
    assert seen
    followed = Followed()
    followed.run(frame, str(tmp_path / "other"))
    assert sorted(followed.offsets(topic)) == [0, 1, 2, 3, 4]
    assert numbers(broker, topic) == (0, 0)
