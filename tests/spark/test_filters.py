"""Tests filter pushdown: fewer records are read, and none that is needed is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from penstock import Producer
from penstock.client.admin.offsets import FoundOffset
from penstock.spark.filters import Wanted, narrow
from penstock.spark.log_view import LogView
from penstock.spark.offsets import Span, spans
from penstock.spark.options import parse_source
from penstock.testing import Broker
from penstock.topic_partition import TopicPartition
from spark.conftest import Read

T0 = 1_700_000_000_000
Log = Mapping[TopicPartition, Sequence[int]]
"""The timestamps of each partition's records, in offset order."""


class Times:
    """Answers offset lookups for a log as a broker does."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def list_offsets(
        self, times: Mapping[TopicPartition, Any]
    ) -> dict[TopicPartition, FoundOffset | None]:
        return {
            topic_partition: self._first(self._log[topic_partition], when)
            for topic_partition, when in times.items()
        }

    def _first(self, stamps: Sequence[int], when: Any) -> FoundOffset | None:
        if when == "latest":
            return FoundOffset(len(stamps), -1)
        for offset, stamp in enumerate(stamps):
            if stamp >= when:
                return FoundOffset(offset, stamp)
        return None


def view_of(log: Log) -> LogView:
    options = {"kafka.bootstrap.servers": "b:1", "subscribe": "a"}
    return LogView(Times(log), parse_source(options, streaming=False))  # type: ignore[arg-type]


def planned(log: Log, filters: Iterable[Filter]) -> list[Span]:
    whole = spans(
        dict.fromkeys(log, 0),
        {topic_partition: len(stamps) for topic_partition, stamps in log.items()},
    )
    return narrow(whole, Wanted().narrowed(filters), view_of(log))


def when(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)


numbers = st.integers(-2, 12)
topic_partitions = st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 2))
logs = st.dictionaries(
    topic_partitions, st.lists(st.integers(0, 10), max_size=10), min_size=1, max_size=5
)
comparisons = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
conditions = st.one_of(
    st.builds(EqualTo, st.just(("topic",)), st.sampled_from("abc")),
    st.builds(In, st.just(("TOPIC",)), st.lists(st.sampled_from("abc")).map(tuple)),
    st.builds(EqualTo, st.just(("partition",)), numbers),
    st.builds(In, st.just(("partition",)), st.lists(numbers).map(tuple)),
    *[st.builds(kind, st.just(("offset",)), numbers) for kind in comparisons],
    *[st.builds(kind, st.just(("timestamp",)), numbers.map(when)) for kind in comparisons],
    st.builds(IsNotNull, st.just(("offset",))),
    st.builds(Not, st.builds(EqualTo, st.just(("offset",)), numbers)),
    st.builds(EqualTo, st.just(("value", "offset")), numbers),
)


def meets(condition: Filter, row: Mapping[str, Any]) -> bool:
    """Evaluates a filter as Spark would. A column inside the value is
    unknown, so every row may match."""
    if isinstance(condition, Not):
        return not meets(condition.child, row)
    if isinstance(condition, IsNotNull) or len(condition.attribute) > 1:  # type: ignore[attr-defined]
        return True
    mine, other = row[condition.attribute[0].lower()], condition.value  # type: ignore[attr-defined]
    match condition:
        case EqualTo():
            return bool(mine == other)
        case In():
            return mine in other
        case GreaterThan():
            return bool(mine > other)
        case GreaterThanOrEqual():
            return bool(mine >= other)
        case LessThan():
            return bool(mine < other)
        case LessThanOrEqual():
            return bool(mine <= other)
    raise AssertionError(condition)


@settings(deadline=None, max_examples=300)
@given(logs, st.lists(conditions, max_size=4))
def test_no_matching_record_is_left_out(log: Log, filters: list[Filter]) -> None:
    """Every record that matches all filters is in a planned span, even if
    timestamps are out of order."""
    read = planned(log, filters)
    assert all(span.size > 0 for span in read)
    for topic_partition, stamps in log.items():
        for offset, stamp in enumerate(stamps):
            row = {
                "topic": topic_partition.topic,
                "partition": topic_partition.partition,
                "offset": offset,
                "timestamp": when(stamp),
            }
            if all(meets(condition, row) for condition in filters):
                assert any(
                    span.topic_partition == topic_partition and span.start <= offset < span.end
                    for span in read
                )


def test_each_filter_reduces_what_is_read() -> None:
    log = {TopicPartition(topic, index): range(100) for topic in "ab" for index in range(2)}
    assert planned(
        log,
        [
            EqualTo(("topic",), "a"),
            In(("partition",), (1, 7)),
            GreaterThanOrEqual(("timestamp",), when(40)),
            LessThan(("offset",), 42),
        ],
    ) == [Span("a", 1, 40, 42)]


# -- on Spark --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hundred(broker: Broker, producer: Producer[Any, Any]) -> str:
    """Two partitions of fifty records, one second apart."""
    topic = broker.new_topic(partitions=2)
    for number in range(100):
        producer.send(topic, b"x", partition=number % 2, timestamp_ms=T0 + number // 2 * 1000)
    producer.flush()
    return topic


@pytest.fixture
def pushing(spark: SparkSession) -> Iterable[SparkSession]:
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    yield spark
    spark.conf.unset(name)
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def rows_read(frame: DataFrame) -> int:
    """Returns how many rows the scan returned to Spark, by Spark's own metrics."""
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    return int(leaves.head().metrics().apply("numOutputRows").value())


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_spark_pushes_filters_down(
    pushing: SparkSession, hundred: str, read: Read, zone: str
) -> None:
    """Only matching ranges are read, in any session time zone, and the result equals
    the one without pushdown."""
    pushing.conf.set("spark.sql.session.timeZone", zone)
    where = (
        "partition = 1 and offset < 45 and offset >= 5 "
        f"and timestamp >= timestamp_millis({T0 + 40_000})"
    )
    for pushed, count in (("once", 5), ("false", 100)):
        frame = read(hundred, filterPushdown=pushed).where(where).select("partition", "offset")
        assert sorted(map(tuple, frame.collect())) == [(1, offset) for offset in range(40, 45)]
        assert rows_read(frame) == count


def test_the_required_spark_setting_is_named(hundred: str, read: Read) -> None:
    """The option alone is not enough: the error names the Spark setting to turn on."""
    with pytest.raises(Exception, match=r"spark\.sql\.python\.filterPushdown\.enabled"):
        read(hundred, filterPushdown="once").count()
