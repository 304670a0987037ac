"""Spark's own Kafka connector and our data source, with the same tests on the same broker.

Every test runs once with each format and compares it with what was sent to the broker or stored
there. The connector's versions are in `spark_jars`: Maven Central has none for the Spark version
that runs here, so it is not the connector that users of Spark 4.3 will have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from compat.conftest import TopicFactory
from penstock import Consumer, Producer

pytest.importorskip("pyspark", reason="the Spark tests need pyspark: pip install 'penstock[spark]'")

from pyspark.sql import DataFrame, SparkSession

from compat.spark_session import spark_with_connector, without_sparks_own_warnings

END_S = 200
pytestmark = pytest.mark.timeout(300)  # Starting a JVM takes minutes on a busy machine.
START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with spark_with_connector(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(autouse=True)
def _sparks_own_warnings() -> Iterator[None]:
    with without_sparks_own_warnings():
        yield


@pytest.fixture(params=["kafka", "penstock"])
def kind(request: pytest.FixtureRequest) -> str:
    """Each format in turn."""
    name: str = request.param
    return name


Row = tuple[Any, ...]


def sent(broker: str, topic: str, numbers: range, partitions: int = 2) -> list[Row]:
    """Sends records of every kind, and returns the rows that they should become."""
    rows: list[Row] = []
    offsets = dict.fromkeys(range(partitions), numbers.start // partitions)
    with Producer(broker) as producer:
        for number in numbers:
            partition, time = number % partitions, START_MS + number * 1000
            key = None if number % 5 == 0 else b"k%d" % number
            value = None if number % 7 == 0 else b"v%d" % number
            headers = [("a", b"1"), ("a", b"2"), ("n", None)] if number % 3 == 0 else []
            producer.send(
                topic, value, key=key, headers=headers, partition=partition, timestamp_ms=time
            )
            at = datetime.fromtimestamp(time / 1000, UTC).replace(tzinfo=None)
            shown = headers or None
            rows.append((key, value, topic, partition, offsets[partition], at, 0, shown))
            offsets[partition] += 1
    return rows


def plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def rows_of(frame: DataFrame) -> list[Row]:
    rows = []
    for row in frame.collect():
        headers = row.headers and [(header.key, plain(header.value)) for header in row.headers]
        rows.append((*(plain(cell) for cell in row[:7]), headers or None))
    return in_order(rows)


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row[2], row[3], row[4]))


def loaded(spark: SparkSession, kind: str, broker: str, **options: Any) -> DataFrame:
    given = {"kafka.bootstrap.servers": broker, "includeHeaders": "true", **options}
    return spark.read.format(kind).options(**given).load()


# -- the source, batch -----------------------------------------------------------------------------


def test_the_schema_is_that_of_the_kafka_source(
    spark: SparkSession, kind: str, broker: str, topic: TopicFactory
) -> None:
    """The schema is exactly that of Spark's Kafka source."""
    frame = loaded(spark, kind, broker, subscribe=topic())
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, range(100)),
        ({"startingOffsets": '{"TOPIC":{"0":10,"1":-2}}'}, [*range(20, 100, 2), *range(1, 100, 2)]),
        ({"endingOffsets": '{"TOPIC":{"0":10,"1":-1}}'}, [*range(0, 20, 2), *range(1, 100, 2)]),
        ({"startingTimestamp": str(START_MS + 40_000)}, range(40, 100)),
        ({"endingTimestamp": str(START_MS + 40_000)}, range(40)),
        (
            {"startingOffsetsByTimestamp": f'{{"TOPIC":{{"0":{START_MS + 90_000},"1":0}}}}'},
            [*range(90, 100, 2), *range(1, 100, 2)],
        ),
        ({"minPartitions": "7"}, range(100)),
        ({"assign": '{"TOPIC":[1]}'}, range(1, 100, 2)),
        ({"subscribePattern": "TOPIC|no-such-.*"}, range(100)),
    ],
)
def test_a_batch_query_returns_the_selected_records(
    spark: SparkSession,
    kind: str,
    broker: str,
    topic: TopicFactory,
    options: dict[str, str],
    wanted: range | list[int],
) -> None:
    """Keys, values, tombstones, headers, offsets and timestamps, with every selecting option."""
    name = topic(2)
    expected = sent(broker, name, range(100))
    given = {option: text.replace("TOPIC", name) for option, text in options.items()}
    if not given.keys() & {"assign", "subscribePattern"}:
        given["subscribe"] = name
    rows = rows_of(loaded(spark, kind, broker, **given))
    assert rows == in_order([expected[number] for number in wanted])


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_each_format_reads_what_the_other_one_compressed(
    spark: SparkSession, kind: str, broker: str, topic: TopicFactory, codec: str
) -> None:
    """What the sink of one format compresses, the source of the other reads."""
    name, other = topic(2), {"kafka": "penstock", "penstock": "kafka"}[kind]
    frame = spark.range(2_000).selectExpr("CAST(id AS STRING) AS key", "repeat('a', 200) AS value")
    save(frame, kind, broker, topic=name, **{"kafka.compression.type": codec})
    read = loaded(spark, other, broker, subscribe=name)
    keys = read.selectExpr("CAST(CAST(key AS STRING) AS INT) AS id").orderBy("id").collect()
    assert [row.id for row in keys] == list(range(2_000))
    assert read.where("CAST(value AS STRING) <> repeat('a', 200)").count() == 0


