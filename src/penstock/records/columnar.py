"""Encodes and decodes records as Arrow columns, without a Python object per record.

    key             binary                                   null and empty are different
    value           binary
    headers         list<struct<key: string, value: binary>>
    timestamp       timestamp[ms, UTC]
    timestamp_type  int8                                     0 create time, 1 log-append time
    offset          int64
    partition       int32                                    if the caller names partitions

`encode` accepts such columns, in any of Arrow's usual types for them, and splits them into batches.
`decode` accepts the bytes of a fetch, which are batches of any size and codec, and makes one Arrow
batch. Python code runs once per record batch; `penstock.records.kernels` handles the records. The
bytes are the same that `penstock.records.record` writes and reads.

Positions within a column have 32 bits, which every Arrow reader supports. So a call decodes at most
2 GiB. Importing this module imports pyarrow, so `penstock.records` does not import it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.records import kernels
from penstock.records.aborted import AbortedProducers, AbortedTransaction
from penstock.records.arrow_input import fixed_cells, header_ranges, ranges, timestamps
from penstock.records.arrow_output import Columns
from penstock.records.batch import (
    CODEC_MASK,
    HEADER_SIZE,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    Codec,
    read_header,
    validate,
)
from penstock.records.record import finish_batch

BATCH_BYTES_MAX: Final = 1 << 20
"""A broker with Kafka's default `message.max.bytes` accepts a batch of this size."""
DECODED_BYTES_MAX: Final = 1 << 30
"""The default limit of one call: twenty times the 50 MiB of a default fetch."""

