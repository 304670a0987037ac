"""Tests batch reads with real Spark."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Producer
from penstock.testing import Broker
from spark.conftest import Read

T0 = 1_700_000_000_000


@pytest.fixture(scope="module")
def ten(broker: Broker, producer: Producer[Any, Any]) -> str:
    """Two partitions with ten records each, one second apart."""
    topic = broker.new_topic(partitions=2)
    for number in range(20):
        producer.send(
            topic,
            key=b"k%d" % number,
            value=b"v%d" % number,
            partition=number % 2,
            timestamp_ms=T0 + number // 2 * 1000,
        )
    producer.flush()
    return topic


def test_columns_are_those_of_sparks_kafka_source(ten: str, read: Read) -> None:
    """Names, types and values, so that a job has to change only the format's name."""
    frame = read(ten)
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    rows = frame.selectExpr(
        "string(key)",
        "string(value)",
        "topic",
        "partition",
        "offset",
        "unix_millis(timestamp)",
        "timestampType",
    ).collect()
    assert sorted(map(tuple, rows)) == sorted(
        (f"k{n}", f"v{n}", ten, n % 2, n // 2, T0 + n // 2 * 1000, 0) for n in range(20)
    )


def test_null_keys_values_and_headers(
    broker: Broker, producer: Producer[Any, Any], read: Read
) -> None:
    """Null and empty values stay distinct. Headers keep their order and duplicates."""
    topic = broker.new_topic()
    producer.send(topic, value=None, key=None)
    producer.send(topic, value=b"", key=b"", headers=[("a", b"1"), ("a", None), ("b", b"")])
    producer.flush()
    rows = read(topic, includeHeaders="true").orderBy("offset").collect()
    assert [(row.key, row.value) for row in rows] == [(None, None), (b"", b"")]
    assert not rows[0].headers
    assert [(header.key, header.value) for header in rows[1].headers] == [
        ("a", b"1"),
        ("a", None),
        ("b", b""),
    ]


def test_spark_runs_one_task_per_piece(ten: str, read: Read) -> None:
    """And counts every record once."""
    frame = read(ten, minPartitions="6")
    assert frame.rdd.getNumPartitions() == 6
    assert frame.count() == 20


def test_a_query_with_a_limit_stops_reading_early(ten: str, read: Read) -> None:
    """A reader that is closed early is not an error, and the worker serves the next one."""
    assert len(read(ten).limit(3).collect()) == 3
    assert len(read(ten).take(1)) == 1
    assert read(ten).count() == 20


def test_an_empty_topic_is_an_empty_frame(broker: Broker, read: Read) -> None:
    assert read(broker.new_topic(partitions=3)).collect() == []


def test_client_options_reach_the_client(broker: Broker, ten: str, read: Read) -> None:
    """Options with `kafka.` are passed on with their types. With tiny fetches,
    everything is still read."""
    options = {
        "kafka.fetch.max.bytes": "100",
        "kafka.max.partition.fetch.bytes": "1000",
        "kafka.check.crcs": "true",
        "kafka.client.id": "spark-job",
        "kafka.isolation.level": "read_committed",
    }
    assert read(ten, **options).count() == 20
