"""Tests the source under adverse conditions in executors and readers.

Most tests need no Spark: an executor only calls `read_span`, which they call as Spark does.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock import Admin, Consumer, Producer
from penstock.spark import clients
from penstock.spark.log_view import DataLoss
from penstock.spark.offsets import Span, advance, from_spark, spans, split, to_spark
from penstock.spark.options import SourceOptions, parse_sink, parse_source
from penstock.spark.source import PenstockDataSource
from penstock.spark.span_partition import SpanPartition, read_span
from penstock.spark.stream_reader import StreamReader
from penstock.testing import Broker
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition
from spark.conftest import Read
from spark.direct import Deadline

FAR = (1 << 63) - 10
"""An offset near the maximum."""


def options_for(broker: Broker, topic: str, **more: str) -> SourceOptions:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **more}
    return parse_source(given, streaming=False)


SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)


def read_rows(options: SourceOptions, span: Span) -> Iterator[pa.RecordBatch]:
    return read_span(options, SCHEMA, SpanPartition(span))


def offsets_of(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def fill(
    producer: Producer[Any, Any], topic: str, count: int, *, size: int = 10, **more: Any
) -> None:
    for number in range(count):
        producer.send(topic, b"%*d" % (size, number), **more)
    producer.flush()


@pytest.fixture(autouse=True)
def _no_consumers_stay(broker: Broker) -> Iterator[None]:
    """Closes the consumers that a worker process would keep, so that they do not outlive a test."""
    yield
    for consumer in clients._consumers.values():
        consumer.close()
    clients._consumers.clear()


# -- what is sent to executors ---------------------------------------------------------------------


def travelled(sent: Any) -> Any:
    """Pickles and unpickles an object as Spark does."""
    return pickle.loads(cloudpickle.dumps(sent))  # type: ignore[no-untyped-call]


def test_readers_and_writers_can_be_pickled(broker: Broker) -> None:
    """Pickled objects contain no client, even after the driver has used its own."""
    topic = broker.new_topic()
    source = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    sink = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic}
    plain = StructType([StructField("value", BinaryType())])
    stream = PenstockDataSource(source).streamReader(SCHEMA)
    assert isinstance(stream, StreamReader)
    begin = stream.initialOffset()
    for each in (
        stream,
        PenstockDataSource(source).reader(SCHEMA),
        PenstockDataSource(source | {"filterPushdown": "once"}).reader(SCHEMA),
        PenstockDataSource(sink).writer(plain, False),
        PenstockDataSource(sink).streamWriter(plain, False),
        SpanPartition(Span(topic, 0, 0, FAR)),
    ):
        arrived = travelled(each)
        assert type(arrived).__name__ == type(each).__name__
    assert travelled(stream).initialOffset() == begin
    stream.stop()


# -- a worker process that serves many tasks ------------------------------------------------------


def until_threads_are(most: int) -> None:
    """Waits until there are no more threads: one that ends may do so a moment later."""
    deadline = Deadline(30)
    while threading.active_count() > most:
        deadline.check(f"the end of threads, of which there are {threading.active_count()}")


def test_a_worker_keeps_one_consumer(broker: Broker, producer: Producer[Any, Any]) -> None:
    """Tasks with the same options share the connection of their worker process."""
    topic = broker.new_topic()
    fill(producer, topic, 3)
    options = options_for(broker, topic)
    first = clients.worker_consumer(options)
    for _ in range(5):
        assert offsets_of(read_rows(options, Span(topic, 0, 0, 3))) == [0, 1, 2]
    assert clients.worker_consumer(options_for(broker, topic, startingOffsets="latest")) is first


def test_a_worker_does_not_accumulate_consumers(
    broker: Broker, producer: Producer[Any, Any]
) -> None:
    """A worker that runs for days serves many jobs, but has few threads and connections."""
    topic = broker.new_topic()
    fill(producer, topic, 1)
    before = threading.active_count()
    for number in range(20):
        options = options_for(broker, topic, **{"kafka.client.id": f"job-{number}"})
        assert offsets_of(read_rows(options, Span(topic, 0, 0, 1))) == [0]
    until_threads_are(before + 8)


def test_a_reader_may_be_closed_early(broker: Broker, producer: Producer[Any, Any]) -> None:
    """A query with a limit closes its reader. Its work is ended, and the next reader works."""
    topic = broker.new_topic()
    fill(producer, topic, 30_000, size=1_000)
    options = options_for(broker, topic)
    span = Span(topic, 0, 0, 30_000)
    threads = threading.active_count()
    for _ in range(3):
        rows = read_rows(options, span)
        assert len(next(rows)) > 0
        rows.close()  # type: ignore[attr-defined]
        broken = read_rows(options, span)
        next(broken)
        with pytest.raises(BrokenPipeError):
            broken.throw(BrokenPipeError())  # type: ignore[attr-defined]
        next(read_rows(options, span))  # left to the garbage collector
    assert offsets_of(read_rows(options, span)) == list(range(30_000))
    until_threads_are(threads + 2)


def test_two_readers_at_once_share_a_consumer(broker: Broker, producer: Producer[Any, Any]) -> None:
    """But not their positions."""
    topic = broker.new_topic()
    fill(producer, topic, 20_000, size=1_000)
    options = options_for(broker, topic)
    one = read_rows(options, Span(topic, 0, 0, 20_000))
    two = read_rows(options, Span(topic, 0, 5_000, 15_000))
    found_one, found_two = offsets_of(iter([next(one)])), offsets_of(iter([next(two)]))
    assert found_two + offsets_of(two) == list(range(5_000, 15_000))
    assert found_one + offsets_of(one) == list(range(20_000))


def test_the_broker_restarts_between_two_tasks() -> None:
    """The worker's consumer reconnects."""
    with Broker() as own:
        topic = own.new_topic()
        with Producer(own.bootstrap) as producer:
            fill(producer, topic, 10)
        options = options_for(own, topic)
        assert offsets_of(read_rows(options, Span(topic, 0, 0, 10))) == list(range(10))
        own.restart()
        assert offsets_of(read_rows(options, Span(topic, 0, 0, 10))) == list(range(10))


