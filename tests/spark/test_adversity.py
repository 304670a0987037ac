"""The source under conditions nobody wishes for: what an executor may meet, and a reader may do.

Most of it needs no Spark: what an executor does is `read_span`, called as Spark calls it.
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
from penstock.client.model import TopicPartition
from penstock.spark import clients
from penstock.spark.log_view import DataLoss
from penstock.spark.offsets import Span, advance, from_spark, spans, split, to_spark
from penstock.spark.options import SourceOptions, parse_sink, parse_source
from penstock.spark.reading import SpanPartition, read_span
from penstock.spark.source import PenstockDataSource
from penstock.spark.stream_reader import StreamReader
from penstock.testing import Broker
from spark.conftest import Read

FAR = (1 << 63) - 10
"""An offset near the end of what one can be."""


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
    """What a worker process keeps would outlive a test of this process."""
    yield
    for consumer in clients._consumers.values():
        consumer.close()
    clients._consumers.clear()


# -- what goes over the wire to executors ----------------------------------------------------------


def travelled(sent: Any) -> Any:
    """As Spark does it."""
    return pickle.loads(cloudpickle.dumps(sent))  # type: ignore[no-untyped-call]


def test_readers_and_writers_travel(broker: Broker) -> None:
    """What Spark pickles holds no client, even after the driver has used its own."""
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


def test_a_worker_keeps_one_consumer(broker: Broker, producer: Producer[Any, Any]) -> None:
    """Tasks with the same options share the connection of the process they run in."""
    topic = broker.new_topic()
    fill(producer, topic, 3)
    options = options_for(broker, topic)
    first = clients.worker_consumer(options)
    for _ in range(5):
        assert offsets_of(read_rows(options, Span(topic, 0, 0, 3))) == [0, 1, 2]
    assert clients.worker_consumer(options_for(broker, topic, startingOffsets="latest")) is first


def test_a_worker_does_not_gather_consumers(broker: Broker, producer: Producer[Any, Any]) -> None:
    """A worker that lives for days meets many jobs: threads and connections stay few."""
    topic = broker.new_topic()
    fill(producer, topic, 1)
    before = threading.active_count()
    for number in range(20):
        options = options_for(broker, topic, **{"kafka.client.id": f"job-{number}"})
        assert offsets_of(read_rows(options, Span(topic, 0, 0, 1))) == [0]
    assert threading.active_count() - before <= 8


def test_a_reader_that_is_left_early(broker: Broker, producer: Producer[Any, Any]) -> None:
    """A query with a limit drops its reader: what it had begun is ended, the next one works."""
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
        next(read_rows(options, span))  # and this one is left to the garbage collector
    assert offsets_of(read_rows(options, span)) == list(range(30_000))
    assert threading.active_count() - threads <= 2


def test_two_readers_at_once(broker: Broker, producer: Producer[Any, Any]) -> None:
    """They share a consumer and not their places."""
    topic = broker.new_topic()
    fill(producer, topic, 20_000, size=1_000)
    options = options_for(broker, topic)
    one = read_rows(options, Span(topic, 0, 0, 20_000))
    two = read_rows(options, Span(topic, 0, 5_000, 15_000))
    found_one, found_two = offsets_of(iter([next(one)])), offsets_of(iter([next(two)]))
    assert found_two + offsets_of(two) == list(range(5_000, 15_000))
    assert found_one + offsets_of(one) == list(range(20_000))


def test_the_broker_restarts_between_two_tasks() -> None:
    """The kept consumer finds it again."""
    with Broker() as own:
        topic = own.new_topic()
        with Producer(own.bootstrap) as producer:
            fill(producer, topic, 10)
        options = options_for(own, topic)
        assert offsets_of(read_rows(options, Span(topic, 0, 0, 10))) == list(range(10))
        own.restart()
        assert offsets_of(read_rows(options, Span(topic, 0, 0, 10))) == list(range(10))


def test_the_broker_restarts_amid_a_task() -> None:
    """A task is not lost with a connection."""
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


def test_a_topic_made_anew_between_two_tasks(
    broker: Broker, admin: Admin, producer: Producer[Any, Any]
) -> None:
    """The kept consumer reads the new topic, not what it remembers of the old one."""
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


# -- records that went between planning and reading ------------------------------------------------


def test_an_end_that_is_no_longer_there(broker: Broker, producer: Producer[Any, Any]) -> None:
    """A log that ends before its span is a loss; where that may be, the rest is read, once."""
    topic = broker.new_topic()
    fill(producer, topic, 5)
    span = Span(topic, 0, 2, 100)
    with pytest.raises(DataLoss, match="failOnDataLoss"):
        offsets_of(read_rows(options_for(broker, topic), span))
    lenient = options_for(broker, topic, failOnDataLoss="false")
    assert offsets_of(read_rows(lenient, span)) == [2, 3, 4]


def test_a_start_behind_the_end(broker: Broker, producer: Producer[Any, Any]) -> None:
    """The topic was made anew: nothing of the span is left, and reading ends."""
    topic = broker.new_topic()
    fill(producer, topic, 5)
    span = Span(topic, 0, 50, 100)
    with pytest.raises(DataLoss, match="failOnDataLoss"):
        offsets_of(read_rows(options_for(broker, topic), span))
    lenient = options_for(broker, topic, failOnDataLoss="false")
    assert offsets_of(read_rows(lenient, span)) == []


def test_a_start_that_retention_took(
    broker: Broker, admin: Admin, producer: Producer[Any, Any]
) -> None:
    """What is left of the span is read, once."""
    topic = broker.new_topic()
    fill(producer, topic, 10)
    admin.delete_records({TopicPartition(topic, 0): 6})
    lenient = options_for(broker, topic, failOnDataLoss="false")
    assert offsets_of(read_rows(lenient, Span(topic, 0, 2, 9))) == [6, 7, 8]
    assert offsets_of(read_rows(lenient, Span(topic, 0, 2, 5))) == []


def test_a_topic_that_is_gone(broker: Broker, admin: Admin, producer: Producer[Any, Any]) -> None:
    """Deleted between planning and reading: a loss like any other."""
    topic = broker.new_topic()
    fill(producer, topic, 5)
    admin.delete_topics([topic])
    with pytest.raises(DataLoss, match="failOnDataLoss"):
        offsets_of(read_rows(options_for(broker, topic), Span(topic, 0, 0, 5)))
    lenient = options_for(broker, topic, failOnDataLoss="false")
    assert offsets_of(read_rows(lenient, Span(topic, 0, 0, 5))) == []


# -- odd values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/Los_Angeles"])
def test_times_mean_the_same_in_every_zone(
    spark: SparkSession,
    broker: Broker,
    producer: Producer[Any, Any],
    read: Read,
    zone: str,
) -> None:
    """A record's time is an instant, and a filter that is pushed down cuts at that instant."""
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
def test_one_frame_with_two_filters(
    spark: SparkSession, broker: Broker, producer: Producer[Any, Any], read: Read
) -> None:
    """With pushdown, a DataFrame would have to forget one query's filter before the next; since it
    does not, the option is called `once`. Should this pass one day it may be called `true`, and
    docs/SPARK.md has a warning to take back."""
    topic = broker.new_topic()
    fill(producer, topic, 10)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        rows = read(topic, filterPushdown="once")
        assert rows.where("offset >= 5").count() == 5
        assert rows.count() == 10
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_times_that_cannot_be(broker: Broker, producer: Producer[Any, Any]) -> None:
    """A producer that gives nanoseconds for milliseconds does not stop whoever reads."""
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


