"""Handles records that could not be decoded, as the option `badRecords` says.

They are never dropped silently. `fail`, the default, ends the job. With `column` they stay in their
rows, with the raw bytes and the reason in a separate column. With `deadletter` they are sent to the
dead-letter topic, with headers that say where they came from. They are in that topic before their
batch is returned to Spark; a batch that is read again writes them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.client.errors import SerializationFailed
from penstock.client.model import Record
from penstock.client.options import ClientOptions
from penstock.client.processing.dead_letter_headers import dead_letter_headers
from penstock.records.batch import NO_TIMESTAMP
from penstock.spark.clients import open_producer
from penstock.spark.formats import Decoded
from penstock.spark.offsets import Span
from penstock.spark.options import SinkOptions, SourceOptions
from penstock.spark.schema import CORRUPT_COLUMN

if TYPE_CHECKING:
    from penstock.client.blocking.producer import Producer

_DELIVERY_S = 120.0


class BadRecords:
    def __init__(
        self, options: SourceOptions, span: Span, producer: Producer[Any, Any] | None = None
    ) -> None:
        self._options = options
        self._span = span
        self._producer = producer
        """Sends the dead letters. Opened when it is first needed, if it was not given."""

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()

    def handle(self, batch: pa.RecordBatch, key: Decoded, value: Decoded) -> dict[str, pa.Array]:
        """Handles the bad rows of a batch. Returns the columns to replace or add."""
        if self._options.bad_records == "fail":
            self._fail(batch, key, value)
        if self._options.bad_records == "deadletter":
            self._bury(batch, key, value)
            return {}
        return {CORRUPT_COLUMN: _described(batch, key, value)}

    def without(self, shaped: pa.RecordBatch, key: Decoded, value: Decoded) -> pa.RecordBatch:
        """Returns the rows without those that were sent to the dead-letter topic."""
        if self._options.bad_records != "deadletter":
            return shaped
        gone = {*key.bad, *value.bad}
        return shaped.take(
            pa.array([row for row in range(len(shaped)) if row not in gone], pa.int64())
        )

    def _fail(self, batch: pa.RecordBatch, key: Decoded, value: Decoded) -> None:
        field, bad = ("value", value.bad) if value.bad else ("key", key.bad)
        row = min(bad)
        offset = batch.column("offset")[row].as_py()
        raise SerializationFailed(
            f"the {field} of {self._span.topic_partition} at offset {offset} cannot be decoded: "
            f"{bad[row]}. Set badRecords to column to see such records, or to deadletter, with a "
            "deadLetterTopic, to send them to another topic"
        )

    def _bury(self, batch: pa.RecordBatch, key: Decoded, value: Decoded) -> None:
        options = self._options
        if self._producer is None:
            shared = ClientOptions.names()
            client = {name: text for name, text in options.client.items() if name in shared}
            self._producer = open_producer(
                SinkOptions(options.bootstrap_servers, options.dead_letter_topic, client=client)
            )
        deliveries = []
        for row in sorted({*key.bad, *value.bad}):
            reasons = [f"{name}: {bad[row]}" for name, bad in _sides(key, value) if row in bad]
            error = SerializationFailed("; ".join(reasons))
            record = self._record(batch, row)
            deliveries.append(
                self._producer.send(
                    options.dead_letter_topic,
                    record.value,
                    key=record.key,
                    headers=dead_letter_headers(record, error, attempts=1),
                )
            )
        self._producer.flush(_DELIVERY_S)
        for delivery in deliveries:
            delivery.result(_DELIVERY_S)

    def _record(self, batch: pa.RecordBatch, row: int) -> Record[bytes | None, bytes | None]:
        cells = {name: batch.column(name)[row] for name in batch.schema.names}
        headers = cells["headers"].as_py() or []
        return Record(
            self._span.topic,
            self._span.partition,
            cells["offset"].as_py(),
            NO_TIMESTAMP if (time := cells["timestamp"].value) is None else time,
            cells["key"].as_py(),
            cells["value"].as_py(),
            tuple((header["key"], header["value"]) for header in headers),
        )


def _sides(key: Decoded, value: Decoded) -> tuple[tuple[str, Mapping[int, str]], ...]:
    return ("key", key.bad), ("value", value.bad)


def _described(batch: pa.RecordBatch, key: Decoded, value: Decoded) -> pa.Array:
    described: list[dict[str, Any] | None] = [None] * len(batch)
    for name, bad in _sides(key, value):
        for row, why in bad.items():
            data = batch.column(name)[row].as_py()
            # The column holds one field. If key and value are both bad, the key goes into the text.
            before = described[row]
            also = f"; and its key {before['data']!r}: {before['error']}" if before else ""
            described[row] = {"field": name, "data": data, "error": why + also}
    kind = pa.struct([("field", pa.string()), ("data", pa.binary()), ("error", pa.string())])
    return pa.array(described, kind)
