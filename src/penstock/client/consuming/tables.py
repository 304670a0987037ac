"""Buffers into Arrow tables: no Python object for any record.

The batches that a table is made of are looked up first (`peek`), decoded all at once, and only then
taken: so a batch that is damaged or too large to unpack leaves everything as it was. Rows come
partition by partition. Each topic is an Arrow batch of its own within the table, for the topic's
name is the same in all of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from penstock.client.consuming.buffer import Span
from penstock.client.consuming.decoding import damaged
from penstock.client.consuming.reading import Reading
from penstock.client.consuming.subscription import PartitionState, Subscription
from penstock.client.options import ConsumerOptions
from penstock.records.arrow_output import HEADERS_TYPE, TIMESTAMP_TYPE
from penstock.records.batch import CorruptBatch
from penstock.records.columnar import Chunk, decode
from penstock.records.compression import DecompressedTooLarge

TABLE_BYTES: Final = 16 << 20
"""What a poll takes unless told otherwise: enough for speed, little enough for the caches."""
_UNBOUNDED: Final = 1 << 62

TOPIC_TYPE: Final = pa.dictionary(pa.int32(), pa.string())
SCHEMA: Final = pa.schema(
    [
        ("topic", TOPIC_TYPE),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP_TYPE),
        ("timestamp_type", pa.int8()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
    ]
)
_PLAIN_SCHEMA: Final = SCHEMA.remove(SCHEMA.get_field_index("headers"))


class Part(NamedTuple):
    """What one partition gives to a table."""

    state: PartitionState
    spans: Sequence[Span]
    from_offset: int
    to_offset: int


def schema_of(*, headers: bool) -> pa.Schema:
    return SCHEMA if headers else _PLAIN_SCHEMA


def table_of(batches: Sequence[pa.RecordBatch], *, headers: bool) -> pa.Table:
    return pa.Table.from_batches(batches, schema_of(headers=headers))


def decode_parts(
    topic: str, parts: Sequence[Part], *, headers: bool, check_crcs: bool
) -> pa.RecordBatch:
    """All rows of these partitions of one topic, in the columns of `SCHEMA`."""
    chunks = [
        Chunk(span.data, part.state.place.partition, part.from_offset, part.to_offset, span.aborted)
        for part in parts
        for span in part.spans
    ]
    rows = decode(chunks, headers=headers, check_crc=check_crcs).records
    count = rows.num_rows
    indices = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(bytes(4 * count))])
    names = pa.DictionaryArray.from_arrays(indices, pa.array([topic], pa.string()))
    schema = schema_of(headers=headers)
    columns = [names, *(rows.column(name) for name in schema.names[1:])]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class TablePoll:
    """Takes what lies in the buffers of a subscription, for one poll."""

    def __init__(
        self,
        subscription: Subscription,
        reading: Reading,
        options: ConsumerOptions,
        *,
        headers: bool,
    ) -> None:
        self._subscription = subscription
        self._reading = reading
        self._check_crcs = options.check_crcs
        self._headers = headers

    def take(self, rows_max: int | None, bytes_max: int | None) -> pa.Table:
        """At most so many rows, and bytes if more than one batch is taken; maybe none at all."""
        self._reading.drop_run()
        rows_left = _UNBOUNDED if rows_max is None else rows_max
        bytes_left = TABLE_BYTES if bytes_max is None else bytes_max
        batches: list[pa.RecordBatch] = []
        for state in self._reading.ready():
            while rows_left > 0 and bytes_left > 0:
                taken = self._decode(state, state.buffer.peek(rows_left, bytes_left))
                if taken is None:
                    break
                batch, spans = taken
                next_offset = spans[-1].next_offset
                if batch.num_rows > rows_left:
                    batch = batch.slice(0, rows_left)
                    next_offset = batch.column("offset")[-1].as_py() + 1
                self._reading.hand_out(state, next_offset, spans[-1].leader_epoch)
                bytes_left -= sum(span.size for span in spans)
                rows_left -= batch.num_rows
                if batch.num_rows:
                    batches.append(batch)
        return table_of(batches, headers=self._headers)

    def _decode(
        self, state: PartitionState, spans: Sequence[Span]
    ) -> tuple[pa.RecordBatch, Sequence[Span]] | None:
        """A batch and what it was made of; None when there is nothing, or it is damaged."""
        if not spans:
            return None
        part = Part(state, spans, state.buffer.floor, _UNBOUNDED)
        try:
            batch = decode_parts(
                state.place.topic, [part], headers=self._headers, check_crcs=self._check_crcs
            )
        except DecompressedTooLarge:
            # Compression worked too well: one batch at a time.
            one = state.buffer.peek(1, 1)
            if one[0].size == sum(span.size for span in spans):
                raise
            return self._decode(state, one)
        except CorruptBatch as error:
            self._subscription.refetch(state)
            state.fail(damaged(state.place, state.position, error))
            return None
        return batch, spans