def test_the_broker_restarts_during_a_task() -> None:
    """The task survives the lost connection."""
    with Broker() as own:
        topic = own.new_topic()
        with Producer(own.bootstrap) as producer:
            fill(producer, topic, 60_000, size=1_000)
        options = options_for(own, topic)
        rows = read_rows(options, Span(topic, 0, 0, 60_000))
        found = offsets_of(iter([next(rows)]))
        own.kill()
        own.start()
        assert found + offsets_of(rows) == list(range(60_000))


def test_a_topic_is_recreated_between_two_tasks(
    broker: Broker, admin: Admin, producer: Producer[Any, Any]
) -> None:
    """The worker's consumer reads the new topic, and uses no state of the old one."""
    topic = broker.new_topic()
    fill(producer, topic, 5)
    options = options_for(broker, topic)
    assert offsets_of(read_rows(options, Span(topic, 0, 0, 5))) == list(range(5))
    admin.delete_topics([topic])
    broker.new_topic(name=topic)
    with Producer(broker.bootstrap) as fresh:
        fill(fresh, topic, 2, size=20)
    (batch,) = read_rows(options, Span(topic, 0, 0, 2))
    assert [len(value) for value in batch.column("value").to_pylist()] == [20, 20]


# -- records that were deleted between planning and reading ----------------------------------------


def test_a_log_that_ends_before_its_span_is_data_loss(
    broker: Broker, producer: Producer[Any, Any]
) -> None:
    """With `failOnDataLoss=false`, the remaining records are read once."""
    topic = broker.new_topic()
    fill(producer, topic, 5)
    span = Span(topic, 0, 2, 100)
    with pytest.raises(DataLoss, match="failOnDataLoss"):
        offsets_of(read_rows(options_for(broker, topic), span))
    lenient = options_for(broker, topic, failOnDataLoss="false")
    assert offsets_of(read_rows(lenient, span)) == [2, 3, 4]