_INT32_MAX: Final = (1 << 31) - 1
_INT64_MAX: Final = (1 << 63) - 1
_COLUMNS: Final = {"key", "value", "headers", "timestamp", "partition"}
_IGNORED_COLUMNS: Final = {"topic", "offset", "timestamp_type"}
"""Columns that `decode` and its callers add to say where a record came from. Not encoded."""
_COMPRESSION_RATIO_GUESS: Final = 4


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How rows are split into batches."""

    codec: Codec = Codec.NONE
    level: int | None = None
    batch_bytes_max: int = BATCH_BYTES_MAX
    """The limit before compression, including the header. A larger record gets its own batch."""
    batch_records_max: int = _INT32_MAX
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    transactional: bool = False

    def __post_init__(self) -> None:
        if not HEADER_SIZE < self.batch_bytes_max <= _INT32_MAX:
            raise ValueError(
                f"batch_bytes_max is {self.batch_bytes_max}; give {HEADER_SIZE + 1} to {_INT32_MAX}"
            )
        if not 1 <= self.batch_records_max <= _INT32_MAX:
            raise ValueError(
                f"batch_records_max is {self.batch_records_max}; give 1 to {_INT32_MAX}"
            )


class Chunk(NamedTuple):
    """Fetched bytes of one partition, and the range of wanted offsets: [from, to)."""

    data: Buffer
    partition: int | None = None
    from_offset: int = 0
    to_offset: int = _INT64_MAX
    aborted: Sequence[AbortedTransaction] = ()


class ChunkEnd(NamedTuple):
    """Where the decoding of a chunk ended."""

    next_offset: int | None
    """The offset after the last complete batch; None if there was no complete batch."""
    partial_bytes: int
    """Bytes of an incomplete batch at the end. If it is alone in its chunk, fetch more bytes."""


class Decoded(NamedTuple):
    records: pa.RecordBatch
    ends: tuple[ChunkEnd, ...]
    """One for each chunk."""


def encode(
    rows: pa.RecordBatch | pa.Table,
    options: BatchOptions | None = None,
    *,
    now_ms: int | None = None,
    base_offset: int | None = None,
    base_sequence: int = NO_SEQUENCE,
) -> list[memoryview]:
    """Returns complete batches with the rows in order. `now_ms` is for rows without a timestamp.

    Each batch starts at offset 0, as brokers expect from producers. With `base_offset` the offsets
    continue from batch to batch, starting there. Sequence numbers always continue.

        encode(pa.record_batch({"value": [b"one", b"two"]}), now_ms=now_ms)
    """
    if "partition" in rows.schema.names:
        raise ValueError("the rows have a partition column; use encode_partitions, or drop it")
    options = options or BatchOptions()
    cutter = _Cutter(options, base_offset, base_sequence)
    for batch in _record_batches(rows):
        encoder = _encoder(batch, now_ms, None)
        cutter.cut(encoder, 0, len(batch), _Arena(encoder, options))
    return cutter.batches


def encode_partitions(
    rows: pa.RecordBatch | pa.Table,
    options: BatchOptions | None = None,
    *,
    now_ms: int | None = None,
    base_sequences: Mapping[int, int] | None = None,
) -> dict[int, list[memoryview]]:
    """Returns batches for each partition of the `partition` column. Rows keep their order in it.

    `base_sequences` has the first sequence number of each partition.
    """
    options = options or BatchOptions()
    cutters: dict[int, _Cutter] = {}
    for batch in _record_batches(rows):
        partitions = batch.column("partition").cast(pa.int32())
        if partitions.null_count:
            raise ValueError("the partition column has nulls; give every row a partition")
        order = pc.sort_indices(partitions)
        runs = pc.run_end_encode(partitions.take(order))
        encoder = _encoder(batch, now_ms, fixed_cells(order, "q"))
        arena = _Arena(encoder, options)
        first = 0
        for partition, stop in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            if partition not in cutters:
                sequence = NO_SEQUENCE if base_sequences is None else base_sequences[partition]
                cutters[partition] = _Cutter(options, None, sequence)
            cutters[partition].cut(encoder, first, stop, arena)
            first = stop
    return {partition: cutters[partition].batches for partition in sorted(cutters)}


def decode(
    chunks: Buffer | Chunk | Sequence[Buffer | Chunk],
    *,
    headers: bool = True,
    check_crc: bool = True,
    max_bytes: int = DECODED_BYTES_MAX,
) -> Decoded:
    """Returns all wanted records of all chunks as one Arrow batch. Raises `CorruptBatch`.

    Skips control batches, batches of aborted transactions, and an incomplete batch at the end of a
    chunk. Without `headers` there is no such column. `max_bytes` limits the decompressed bytes of
    all batches together; beyond it `DecompressedTooLarge` is raised.
    """
    if not 0 < max_bytes <= _INT32_MAX:
        raise ValueError(f"max_bytes is {max_bytes}; give 1 to {_INT32_MAX} and decode in parts")
    if isinstance(chunks, bytes | bytearray | memoryview | Chunk):
        chunks = [chunks]
    wanted = [item if isinstance(item, Chunk) else Chunk(item) for item in chunks]
    parts = [(chunk, list(_whole_batches(chunk.data))) for chunk in wanted]
    columns = Columns(
        *_expected([header for _, batches in parts for _, header in batches]),
        headers=headers,
        partitions=any(chunk.partition is not None for chunk in wanted),
        bytes_max=max_bytes,
    )
    ends = tuple(_decode_chunk(chunk, batches, columns, check_crc) for chunk, batches in parts)
    return Decoded(columns.finish(), ends)


class _Cutter:
    """Splits rows into complete batches, with continuous offsets and sequence numbers."""

    def __init__(self, options: BatchOptions, base_offset: int | None, base_sequence: int) -> None:
        self.options = options
        self.base_offset = base_offset
        self.base_sequence = base_sequence
        self.batches: list[memoryview] = []

    def cut(self, encoder: kernels.ColumnEncoder, first: int, stop: int, arena: _Arena) -> None:
        """Encodes rows into as many batches as needed."""
        while first < stop:
            last = min(stop, first + self.options.batch_records_max)
            room = arena.room()
            end, size, base_timestamp, max_timestamp = encoder.fill(
                room, HEADER_SIZE, self.options.batch_bytes_max, first, last
            )
            if end == first:
                if size > _INT32_MAX:
                    raise ValueError(f"row {first} alone takes {size} bytes: too many for a batch")
                room = _allocate(size)
                end, size, base_timestamp, max_timestamp = encoder.fill(
                    room, HEADER_SIZE, size, first, first + 1
                )
            elif self.options.codec == Codec.NONE:
                arena.take(size)
            self._seal(room[:size], end - first, base_timestamp, max_timestamp)
            first = end

    def _seal(
        self, packed: memoryview, count: int, base_timestamp: int, max_timestamp: int
    ) -> None:
        options = self.options
        header = BatchHeader(
            base_offset=self.base_offset or 0,
            batch_length=0,
            leader_epoch=NO_LEADER_EPOCH,
            magic=MAGIC,
            crc=0,
            attributes=options.codec | (TRANSACTIONAL if options.transactional else 0),
            last_offset_delta=count - 1,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            producer_id=options.producer_id,
            producer_epoch=options.producer_epoch,
            base_sequence=self.base_sequence,
            record_count=count,
        )
        self.batches.append(memoryview(finish_batch(packed, header, options.level)))
        if self.base_offset is not None:
            self.base_offset += count
        if self.base_sequence != NO_SEQUENCE:
            self.base_sequence = (self.base_sequence + count) & _INT32_MAX


class _Arena:
    """Memory for batches: one after another, or for compression always in the same place.

    It comes from Arrow's pool, which reuses memory that the system's allocator would return. Taking
    new pages from the system costs more than encoding into them.
    """

    def __init__(self, encoder: kernels.ColumnEncoder, options: BatchOptions) -> None:
        payload_bytes_max = encoder.bytes_max()
        self._room_min = min(options.batch_bytes_max, HEADER_SIZE + payload_bytes_max)
        whole = options.codec == Codec.NONE
        self._size = HEADER_SIZE + payload_bytes_max if whole else self._room_min
        self._free = _allocate(self._size)

    def room(self) -> memoryview:
        """Returns memory that is large enough for any batch."""
        if len(self._free) < self._room_min:
            self._free = _allocate(self._size)
        return self._free

    def take(self, size: int) -> None:
        self._free = self._free[size:]


def _allocate(size: int) -> memoryview:
    return memoryview(pa.allocate_buffer(size)).cast("B")


def _record_batches(rows: pa.RecordBatch | pa.Table) -> Iterator[pa.RecordBatch]:
    unknown = set(rows.schema.names) - _COLUMNS - _IGNORED_COLUMNS
    if unknown:
        raise ValueError(
            f"columns {sorted(unknown)} are not part of a record; rename them to any of "
            f"{sorted(_COLUMNS)}, or drop them"
        )
    if "value" not in rows.schema.names:
        raise ValueError("there is no value column; add one, with nulls for tombstones")
    if isinstance(rows, pa.RecordBatch):
        return iter([rows])
    return iter(rows.combine_chunks().to_batches())


def _encoder(rows: pa.RecordBatch, now_ms: int | None, order: Any) -> kernels.ColumnEncoder:
    names = rows.schema.names
    return kernels.ColumnEncoder(
        ranges(rows.column("key") if "key" in names else pa.nulls(len(rows)), "key"),
        ranges(rows.column("value"), "value"),
        timestamps(rows.column("timestamp") if "timestamp" in names else None, len(rows), now_ms),
        headers=header_ranges(rows.column("headers")) if "headers" in names else None,
        order=order,
    )


def _whole_batches(data: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yields the position and the unchecked header of each complete batch."""
    position = 0
    while len(data) - position >= HEADER_SIZE:
        header = read_header(data, position)
        if header.size > len(data) - position:
            return
        yield position, header
        position += max(header.size, HEADER_SIZE)