# -- the source, streaming -------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["", "30"])
def test_a_stream_continues_from_its_checkpoint(
    spark: SparkSession, kind: str, broker: str, topic: TopicFactory, tmp_path: Path, limit: str
) -> None:
    """AvailableNow reads everything and ends; the next run continues from the checkpoint."""
    name, seen, sizes = topic(2), [], []
    limits = {"maxOffsetsPerTrigger": limit} if limit else {}

    def take(frame: DataFrame, _: int) -> None:
        rows = rows_of(frame)
        seen.extend(rows)
        sizes.append(len(rows))

    expected = []
    for first in (0, 100):
        expected += sent(broker, name, range(first, first + 100))
        options = {"kafka.bootstrap.servers": broker, "subscribe": name, "includeHeaders": "true"}
        stream = spark.readStream.format(kind).options(**options, **limits)
        query = (
            stream.option("startingOffsets", "earliest")
            .load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(END_S)
        assert query.exception() is None
    assert in_order(seen) == in_order(expected)
    assert max(sizes) <= (int(limit) if limit else 100)


# -- the sink --------------------------------------------------------------------------------------


def save(frame: DataFrame, kind: str, broker: str, **options: str) -> None:
    given = {"kafka.bootstrap.servers": broker, **options}
    frame.write.format(kind).mode("append").options(**given).save()


def lying_in(broker: str, topic: str) -> list[Row]:
    """Returns partition, key, value and headers of every record, sorted."""
    with Consumer(broker) as consumer:
        rows = consumer.read_table(topic).to_pylist()
    return sorted(
        (
            row["partition"],
            row["key"] or b"",
            row["value"] or b"",
            tuple((header["key"], header["value"]) for header in row["headers"] or ()),
        )
        for row in rows
    )


def test_both_sinks_write_the_same_records(
    spark: SparkSession, broker: str, topic: TopicFactory, kind: str
) -> None:
    """Keys go to the partitions given by Kafka's hash; headers and nulls arrive."""
    name, reference = topic(4), topic(4)
    frame = spark.range(500).selectExpr(
        "IF(id % 2 = 0, CAST(id AS STRING), concat('key ', id)) AS key",
        "IF(id % 10 = 0, NULL, CAST(CAST(id AS STRING) AS BINARY)) AS value",
        "IF(id % 3 = 0, array(named_struct('key', 'h', 'value', X'00ff')), NULL) AS headers",
    )
    save(frame, kind, broker, topic=name, includeHeaders="true")
    save(frame, "kafka", broker, topic=reference, includeHeaders="true")
    written = lying_in(broker, name)
    assert len(written) == 500
    assert written == lying_in(broker, reference)


def test_rows_may_name_their_topic_and_partition(
    spark: SparkSession, broker: str, topic: TopicFactory, kind: str
) -> None:
    """The columns topic and partition determine where a row goes."""
    one, other = topic(3), topic(3)
    frame = spark.range(30).selectExpr(
        f"IF(id < 20, '{one}', '{other}') AS topic",
        "CAST(id % 3 AS INT) AS partition",
        "CAST(id AS STRING) AS value",
    )
    save(frame, kind, broker)
    for name, numbers in ((one, range(20)), (other, range(20, 30))):
        assert lying_in(broker, name) == sorted((n % 3, b"", b"%d" % n, ()) for n in numbers)


def test_a_stream_copies_a_topic_exactly_once(
    spark: SparkSession, broker: str, topic: TopicFactory, kind: str, tmp_path: Path
) -> None:
    """Source and sink in one query, run twice with one checkpoint: everything arrives once."""
    source, target = topic(2), topic(2)
    expected = []
    for first in (0, 50):
        expected += sent(broker, source, range(first, first + 50))
        query = (
            spark.readStream.format(kind)
            .option("kafka.bootstrap.servers", broker)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
            .select("key", "value", "partition")
            .writeStream.format(kind)
            .option("kafka.bootstrap.servers", broker)
            .option("topic", target)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(END_S)
        assert query.exception() is None
    assert lying_in(broker, target) == sorted(
        (row[3], row[0] or b"", row[1] or b"", ()) for row in expected
    )


def test_both_formats_store_offsets_in_the_same_json(
    spark: SparkSession, broker: str, topic: TopicFactory, kind: str, tmp_path: Path
) -> None:
    """A checkpoint stores offsets in the same JSON, so they can be transferred manually. Ours has
    one more entry, under a name that no topic can have."""
    name = topic(2)
    sent(broker, name, range(10))
    query = (
        spark.readStream.format(kind)
        .options(**{"kafka.bootstrap.servers": broker, "subscribe": name})
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(END_S)
    (offsets,) = (tmp_path / "offsets" / "0").read_text().splitlines()[2:]
    found = json.loads(offsets)
    assert (found.pop("(penstock)", None) is not None) == (kind == "penstock")
    assert found == {name: {"0": 5, "1": 5}}
