"""Records that cannot be decoded: they end the job, show in a column, or go to another topic."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from penstock import Consumer, Producer
from penstock.testing import Broker
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


def test_by_default_the_job_fails_and_says_where(topic: str, read: Read) -> None:
    """The first line has the place, the reason, and what else could be done."""
    with pytest.raises(PySparkException) as told:
        read(topic, **SCHEMA).collect()
    message = str(told.value)
    assert f"the value of {topic}-0 at offset 3 cannot be decoded: not JSON" in message
    assert "badRecords" in message


def test_records_that_nobody_looks_at_count_too(topic: str, read: Read) -> None:
    """A count decodes nothing that it returns, and must not hide what is bad."""
    with pytest.raises(PySparkException, match="at offset 3 cannot be decoded"):
        read(topic, **SCHEMA).count()


def test_in_a_column(topic: str, read: Read) -> None:
    """Rows stay in their places: null, with the raw bytes and the reason beside them."""
    rows = read(topic, badRecords="column", **SCHEMA).orderBy("offset").collect()
    assert [row.value and row.value.id for row in rows] == [0, 1, 2, None, 3, 4, None, None]
    corrupt = {row.offset: row._corrupt for row in rows if row._corrupt is not None}
    assert sorted(corrupt) == [3, 6]
    assert (corrupt[3].field, bytes(corrupt[3].data)) == ("value", b"not json")
    assert 'id is "text", not BIGINT' in corrupt[6].error
    assert bytes(rows[3].key) == b"k"


def test_in_a_column_when_key_and_value_are_bad(
    broker: Broker, producer: Producer[Any, Any], read: Read
) -> None:
    """Nothing of either is lost."""
    topic = broker.new_topic()
    producer.send(topic, b"no", key=b"\xff\xfe").result(120)
    (row,) = read(topic, badRecords="column", keyFormat="string", **SCHEMA).collect()
    assert row.key is None
    assert row.value is None
    assert bytes(row._corrupt.data) == b"no"
    assert "b'\\xff\\xfe'" in row._corrupt.error


def test_without_bad_records_the_column_is_null(
    broker: Broker, producer: Producer[Any, Any], read: Read
) -> None:
    topic = broker.new_topic()
    producer.send(topic, GOOD[0]).result(120)
    (row,) = read(topic, badRecords="column", **SCHEMA).collect()
    assert row._corrupt is None


def test_in_another_topic(broker: Broker, topic: str, read: Read) -> None:
    """Dead letters hold the record as it was, and say whence it came and what was wrong."""
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


def test_in_another_topic_by_a_stream(
    broker: Broker, topic: str, read_stream: Read, checkpoint: str
) -> None:
    """A stream goes on past bad records, and its checkpoint does not bury them twice."""
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
        assert query.awaitTermination(END_S)
        assert query.exception() is None
    assert sorted(row.offset for row in seen) == [0, 1, 2, 4, 5, 7]
    with Consumer(broker.bootstrap) as consumer:
        assert len(consumer.read_table(letters)) == 2


def test_text_that_is_no_text(broker: Broker, producer: Producer[Any, Any], read: Read) -> None:
    """A string column takes UTF-8 alone; the empty text and null are two things."""
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
    """A tenth of many: all rows come, each bad one marked."""
    topic = broker.new_topic(partitions=2)
    for number in range(20_000):
        value = b'{"id":"x"}' if number % 10 == 0 else b'{"id":%d}' % number
        producer.send(topic, value, partition=number % 2)
    producer.flush()
    counts = read(topic, badRecords="column", **SCHEMA).selectExpr(
        "count(*) AS rows", "count(_corrupt) AS bad", "count(value.id) AS good"
    )
    assert tuple(counts.collect()[0]) == (20_000, 2_000, 18_000)