def test_offsets_near_the_end_of_their_range() -> None:
    """Offsets are 64 bits wide and pass through JSON, splitting and limits unharmed."""
    place = TopicPartition("t", 0)
    start, end = {place: FAR - 1000}, {place: FAR}
    assert from_spark(to_spark(end)) == end
    (whole,) = spans(start, end)
    pieces = split([whole], pieces_min=7)
    assert sum(piece.size for piece in pieces) == 1000
    assert [a.end for a in pieces[:-1]] == [b.start for b in pieces[1:]]
    assert advance(start, end, records_max=10) == {place: FAR - 990}
    assert advance({place: 0}, end, records_max=10) == {place: 10}


@pytest.mark.parametrize("name", ["a.b_c-D.0", "-", "__like_internal", "x" * 249, "null", "value"])
def test_topics_with_odd_names(
    broker: Broker, producer: Producer[Any, Any], read: Read, name: str
) -> None:
    """Whatever a broker takes as a name can be read."""
    broker.new_topic(name=name)
    fill(producer, name, 3)
    rows = read(name).where(f"topic = '{name}'")
    assert [row.topic for row in rows.collect()] == [name] * 3


def test_empty_topics(broker: Broker, read: Read, read_stream: Read, checkpoint: str) -> None:
    """They have columns and no rows, and a stream of them ends when it is to."""
    topic = broker.new_topic(partitions=3)
    rows = read(topic, minPartitions=10)
    assert rows.count() == 0
    assert rows.limit(1).collect() == []
    assert read_span(options_for(broker, topic), rows.schema, InputPartition(None)) is not None
    stream = read_stream(topic, startingOffsets="earliest").writeStream.format("noop")
    query = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    assert query.exception() is None


# -- through Spark --------------------------------------------------------------------------------


def test_limits_and_reuse(
    spark: SparkSession, broker: Broker, producer: Producer[Any, Any], read: Read
) -> None:
    """Queries that take a few rows leave nothing behind that disturbs the next."""
    topic = broker.new_topic(partitions=2)
    for partition in range(2):
        fill(producer, topic, 20_000, size=500, partition=partition)
    for _ in range(3):
        assert len(read(topic).limit(5).collect()) == 5
        assert read(topic).where("offset = 7").count() == 2
    assert read(topic).count() == 40_000


def test_large_var_types(
    spark: SparkSession, broker: Broker, producer: Producer[Any, Any], read: Read
) -> None:
    """A session may have Arrow use 64-bit lengths; reading and writing go on."""
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


def test_a_schema_of_ones_own(spark: SparkSession, broker: Broker) -> None:
    """The columns are the source's: a schema that is given is refused, and it is said why."""
    topic = broker.new_topic()
    reader = spark.read.format("penstock").schema("value STRING")
    reader = reader.options(**{"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic})
    with pytest.raises(PySparkException, match=r"leave \.schema\(\.\.\.\) out"):
        reader.load().collect()


def test_sink_options_are_checked_where_source_ones_are(broker: Broker) -> None:
    """Options that Spark adds to a stream's sink by itself are not taken for mistakes."""
    given = {"kafka.bootstrap.servers": broker.bootstrap, "topic": "t", "queryName": "q"}
    assert parse_sink({**given, "checkpointLocation": "/c", "path": "p"}).topic == "t"