def _expected(headers: Sequence[BatchHeader]) -> tuple[int, int]:
    """Returns for how many rows and bytes to allocate at first.

    Headers may lie, so the allocation is limited in proportion to the bytes received.
    """
    rows = size = 0
    for header in headers:
        rows += min(max(header.record_count, 0), max(header.size, 0))
        compressed = header.attributes & CODEC_MASK != Codec.NONE
        size += max(header.size, 0) * (_COMPRESSION_RATIO_GUESS if compressed else 1)
    return rows, size


def _decode_chunk(
    chunk: Chunk, batches: Sequence[tuple[int, BatchHeader]], columns: Columns, check_crc: bool
) -> ChunkEnd:
    data = memoryview(chunk.data)
    aborted = AbortedProducers(chunk.aborted)
    next_offset: int | None = None
    end = 0
    for position, _ in batches:
        header = validate(data, position, check_crc=check_crc)
        end = position + header.size
        next_offset = header.next_offset
        if not aborted.passes(data[position:end], header, columns.bytes_left):
            continue
        if header.last_offset >= chunk.from_offset and header.base_offset < chunk.to_offset:
            columns.add(
                data[position + HEADER_SIZE : end],
                header,
                from_offset=chunk.from_offset,
                to_offset=chunk.to_offset,
                partition=chunk.partition,
            )
    return ChunkEnd(next_offset, len(data) - end)
