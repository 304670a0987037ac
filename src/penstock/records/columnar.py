"""Records as Arrow columns: many at once, with no Python object for any of them.

    key             binary                                   null or empty, kept apart
    value           binary
    headers         list<struct<key: string, value: binary>>
    timestamp       timestamp[ms, UTC]
    timestamp_type  int8                                     0 create time, 1 log-append time
    offset          int64
    partition       int32                                    where the caller names partitions

`encode` takes such columns, in any of Arrow's usual types for them, and cuts them into batches.
`decode` takes what a fetch returns, batches of any size and codec one after another, and makes one
Arrow batch of them. Python runs once per record batch; the records themselves are the business of
`penstock.records.kernels`. The bytes are those that `penstock.records.record` writes and reads.

Positions within a column are 32-bit, as every reader knows them, so a call decodes 2 GiB at most.

Importing this module imports pyarrow, so `penstock.records` does not import it.
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
"""A batch of this size is let in by a broker with Kafka's default `message.max.bytes`."""
DECODED_BYTES_MAX: Final = 1 << 30
"""What one call decodes unless told otherwise: twenty times the 50 MiB of a default fetch."""

_INT32_MAX: Final = (1 << 31) - 1
_INT64_MAX: Final = (1 << 63) - 1
_COLUMNS: Final = {"key", "value", "headers", "timestamp", "partition"}
_IGNORED_COLUMNS: Final = {"topic", "offset", "timestamp_type"}
"""What `decode` and its users add about where a record came from; it does not travel along."""
_COMPRESSION_RATIO_GUESS: Final = 4


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How rows become batches."""

    codec: Codec = Codec.NONE
    level: int | None = None
    batch_bytes_max: int = BATCH_BYTES_MAX
    """Before compression, header included; a single record that is larger is a batch alone."""
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
    """Fetched bytes of one partition, and which of its offsets are wanted: [from, to)."""

    data: Buffer
    partition: int | None = None
    from_offset: int = 0
    to_offset: int = _INT64_MAX
    aborted: Sequence[AbortedTransaction] = ()


class ChunkEnd(NamedTuple):
    """Where decoding a chunk ended."""

    next_offset: int | None
    """The offset after the last whole batch, whether or not a record is on it; None for none."""
    partial_bytes: int
    """How much of a batch that was cut off was left over. Alone in a chunk: fetch more bytes."""


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
    """Sealed batches with the rows in order; `now_ms` is for rows without a timestamp.

    Each batch starts at offset 0, as brokers want batches from producers, unless `base_offset` is
    given; then they follow each other from there. Sequences always follow each other.

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
    """Batches for each partition of the `partition` column; within one, rows keep their order.

    With `base_sequences` each partition's batches are numbered on from its own.
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
    """All wanted records of all chunks as one Arrow batch, or `CorruptBatch`.

    Control batches, batches of aborted transactions and whatever is left of a batch at the end of
    a chunk are passed over. Without `headers` that column is left out. `max_bytes` bounds what is
    decompressed in total, and `DecompressedTooLarge` says that it was not enough.
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
    """Cuts rows into sealed batches and numbers them on."""

    def __init__(self, options: BatchOptions, base_offset: int | None, base_sequence: int) -> None:
        self.options = options
        self.base_offset = base_offset
        self.base_sequence = base_sequence
        self.batches: list[memoryview] = []

    def cut(self, encoder: kernels.ColumnEncoder, first: int, stop: int, arena: _Arena) -> None:
        """Encode rows into as many batches as it takes."""
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
    """Memory in which batches are packed one after another, or, to be compressed, in one place.

    It comes from Arrow, whose pool hands out used memory again where the system's allocator would
    return it: taking fresh pages from the system costs more than encoding into them.
    """

    def __init__(self, encoder: kernels.ColumnEncoder, options: BatchOptions) -> None:
        payload_bytes_max = encoder.bytes_max()
        self._room_min = min(options.batch_bytes_max, HEADER_SIZE + payload_bytes_max)
        whole = options.codec == Codec.NONE
        self._size = HEADER_SIZE + payload_bytes_max if whole else self._room_min
        self._free = _allocate(self._size)

    def room(self) -> memoryview:
        """Room for the largest batch that may come."""
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
            f"columns {sorted(unknown)} mean nothing in a record; rename them to any of "
            f"{sorted(_COLUMNS)} or drop them"
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
    """Position and unchecked header of each batch that does not run past the end."""
    position = 0
    while len(data) - position >= HEADER_SIZE:
        header = read_header(data, position)
        if header.size > len(data) - position:
            return
        yield position, header
        position += max(header.size, HEADER_SIZE)


def _expected(headers: Sequence[BatchHeader]) -> tuple[int, int]:
    """Rows and bytes to make room for at first; headers may lie, so no more than they cost."""
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
