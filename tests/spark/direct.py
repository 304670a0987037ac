"""Calls the source as Spark does, without Spark: the same calls in the same order, in one process.

Most guarantees of the source depend only on these calls and a real broker. Tests that need nothing
else of Spark use this module and take milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.spark.source import PenstockDataSource
from penstock.spark.stream_position import OWN
from penstock.spark.stream_reader import StreamReader
from penstock.testing.slowness import patient

COLUMNS = StructType(
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
HEADERS = StructField(
    "headers",
    ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())]), True
    ),
)
TopicPartition = tuple[str, int]


class Deadline:
    """A time limit for loops that wait: each check is a short pause, and the last one
    reports what never happened."""

    def __init__(self, seconds: float) -> None:
        self._left = patient(seconds)
        self._pause = Event()

    def check(self, awaited: str, pause_s: float = 0.05) -> None:
        if self._left <= 0:
            raise AssertionError(f"{awaited} did not come in time")
        started = monotonic()
        self._pause.wait(pause_s)
        # Only the time spent waiting here counts, not the caller's own work, so slow machines get
        # more time.
        self._left -= monotonic() - started


def source(bootstrap: str, topic: str | None = None, **options: str) -> PenstockDataSource:
    given = {"kafka.bootstrap.servers": bootstrap, **options}
    if topic is not None:
        given["subscribe"] = topic
    made = PenstockDataSource(given)
    made.schema()
    return made


def batch_reader(bootstrap: str, topic: str | None = None, **options: str) -> DataSourceReader:
    columns = COLUMNS
    if options.get("includeHeaders") == "true":
        columns = StructType([*COLUMNS.fields, HEADERS])
    return source(bootstrap, topic, **options).reader(columns)


def rows_of(reader: Any, partitions: Sequence[InputPartition]) -> list[dict[str, Any]]:
    return [
        row
        for partition in partitions
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def read_all(bootstrap: str, topic: str | None = None, **options: str) -> list[dict[str, Any]]:
    reader = batch_reader(bootstrap, topic, **options)
    return rows_of(reader, reader.partitions())


def read_up_to(position: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the offsets of a position, without what Penstock keeps beside them."""
    return {topic: offsets for topic, offsets in (position or {}).items() if topic != OWN}


def offsets_of(rows: Sequence[Mapping[str, Any]]) -> dict[TopicPartition, list[int]]:
    """Returns the offsets that were read from each partition, in order."""
    found: dict[TopicPartition, list[int]] = {}
    for row in rows:
        found.setdefault((row["topic"], row["partition"]), []).append(row["offset"])
    return dict(sorted(found.items()))


@dataclass
class Batch:
    start: dict[str, Any]
    end: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def offsets(self) -> dict[TopicPartition, list[int]]:
        return offsets_of(self.rows)


class Stream:
    """A streaming query as its source sees it. The checkpoint is `position`."""

    def __init__(self, bootstrap: str, topic: str | None = None, **options: str) -> None:
        self._source = source(bootstrap, topic, **options)
        self.reader = self._started()
        self.position: dict[str, Any] | None = None

    def _started(self) -> StreamReader:
        reader = self._source.streamReader(COLUMNS)
        assert isinstance(reader, StreamReader)
        return reader

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()

    def restart(self) -> None:
        self.reader.stop()
        self.reader = self._started()

    def plan(self, limit: ReadLimit | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if self.position is None:
            self.position = self.reader.initialOffset()
        limit = limit or self.reader.getDefaultReadLimit()
        return self.position, self.reader.latestOffset(self.position, limit)

    def trigger(self, limit: ReadLimit | None = None) -> Batch:
        """Runs one batch. It is empty if there is nothing new; Spark would not even plan it
        then."""
        start, end = self.plan(limit)
        if start == end:
            return Batch(start, end, [])
        rows = rows_of(self.reader, self.reader.partitions(start, end))
        self.position = end
        return Batch(start, end, rows)

    def until_idle(self, batches_max: int = 200) -> list[Batch]:
        """Runs batches until one is empty, as AvailableNow does."""
        batches: list[Batch] = []
        for _ in range(batches_max):
            batch = self.trigger()
            if batch.start == batch.end:
                return batches
            batches.append(batch)
        raise AssertionError(f"the stream does not come to an end: {batches[-3:]}")
