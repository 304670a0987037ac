"""Makes Arrow tables of buffered data, without a Python object per record.

The batches for a table are looked up first (`peek`), decoded all at once, and only then taken. So a
batch that is damaged or too large to decompress changes nothing. Rows are ordered by partition.
Each topic is a separate Arrow batch within the table, because the topic's name is the same in all
of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from penstock.client.consuming.buffer import Span
from penstock.client.consuming.reading import Reading
from penstock.client.consuming.record_decoder import damaged
from penstock.client.consuming.subscription import PartitionState, Subscription
from penstock.client.options import ConsumerOptions
from penstock.records.arrow_output import HEADERS_TYPE, TIMESTAMP_TYPE
from penstock.records.batch import CorruptBatch
from penstock.records.columnar import Chunk, decode
from penstock.records.compression import DecompressedTooLarge

TABLE_BYTES: Final = 16 << 20
"""The default size of a poll: large enough for speed, small enough for the CPU caches."""
PARTITION_BYTES: Final = 4 << 20
"""The limit on one partition's share of a fetch. If it is lower, the overhead of Python is
noticeable."""
_UNBOUNDED: Final = 1 << 62
_ZEROS: Final = bytes(1 << 20)
"""The indices of a topic's name: all rows refer to the first and only one."""

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
    """One partition's contribution to a table."""

    state: PartitionState
    spans: Sequence[Span]
    from_offset: int
    to_offset: int

    @property
    def size(self) -> int:
        return sum(span.size for span in self.spans)


def schema_of(*, headers: bool) -> pa.Schema:
    return SCHEMA if headers else _PLAIN_SCHEMA


def table_of(batches: Sequence[pa.RecordBatch], *, headers: bool) -> pa.Table:
    return pa.Table.from_batches(batches, schema_of(headers=headers))


def decode_parts(
    topic: str, parts: Sequence[Part], *, headers: bool, check_crcs: bool
) -> pa.RecordBatch:
    """Returns all rows of these partitions of one topic, in the columns of `SCHEMA`."""
    chunks = [
        Chunk(
            span.data,
            part.state.topic_partition.partition,
            part.from_offset,
            part.to_offset,
            span.aborted,
        )
        for part in parts
        for span in part.spans
    ]
    rows = decode(chunks, headers=headers, check_crc=check_crcs).records
    count = rows.num_rows
    zeros = _ZEROS if 4 * count <= len(_ZEROS) else bytes(4 * count)
    indices = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(zeros)])
    names = pa.DictionaryArray.from_arrays(indices, pa.array([topic], pa.string()), safe=False)
    schema = schema_of(headers=headers)
    columns = [names, *(rows.column(name) for name in schema.names[1:])]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class TablePoll:
    """Takes buffered data of a subscription, for one poll."""

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
        """Takes at most `rows_max` rows and, unless it is a single batch, `bytes_max` bytes;
        perhaps none."""
        self._reading.drop_run()
        rows_left = _UNBOUNDED if rows_max is None else rows_max
        bytes_left = TABLE_BYTES if bytes_max is None else bytes_max
        batches: list[pa.RecordBatch] = []
        while rows_left > 0 and bytes_left > 0:
            parts = self._gather(rows_left, bytes_left, first=not batches)
            if not parts:
                break
            for batch, taken in self._decode(parts):
                found = self._hand_out(taken, batch, rows_left)
                rows_left -= found.num_rows
                bytes_left -= sum(part.size for part in taken)
                if found.num_rows:
                    batches.append(found)
        return table_of(batches, headers=self._headers)

    def _gather(self, rows_left: int, bytes_left: int, *, first: bool) -> list[Part]:
        """Returns what fits, of every partition in turn. The very first batch is always included.

        A single batch may have more rows than fit. It is returned alone, and is cut later.
        """
        parts: list[Part] = []
        for state in self._reading.ready():
            if rows_left <= 0 or bytes_left <= 0:
                break
            buffer = state.buffer
            part = Part(state, buffer.peek(rows_left, bytes_left), buffer.floor, _UNBOUNDED)
            rows = sum(span.rows for span in part.spans)
            if part.size > bytes_left and (parts or not first):
                break
            if rows > rows_left and parts:
                break
            parts.append(part)
            rows_left -= rows
            bytes_left -= part.size
        return parts

    def _hand_out(
        self, parts: Sequence[Part], batch: pa.RecordBatch, rows_left: int
    ) -> pa.RecordBatch:
        """Moves the positions past these parts, or into the one batch that has more rows than
        requested."""
        next_offsets = [part.spans[-1].next_offset for part in parts]
        if batch.num_rows > rows_left:
            batch = batch.slice(0, rows_left)
            next_offsets = [batch.column("offset")[-1].as_py() + 1]
        for part, next_offset in zip(parts, next_offsets, strict=True):
            self._reading.hand_out(part.state, next_offset, part.spans[-1].leader_epoch)
        return batch

    def _decode(self, parts: Sequence[Part]) -> Iterator[tuple[pa.RecordBatch, Sequence[Part]]]:
        """Decodes the parts of each topic together; one by one if there is an error."""
        topics: dict[str, list[Part]] = {}
        for part in parts:
            topics.setdefault(part.state.topic_partition.topic, []).append(part)
        for topic, group in topics.items():
            try:
                yield self._decode_parts(topic, group), group
                continue
            except (DecompressedTooLarge, CorruptBatch):
                pass
            for part in group:
                yield from self._decode_alone(topic, part)

    def _decode_alone(
        self, topic: str, part: Part
    ) -> Iterator[tuple[pa.RecordBatch, Sequence[Part]]]:
        state = part.state
        try:
            yield self._decode_parts(topic, [part]), [part]
        except DecompressedTooLarge:
            # Decompressed it is too large: decode one batch at a time.
            one = part._replace(spans=state.buffer.peek(1, 1))
            if one.size == part.size:
                raise
            yield from self._decode_alone(topic, one)
        except CorruptBatch as error:
            self._subscription.refetch(state)
            state.fail(damaged(state.topic_partition, state.position, error))

    def _decode_parts(self, topic: str, parts: Sequence[Part]) -> pa.RecordBatch:
        return decode_parts(topic, parts, headers=self._headers, check_crcs=self._check_crcs)