def test_a_span_beyond_the_end_of_the_log_is_data_loss(
    broker: Broker, producer: Producer[Any, Any]
) -> None:
    """The topic was created again: nothing of the span exists, and reading ends."""
    topic = broker.new_topic()
    fill(producer, topic, 5)
    span = Span(topic, 0, 50, 100)
    with pytest.raises(DataLoss, match="failOnDataLoss"):
        offsets_of(read_rows(options_for(broker, topic), span))
    lenient = options_for(broker, topic, failOnDataLoss="false")
    assert offsets_of(read_rows(lenient, span)) == []


def test_a_start_deleted_by_retention_is_skipped_if_allowed(
    broker: Broker, admin: Admin, producer: Producer[Any, Any]
) -> None:
    """The rest of the span is read once."""
    topic = broker.new_topic()
    fill(producer, topic, 10)
    admin.delete_records({TopicPartition(topic, 0): 6})
    lenient = options_for(broker, topic, failOnDataLoss="false")
    assert offsets_of(read_rows(lenient, Span(topic, 0, 2, 9))) == [6, 7, 8]
    assert offsets_of(read_rows(lenient, Span(topic, 0, 2, 5))) == []


def test_a_deleted_topic_is_data_loss(
    broker: Broker, admin: Admin, producer: Producer[Any, Any]
) -> None:
    """It was deleted between planning and reading."""
    topic = broker.new_topic()
    fill(producer, topic, 5)
    admin.delete_topics([topic])
    with pytest.raises(DataLoss, match="failOnDataLoss"):
        offsets_of(read_rows(options_for(broker, topic), Span(topic, 0, 0, 5)))
    lenient = options_for(broker, topic, failOnDataLoss="false")
    assert offsets_of(read_rows(lenient, Span(topic, 0, 0, 5))) == []


# -- unusual values --------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/Los_Angeles"])
def test_timestamps_are_the_same_in_every_time_zone(
    spark: SparkSession,
    broker: Broker,
    producer: Producer[Any, Any],
    read: Read,
    zone: str,
) -> None:
    """A record's timestamp is an instant, and a filter that is pushed down cuts at that instant."""
    topic = broker.new_topic()
    noon = datetime(2024, 7, 1, 12, tzinfo=UTC)
    for hour in range(-12, 13):
        moment_ms = int(noon.timestamp() * 1000) + hour * 3_600_000
        producer.send(topic, b"%d" % hour, timestamp_ms=moment_ms)
    producer.flush()
    spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for pushdown in ("false", "once"):
            rows = read(topic, filterPushdown=pushdown)
            noon_on = "timestamp >= TIMESTAMP '2024-07-01 12:00:00Z'"
            assert rows.where(noon_on).count() == 13, (zone, pushdown)
            rows = read(topic, filterPushdown=pushdown)
            first = rows.orderBy("offset").selectExpr("unix_millis(timestamp) AS ms").first()
            assert first is not None
            assert first.ms == (noon.timestamp() - 12 * 3600) * 1000
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.xfail(strict=True, reason="Spark keeps the reader that filters were pushed into")
def test_one_dataframe_with_two_filters(
    spark: SparkSession, broker: Broker, producer: Producer[Any, Any], read: Read
) -> None:
    """With pushdown, a DataFrame would have to forget one query's filter before the next. Spark
    does not do this, so the option is called `once`. If this test passes one day, the option may be
    called `true`, and the warning in docs/SPARK.md can be removed."""
    topic = broker.new_topic()
    fill(producer, topic, 10)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        rows = read(topic, filterPushdown="once")
        assert rows.where("offset >= 5").count() == 5
        assert rows.count() == 10
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_impossible_timestamps_can_be_read(broker: Broker, producer: Producer[Any, Any]) -> None:
    """A producer that sends nanoseconds instead of milliseconds must not stop the readers."""
    topic = broker.new_topic(
        configs={
            "message.timestamp.after.max.ms": str((1 << 63) - 1),
            "message.timestamp.before.max.ms": str((1 << 63) - 1),
        }
    )
    for moment_ms in (0, 1_700_000_000_000, 1_700_000_000_000_000_000):
        producer.send(topic, b"x", timestamp_ms=moment_ms)
    producer.flush()
    (batch,) = read_rows(options_for(broker, topic), Span(topic, 0, 0, 3))
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    assert times[:2] == [0, 1_700_000_000_000_000]
    assert len(times) == 3


