"""Writes DataFrames to topics: each task sends its rows as Arrow and waits for acknowledgements.

Delivery is at least once: Spark runs a failed task again, which sends its rows again, and a batch
of a stream that was not recorded as done is written again. One attempt writes no duplicates,
because the producer is idempotent. A task returns what it wrote and where, so that a commit can use
it; the commit of this writer does nothing.

A task holds no more data than fits into the producer's buffer: sending waits for space there. It
looks at acknowledgements as they arrive, so that a task that cannot write fails early, with the
reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.client.errors import OptionError
from penstock.spark.client_options import check_client
from penstock.spark.clients import open_producer
from penstock.spark.encoding import Encoder, check_columns
from penstock.spark.options import SinkOptions
from penstock.spark.telling import told_plainly

if TYPE_CHECKING:
    from penstock.client.blocking.producer import Producer
    from penstock.client.producing.tables import TableDelivery, TableMetadata

_DELIVERY_S: Final = 300.0


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote: topic -> number of records, (topic, partition) -> first and last
    offsets."""

    records: dict[str, int] = field(default_factory=dict)
    ranges: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, metadata: TableMetadata) -> None:
        topic = metadata.topic
        self.records[topic] = self.records.get(topic, 0) + metadata.records
        for partition, ranges in metadata.ranges.items():
            known = self.ranges.setdefault((topic, partition), [])
            for span in ranges:
                if known and known[-1][1] + 1 == span.first:
                    known[-1] = known[-1][0], span.last
                else:
                    known.append((span.first, span.last))


def check_sink(options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
    """Raises `OptionError` on the driver, before any task runs, if the sink cannot work."""
    if overwrite:
        raise OptionError(
            "a topic cannot be overwritten, only appended to: "
            'use mode("append") for a batch, or outputMode("append") or "update" for a stream'
        )
    check_client(options)
    check_columns(options, schema)
    Encoder(options)  # Reports an invalid schema here, and not in every task.


def send_rows(
    options: SinkOptions, batches: Iterable[pa.RecordBatch], producer: Producer[Any, Any]
) -> Written:
    """Sends the rows, and returns when all of them are acknowledged."""
    written = Written()
    encoder = Encoder(options)
    under_way: deque[TableDelivery] = deque()
    for batch in batches:
        for topic, rows in _by_topic(encoder.encode(batch), options.topic):
            under_way.append(producer.send_table(topic, rows))
        while under_way and under_way[0].done():
            written.add(under_way.popleft().outcome())
    producer.flush(_DELIVERY_S)
    for delivery in under_way:
        written.add(delivery.result(_DELIVERY_S))
    return written


class _Writer:
    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        check_sink(options, schema, overwrite=overwrite)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        with told_plainly(), open_producer(self._options) as producer:
            return send_rows(self._options, iterator, producer)


class BatchWriter(_Writer, DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if options.delivery != "at_least_once":
            raise OptionError(
                f"delivery={options.delivery} is only for streams, where the batch number shows "
                "what was already written: leave it out"
            )
        super().__init__(options, schema, overwrite=overwrite)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    pass


def _by_topic(rows: pa.RecordBatch, fixed: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields the rows by topic: the topic of the option for all rows, or else that of each row."""
    if "topic" not in rows.schema.names:
        assert fixed is not None  # check_columns made sure of it.
        yield fixed, rows
        return
    topics = rows.column("topic")
    plain = rows.drop_columns(["topic"])
    if fixed is not None:
        yield fixed, plain
        return
    if topics.null_count:
        raise OptionError(
            "the topic column has nulls: give every row a topic, or set the option topic"
        )
    unique: Any = pc.unique(topics)
    for topic in unique.to_pylist():
        yield topic, plain if len(unique) == 1 else plain.filter(pc.equal(topics, topic))
