"""Reads one span of one partition on an executor, in the columns that Spark expects.

Records are decoded from the wire into Arrow batches and stay Arrow; no object is created per
record. Spark compares the columns with the planned ones, including the names inside nested types.
So each column is cast to exactly the planned type, which copies nothing for most columns.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.client.errors import OutsideLog, TopicNotFound
from penstock.spark.bad_records import BadRecords
from penstock.spark.clients import worker_consumer
from penstock.spark.formats import decoder
from penstock.spark.log_view import DataLoss
from penstock.spark.offsets import Span
from penstock.spark.options import SourceOptions
from penstock.spark.schema import CORRUPT_COLUMN

log = logging.getLogger(__name__)
_TIME_MAX_MS: Final = ((1 << 63) - 1) // 1000


def read(options: SourceOptions, schema: StructType, span: Span) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a span, in the form of the source's schema."""
    return _read(options, to_arrow_schema(schema, timezone="UTC"), span)


def _read(options: SourceOptions, schema: pa.Schema, span: Span) -> Iterator[pa.RecordBatch]:
    consumer = worker_consumer(options)
    headers = options.include_headers or options.bad_records == "deadletter"
    at, end = span.start, span.end
    with closing(Shaper(options, schema, span)) as shaper:
        while at < end:
            batches = consumer.read_batches(
                span.topic,
                {span.partition: at},
                {span.partition: end},
                partitions=[span.partition],
                headers=headers,
            )
            try:
                for batch in batches:
                    if len(batch):
                        at = batch.column("offset")[-1].as_py() + 1
                        yield shaper.shape(batch)
                # Compaction may have removed the last records of the span.
                at = end
            except (OutsideLog, TopicNotFound) as error:
                fails = options.fail_on_data_loss and not span.lenient
                at, end = _what_is_left(error, at, end, fails=fails)


def _what_is_left(
    error: OutsideLog | TopicNotFound, at: int, end: int, *, fails: bool
) -> tuple[int, int]:
    """Returns the rest of the span to read after records were deleted since it was planned."""
    if fails:
        raise DataLoss(
            f"{error}. To continue with the records that are left, set failOnDataLoss to false"
        ) from None
    log.warning("%s; continuing without them", error)
    if isinstance(error, TopicNotFound) or error.log_start < 0 or error.log_end < 0:
        return end, end
    left = max(at, error.log_start), min(end, error.log_end)
    if left == (at, end):
        # The log does hold the whole span, after all. Spark retries the task a few times.
        raise error
    return left


class Shaper:
    """Turns fetched records into the rows of a source."""

    def __init__(
        self,
        options: SourceOptions,
        schema: pa.Schema,
        span: Span,
        bad: BadRecords | None = None,
    ) -> None:
        formats = options.formats
        self._schema = schema
        self._span = span
        self._key = decoder(
            formats.key, formats.key_schema, schema.field("key").type, formats.key_schema_id
        )
        self._value = decoder(
            formats.value, formats.value_schema, schema.field("value").type, formats.value_schema_id
        )
        self._bad = BadRecords(options, span) if bad is None else bad

    def close(self) -> None:
        self._bad.close()

    def shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns: dict[str, Any] = {name: batch.column(name) for name in batch.schema.names}
        columns["timestampType"] = columns["timestamp_type"]
        columns["topic"] = pa.repeat(pa.scalar(self._span.topic, pa.string()), len(batch))
        key, value = self._key(columns["key"]), self._value(columns["value"])
        columns["key"], columns["value"] = key.column, value.column
        if CORRUPT_COLUMN in self._schema.names:
            columns[CORRUPT_COLUMN] = pa.nulls(len(batch))
        if key.bad or value.bad:
            columns |= self._bad.handle(batch, key, value)
        arrays = [_as(columns[field.name], field.type) for field in self._schema]
        shaped = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return self._bad.without(shaped, key, value) if key.bad or value.bad else shaped


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        if not pa.types.is_timestamp(kind):
            raise
        return _clamped(column).cast(kind)


def _clamped(times: pa.Array) -> pa.Array:
    """Limits milliseconds to the range of microsecond timestamps: a producer that sent nanoseconds
    by mistake must not make its topic unreadable."""
    least, most = (pa.scalar(sign * _TIME_MAX_MS, pa.int64()) for sign in (-1, 1))
    within = pc.max_element_wise(pc.min_element_wise(times.cast(pa.int64()), most), least)
    # These two functions ignore nulls and would replace them by a bound.
    return pc.if_else(times.is_valid(), within, None).cast(times.type)