def test_offsets_near_the_maximum() -> None:
    """Offsets have 64 bits and survive JSON, splitting and limits."""
    topic_partition = TopicPartition("t", 0)
    start, end = {topic_partition: FAR - 1000}, {topic_partition: FAR}
    assert from_spark(to_spark(end)) == end
    (whole,) = spans(start, end)
    pieces = split([whole], pieces_min=7)
    assert sum(piece.size for piece in pieces) == 1000
    assert [a.end for a in pieces[:-1]] == [b.start for b in pieces[1:]]
    assert advance(start, end, records_max=10) == {topic_partition: FAR - 990}
    assert advance({topic_partition: 0}, end, records_max=10) == {topic_partition: 10}


@pytest.mark.parametrize("name", ["a.b_c-D.0", "-", "__like_internal", "x" * 249, "null", "value"])
def test_topics_with_unusual_names(
    broker: Broker, producer: Producer[Any, Any], read: Read, name: str
) -> None:
    """Every name that a broker accepts can be read."""
    broker.new_topic(name=name)
    fill(producer, name, 3)
    rows = read(name).where(f"topic = '{name}'")
    assert [row.topic for row in rows.collect()] == [name] * 3


def test_empty_topics_can_be_read(
    broker: Broker, read: Read, read_stream: Read, checkpoint: str
) -> None:
    """They have columns and no rows, and a stream of them ends when it should."""
    topic = broker.new_topic(partitions=3)
    rows = read(topic, minPartitions=10)
    assert rows.count() == 0
    assert rows.limit(1).collect() == []
    assert [*read_span(options_for(broker, topic), rows.schema, InputPartition(None))] == []
    stream = read_stream(topic, startingOffsets="earliest").writeStream.format("noop")
    query = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(int(patient(300)))
    assert query.exception() is None


# -- through Spark --------------------------------------------------------------------------------


def test_queries_with_limits_do_not_disturb_later_ones(
    spark: SparkSession, broker: Broker, producer: Producer[Any, Any], read: Read
) -> None:
    """They close their readers early."""
    topic = broker.new_topic(partitions=2)
    for partition in range(2):
        fill(producer, topic, 20_000, size=500, partition=partition)
    for _ in range(3):
        assert len(read(topic).limit(5).collect()) == 5
        assert read(topic).where("offset = 7").count() == 2
    assert read(topic).count() == 40_000


def test_arrow_large_types_can_be_used(
    spark: SparkSession, broker: Broker, producer: Producer[Any, Any], read: Read
) -> None:
    """A session may configure Arrow to use 64-bit lengths; reading and writing still work."""
    topic, to = broker.new_topic(), broker.new_topic()
    fill(producer, topic, 10)
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        rows = read(topic, includeHeaders="true")
        rows.select("key", "value", "headers").write.format("penstock").options(
            **{"kafka.bootstrap.servers": broker.bootstrap, "topic": to}
        ).mode("append").save()
        assert read(to).count() == 10
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    with Consumer(broker.bootstrap) as consumer:
        assert consumer.read_table(to).column("value").to_pylist() == [
            b"%10d" % number for number in range(10)
        ]


def test_a_custom_schema_is_refused(spark: SparkSession, broker: Broker) -> None:
    """The source defines the columns. The error says so."""
    topic = broker.new_topic()
    reader = spark.read.format("penstock").schema("value STRING")
    reader = reader.options(**{"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic})
    with pytest.raises(PySparkException, match=r"leave out \.schema\(\.\.\.\)"):
        reader.load().collect()


def test_options_that_spark_adds_to_a_sink_are_accepted(broker: Broker) -> None:
    """They are not reported as mistakes."""
    given = {"kafka.bootstrap.servers": broker.bootstrap, "topic": "t", "queryName": "q"}
    assert parse_sink({**given, "checkpointLocation": "/c", "path": "p"}).topic == "t"
