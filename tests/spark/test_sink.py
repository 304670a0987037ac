"""Tests writing DataFrames to topics of a real broker with real Spark: batches and streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock import Admin, Consumer, Producer
from penstock.client.errors import ClientError
from penstock.spark.options import parse_sink
from penstock.spark.writers import BatchWriter, Written
from penstock.testing import Broker
from penstock.testing.slowness import patient
from spark.conftest import Read

pytestmark = pytest.mark.timeout(300)
END_S = 200
Save = Callable[..., None]


@pytest.fixture
def save(broker: Broker) -> Save:
    """`save(frame, "topic", valueFormat="json")` appends the frame to the topic."""

    def write(frame: DataFrame, to: str | None, mode: str = "append", **options: Any) -> None:
        given = {"kafka.bootstrap.servers": broker.bootstrap, **options}
        if to is not None:
            given["topic"] = to
        frame.write.format("penstock").mode(mode).options(**given).save()

    return write


def records(broker: Broker, topic: str) -> list[dict[str, Any]]:
    with Consumer(broker.bootstrap) as consumer:
        rows: list[dict[str, Any]] = consumer.read_table(topic).to_pylist()
    return rows


def values(broker: Broker, topic: str) -> list[bytes]:
    return sorted(row["value"] for row in records(broker, topic))


def first_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    return str(error.value).partition("\n")[0]


# -- batches ---------------------------------------------------------------------------------------


def test_every_column_of_a_record_is_written(
    spark: SparkSession, broker: Broker, save: Save
) -> None:
    """Key, value, headers, partition and timestamp are stored as given, nulls as nulls."""
    topic = broker.new_topic(partitions=3)
    at = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    frame = spark.createDataFrame(
        [
            (bytearray(b"k"), "v", [("h", bytearray(b"1")), ("n", None)], 2, at),
            (None, None, None, 1, at),
        ],
        "key BINARY, value STRING, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, "
        "partition INT, timestamp TIMESTAMP",
    )
    save(frame, topic)
    first, second = sorted(records(broker, topic), key=lambda row: -row["partition"])
    assert (first["partition"], first["key"], first["value"]) == (2, b"k", b"v")
    assert [(header["key"], header["value"]) for header in first["headers"]] == [
        ("h", b"1"),
        ("n", None),
    ]
    assert first["timestamp"].replace(tzinfo=UTC) == at
    assert (second["partition"], second["key"], second["value"]) == (1, None, None)
    assert not second["headers"]


def test_the_topic_column_chooses_the_topic(
    spark: SparkSession, broker: Broker, save: Save
) -> None:
    """The option takes precedence over the column."""
    one, other, fixed = broker.new_topic(), broker.new_topic(), broker.new_topic()
    rows = [(one if row % 3 else other, str(row)) for row in range(30)]
    frame = spark.createDataFrame(rows, "topic STRING, value STRING")
    save(frame, None)
    assert len(values(broker, one)) == 20
    assert values(broker, other) == sorted(str(row).encode() for row in range(0, 30, 3))
    save(frame, fixed)
    assert len(values(broker, fixed)) == 30


def test_keys_are_routed_as_by_a_plain_producer(
    spark: SparkSession, broker: Broker, producer: Producer[Any, Any], save: Save
) -> None:
    """So equal keys are in one partition."""
    topic = broker.new_topic(partitions=4)
    save(spark.range(40).selectExpr("CAST(id % 10 AS STRING) AS key", "'s' AS value"), topic)
    for key in range(10):
        producer.send(topic, b"p", key=b"%d" % key)
    producer.flush()
    homes: dict[bytes, set[int]] = {}
    for row in records(broker, topic):
        homes.setdefault(row["key"], set()).add(row["partition"])
    assert len(homes) == 10
    assert all(len(partitions) == 1 for partitions in homes.values())


def test_a_large_batch_passes_through_a_small_buffer(
    spark: SparkSession, broker: Broker, save: Save
) -> None:
    """Many times the producer's buffer memory is sent, and nothing is missing."""
    topic = broker.new_topic(partitions=2)
    frame = spark.range(0, 60_000, 1, 2).selectExpr("lpad(CAST(id AS STRING), 500, '0') AS value")
    save(frame, topic, **{"kafka.buffer.memory": "1048576", "kafka.compression.type": "zstd"})
    assert [int(value) for value in values(broker, topic)] == list(range(60_000))


