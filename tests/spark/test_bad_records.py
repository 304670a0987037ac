"""Tests records that cannot be decoded: they fail the job, fill a column, or are dead letters."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from penstock import Consumer, Producer
from penstock.testing import Broker
from penstock.testing.slowness import patient
from spark.conftest import Read

pytestmark = pytest.mark.timeout(300)
END_S = 200
SCHEMA = {"valueFormat": "json", "valueSchema": "id BIGINT, name STRING"}
GOOD = [b'{"id":%d,"name":"a"}' % number for number in range(5)]


@pytest.fixture
def topic(broker: Broker, producer: Producer[Any, Any]) -> str:
    """Five good records, a tombstone, and two bad ones at offsets 3 and 6."""
    name = broker.new_topic()
    bad = [b"not json", b'{"id":"text"}']
    for value in (*GOOD[:3], bad[0], *GOOD[3:], bad[1], None):
        producer.send(name, value, key=b"k", headers=[("h", b"1")], timestamp_ms=1_700_000_000_000)
    producer.flush()
    return name


def test_by_default_the_job_fails_and_names_the_record(topic: str, read: Read) -> None:
    """The first line has the position, the reason, and the alternatives."""
    with pytest.raises(PySparkException) as told:
        read(topic, **SCHEMA).collect()
    message = str(told.value)
    assert f"the value of {topic}-0 at offset 3 cannot be decoded: not JSON" in message
    assert "badRecords" in message


def test_records_that_no_query_selects_count_too(topic: str, read: Read) -> None:
    """A count returns no decoded column, but must not hide bad records."""
    with pytest.raises(PySparkException, match="at offset 3 cannot be decoded"):
        read(topic, **SCHEMA).count()


def test_bad_records_in_a_column(topic: str, read: Read) -> None:
    """Rows keep their places: the value is null, and the column has the raw bytes and the
    reason."""
    rows = read(topic, badRecords="column", **SCHEMA).orderBy("offset").collect()
    assert [row.value and row.value.id for row in rows] == [0, 1, 2, None, 3, 4, None, None]
    corrupt = {row.offset: row._corrupt for row in rows if row._corrupt is not None}
    assert sorted(corrupt) == [3, 6]
    assert (corrupt[3].field, bytes(corrupt[3].data)) == ("value", b"not json")
    assert 'id is "text", not BIGINT' in corrupt[6].error
    assert bytes(rows[3].key) == b"k"


def test_a_bad_key_and_a_bad_value_in_one_column(
    broker: Broker, producer: Producer[Any, Any], read: Read
) -> None:
    """Neither is lost."""
    topic = broker.new_topic()
    producer.send(topic, b"no", key=b"\xff\xfe").result(patient(120))
    (row,) = read(topic, badRecords="column", keyFormat="string", **SCHEMA).collect()
    assert row.key is None
    assert row.value is None
    assert bytes(row._corrupt.data) == b"no"
    assert "b'\\xff\\xfe'" in row._corrupt.error


def test_without_bad_records_the_column_is_null(
    broker: Broker, producer: Producer[Any, Any], read: Read
) -> None:
    topic = broker.new_topic()
    producer.send(topic, GOOD[0]).result(patient(120))
    (row,) = read(topic, badRecords="column", **SCHEMA).collect()
    assert row._corrupt is None


def test_bad_records_in_a_dead_letter_topic(broker: Broker, topic: str, read: Read) -> None:
    """Dead letters hold the original record, its origin and the reason."""
    letters = broker.new_topic()
    rows = read(topic, badRecords="deadletter", deadLetterTopic=letters, **SCHEMA)
    found = sorted((row.offset, row.value and row.value.id) for row in rows.collect())
    assert found == [(0, 0), (1, 1), (2, 2), (4, 3), (5, 4), (7, None)]
    with Consumer(broker.bootstrap) as consumer:
        buried = consumer.read_table(letters).sort_by("offset").to_pylist()
    assert [row["value"] for row in buried] == [b"not json", b'{"id":"text"}']
    assert [row["key"] for row in buried] == [b"k", b"k"]
    headers = {header["key"]: header["value"] for header in buried[1]["headers"]}
    assert headers["h"] == b"1"
    assert headers["penstock.original.topic"].decode() == topic
    assert headers["penstock.original.offset"] == b"6"
    assert headers["penstock.original.timestamp"] == b"1700000000000"
    assert b'id is "text", not BIGINT' in headers["penstock.error"]


def test_a_stream_sends_bad_records_to_a_dead_letter_topic(
    broker: Broker, topic: str, read_stream: Read, checkpoint: str
) -> None:
    """The stream continues past bad records, and after a restart from its checkpoint
    does not send them again."""
    letters, seen = broker.new_topic(), []
    for _ in range(2):
        stream = read_stream(
            topic,
            startingOffsets="earliest",
            badRecords="deadletter",
            deadLetterTopic=letters,
            **SCHEMA,
        )
        query = (
            stream.writeStream.foreachBatch(lambda rows, _: seen.extend(rows.collect()))
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(int(patient(END_S)))
        assert query.exception() is None
    assert sorted(row.offset for row in seen) == [0, 1, 2, 4, 5, 7]
    with Consumer(broker.bootstrap) as consumer:
        assert len(consumer.read_table(letters)) == 2


def test_invalid_utf8_is_a_bad_record(
    broker: Broker, producer: Producer[Any, Any], read: Read
) -> None:
    """A string column accepts only UTF-8. An empty text and null are different."""
    topic = broker.new_topic()
    for value in (b"fine", b"\xff", None, b"", "ü".encode()):
        producer.send(topic, value)
    producer.flush()
    rows = read(topic, valueFormat="string", badRecords="column").orderBy("offset").collect()
    assert [row.value for row in rows] == ["fine", None, None, "", "ü"]
    assert [row._corrupt is None for row in rows] == [True, False, True, True, True]


def test_many_bad_records_in_a_column(
    broker: Broker, producer: Producer[Any, Any], read: Read
) -> None:
    """A tenth of 20,000 records: all rows are returned, and each bad one is marked."""
    topic = broker.new_topic(partitions=2)
    for number in range(20_000):
        value = b'{"id":"x"}' if number % 10 == 0 else b'{"id":%d}' % number
        producer.send(topic, value, partition=number % 2)
    producer.flush()
    counts = read(topic, badRecords="column", **SCHEMA).selectExpr(
        "count(*) AS rows", "count(_corrupt) AS bad", "count(value.id) AS good"
    )
    assert tuple(counts.collect()[0]) == (20_000, 2_000, 18_000)