def test_client_options_reach_the_producer(spark: SparkSession, broker: Broker, save: Save) -> None:
    """The requested compression is used."""
    plain, packed = broker.new_topic(), broker.new_topic()
    frame = spark.range(5_000).selectExpr("repeat('a', 200) AS value")
    save(frame, plain)
    save(frame, packed, **{"kafka.compression.type": "gzip"})
    assert values(broker, plain) == values(broker, packed)
    with Admin(broker.bootstrap) as admin:
        sizes = {
            topic_partition.topic: replica.size_bytes
            for directory in admin.describe_log_dirs()
            for topic_partition, replica in directory.replicas.items()
        }
    assert sizes[packed] * 10 < sizes[plain]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("'v' AS value", {}, "the topic to write to is missing: set the option topic"),
        ("1 AS value", {"topic": "t"}, "the column value is int: cast it to string or binary"),
        ("'v' AS value, 1 AS a", {"topic": "t"}, "columns a are not parts of a record"),
        ("'k' AS key", {"topic": "t"}, "there is no value column"),
        ("'v' AS value", {"topic": "t", "topik": "t"}, "there is no option topik"),
        ("'v' AS value", {"topic": "t", "kafka.linger": "1"}, "kafka.linger"),
        ("'v' AS value", {"topic": "t", "kafka.acks": "some"}, "kafka.acks"),
        ("1 AS a", {"topic": "t", "valueFormat": "avro", "valueSchema": "{"}, "Avro schema"),
    ],
)
def test_mistakes_are_reported_before_anything_runs(
    spark: SparkSession, save: Save, columns: str, options: dict[str, str], message: str
) -> None:
    """On the driver, without starting a task."""
    frame = spark.sql(f"SELECT {columns}")
    with pytest.raises(PySparkException) as told:
        save(frame, None, **options)
    assert message in str(told.value)
    assert "Job aborted" not in str(told.value)


def test_a_topic_cannot_be_overwritten(spark: SparkSession, save: Save) -> None:
    with pytest.raises(PySparkException, match="a topic cannot be overwritten"):
        save(spark.range(1).selectExpr("'v' AS value"), "t", mode="overwrite")


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("'v' AS value, CAST(NULL AS STRING) AS topic", {}, "the topic column has nulls"),
        ("'v' AS value, 99 AS partition", {"topic": "{}"}, "99"),
        ("repeat('x', 3000000) AS value", {"topic": "{}"}, "max_request_size"),
        ("CAST('NaN' AS DOUBLE) AS a", {"topic": "{}", "valueFormat": "json"}, "NaN"),
        (
            "'v' AS value",
            {
                "topic": "never-made",
                "kafka.allow.auto.create.topics": "false",
                "kafka.max.block.ms": "500",
            },
            "never-made",
        ),
    ],
)
def test_a_row_that_cannot_be_sent_fails_the_job_with_the_reason(
    spark: SparkSession,
    broker: Broker,
    save: Save,
    columns: str,
    options: dict[str, str],
    message: str,
) -> None:
    """Rows that the broker or the client refuses are never dropped silently."""
    topic = broker.new_topic()
    given = {name: value.format(topic) for name, value in options.items()}
    with pytest.raises(PySparkException) as told:
        save(spark.sql(f"SELECT {columns}"), None, **given)
    assert message in str(told.value)


# -- what a task does ------------------------------------------------------------------------------


def writer(broker: Broker, spark: SparkSession, columns: str, **options: str) -> BatchWriter:
    schema = spark.sql(f"SELECT {columns}").schema
    given = {"kafka.bootstrap.servers": broker.bootstrap, **options}
    return BatchWriter(parse_sink(given), schema, overwrite=False)


def test_a_task_reports_the_offsets_it_wrote(spark: SparkSession, broker: Broker) -> None:
    """The commit message covers every record's offset, with as few ranges as possible."""
    topic = broker.new_topic(partitions=2)
    batches = [
        pa.RecordBatch.from_pydict(
            {"value": [b"a"] * 1000, "partition": pa.array([n % 2] * 1000, pa.int32())}
        )
        for n in range(6)
    ]
    task = writer(broker, spark, "'v' AS value, 1 AS partition", topic=topic)
    written = task.write(iter(batches))
    assert written == Written({topic: 6000}, {(topic, 0): [(0, 2999)], (topic, 1): [(0, 2999)]})
    again = task.write(iter(batches[:1]))
    assert again.ranges == {(topic, 0): [(3000, 3999)]}


def test_a_repeated_task_writes_its_rows_again(spark: SparkSession, broker: Broker) -> None:
    """At least once: rows that a failed attempt had sent may be stored twice."""
    topic = broker.new_topic()
    task = writer(broker, spark, "'v' AS value", topic=topic)
    batch = pa.RecordBatch.from_pydict({"value": [b"%d" % row for row in range(100)]})

    def breaks() -> Any:
        yield batch
        raise OSError("the executor lost its disk")

    with pytest.raises(OSError, match="lost its disk"):
        task.write(breaks())
    task.write(iter([batch]))
    assert {int(value) for value in values(broker, topic)} == set(range(100))
    assert len(values(broker, topic)) >= 100


def test_a_task_ends_early_when_nothing_can_be_written(spark: SparkSession, broker: Broker) -> None:
    """The input is endless; the first refusal ends the task."""
    topic = broker.new_topic(configs={"max.message.bytes": "1000"})
    task = writer(broker, spark, "'v' AS value", topic=topic)

    def endless() -> Any:
        while True:
            yield pa.RecordBatch.from_pydict({"value": [b"x" * 5000] * 10})

    with pytest.raises(ClientError):
        task.write(endless())


# -- streams ---------------------------------------------------------------------------------------


def test_a_stream_writes_to_a_topic(
    spark: SparkSession,
    broker: Broker,
    producer: Producer[Any, Any],
    read_stream: Read,
    checkpoint: str,
) -> None:
    """From topic to topic with a checkpoint: each run continues where the last one ended."""
    source, target = broker.new_topic(partitions=2), broker.new_topic(partitions=2)

    def run() -> None:
        stream = read_stream(source, startingOffsets="earliest").selectExpr("key", "value")
        query = (
            stream.writeStream.format("penstock")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("topic", target)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(int(patient(END_S)))
        assert query.exception() is None

    for first in (0, 50):
        for number in range(first, first + 50):
            producer.send(source, b"%d" % number, key=b"k%d" % number)
        producer.flush()
        run()
    assert sorted(map(int, values(broker, target))) == list(range(100))


def test_a_stream_in_complete_mode_is_refused(
    spark: SparkSession, broker: Broker, read_stream: Read, checkpoint: str
) -> None:
    """Complete mode would overwrite the result repeatedly, which is impossible with a topic."""
    counts = read_stream(broker.new_topic()).groupBy("partition").count()
    frame = counts.selectExpr("CAST(count AS STRING) AS value")
    start = (
        frame.writeStream.format("penstock")
        .outputMode("complete")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("topic", "t")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
    )
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        start.start().awaitTermination(int(patient(END_S)))


# -- round trips -----------------------------------------------------------------------------------

RICH = """
    id BIGINT, small TINYINT, name STRING, flag BOOLEAN, number DOUBLE, price DECIMAL(20, 4),
    raw BINARY, at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, tags ARRAY<STRING>,
    counts MAP<STRING, INT>, inner STRUCT<x: FLOAT, y: ARRAY<STRUCT<z: SMALLINT>>>
"""
EXPRESSIONS = [
    "id",
    "CAST(id % 100 AS TINYINT) AS small",
    "IF(id % 7 = 0, NULL, concat('n\"\\\\ü\\n', id)) AS name",
    "id % 2 = 0 AS flag",
    "id / 3 AS number",
    "CAST(id * 1234567890.1234 AS DECIMAL(20, 4)) AS price",
    "unhex(concat('ff00', lpad(hex(id), 6, '0'))) AS raw",
    "timestamp_micros(id * 123456789) AS at",
    "CAST(timestamp_micros(id * 987654321) AS TIMESTAMP_NTZ) AS local",
    "date_add(DATE'1969-12-01', CAST(id AS INT)) AS day",
    "IF(id % 5 = 0, NULL, array('a', NULL, CAST(id AS STRING))) AS tags",
    "map('a', CAST(id AS INT), 'b', NULL) AS counts",
    """IF(id % 3 = 0, NULL, named_struct('x', CAST(id AS FLOAT), 'y',
       array(named_struct('z', CAST(id AS SMALLINT)), NULL))) AS inner""",
]


def test_rows_survive_a_round_trip_as_json(
    spark: SparkSession, broker: Broker, save: Save, read: Read
) -> None:
    """For every type, the DataFrame that is read equals the one that was written."""
    topic = broker.new_topic(partitions=2)
    frame = spark.range(200).selectExpr(*EXPRESSIONS)
    save(frame, topic, valueFormat="json")
    back = read(topic, valueFormat="json", valueSchema=RICH).select("value.*")
    assert back.dtypes == frame.dtypes
    assert back.orderBy("id").collect() == frame.orderBy("id").collect()


def test_rows_survive_a_round_trip_as_avro(
    spark: SparkSession, broker: Broker, save: Save, read: Read
) -> None:
    """For key and value, the value with a schema registry's prefix."""
    pytest.importorskip("fastavro", reason="the avro format needs fastavro: pip install fastavro")
    topic = broker.new_topic(partitions=2)

    def schema(**fields: Any) -> str:
        return json.dumps(
            {
                "type": "record",
                "name": "row",
                "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
            }
        )

    key_schema = schema(id="long")
    value_schema = schema(
        id="long",
        name=["null", "string"],
        flag="boolean",
        price={"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4},
        at={"type": "long", "logicalType": "timestamp-micros"},
        day={"type": "int", "logicalType": "date"},
        counts={"type": "map", "values": ["null", "int"]},
    )
    frame = spark.range(100).selectExpr(*EXPRESSIONS)
    frame = frame.select("id", "name", "flag", "price", "at", "day", "counts")
    formats = {"keyFormat": "avro", "keySchema": key_schema}
    formats |= {"valueFormat": "avro", "valueSchema": value_schema, "valueSchemaId": "7"}
    save(frame.selectExpr("named_struct('id', id) AS key", "*"), topic, **formats)
    back = read(topic, **formats)
    assert back.select("value.*").dtypes == frame.dtypes
    assert back.select("value.*").orderBy("id").collect() == frame.orderBy("id").collect()
    assert back.where("key.id <> value.id").count() == 0
    assert all(value.startswith(b"\0\0\0\0\7") for value in values(broker, topic))


def test_other_readers_can_parse_the_json(
    spark: SparkSession, broker: Broker, save: Save, tmp_path: Path
) -> None:
    """Here Spark's own and Python's."""
    topic = broker.new_topic()
    frame = spark.range(50).selectExpr(*EXPRESSIONS)
    save(frame, topic, valueFormat="json")
    texts = [value.decode() for value in values(broker, topic)]
    assert sorted(json.loads(text)["id"] for text in texts) == list(range(50))
    (tmp_path / "rows.json").write_text("\n".join(texts))
    others = spark.read.schema(frame.schema).json(str(tmp_path / "rows.json"))
    kept = [name for name in frame.columns if name != "raw"]
    assert others.select(kept).orderBy("id").collect() == frame.select(kept).orderBy("id").collect()
