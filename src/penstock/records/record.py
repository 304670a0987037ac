"""Builds and reads batches of records that are Python objects.

This is for small numbers of records: tools, tests, compaction. For many records use
`penstock.records.columnar`, which makes no object per record. Both write the same bytes, since both
use `penstock.records.kernels`.

A batch covers a span of offsets, [base offset, base offset + last offset delta]. A producer writes
a record for every offset. Compaction removes records and must keep everything else: the span
(otherwise followers would see an unexplained gap), the producer's id, epoch and sequence (otherwise
a retry of the batch would not be recognized), and the leader epoch. So a batch may be sparse or
even empty. `rebuild_batch` makes such a batch from the header of the old one.

Timestamps are deltas from the base timestamp. That is the first record's timestamp, or the delete
horizon if the cleaner has set one (attribute bit 6). Under log-append time every record has the
batch's max timestamp, whatever its delta.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple, TypeVar

from penstock.records import kernels
from penstock.records.batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    Codec,
    CorruptBatch,
    TimestampType,
    check_fields,
    seal,
    validate,
    write_header,
)
from penstock.records.compression import DECOMPRESSED_BYTES_MAX, compress, decompress_view

_INT32_MAX: Final = (1 << 31) - 1
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
_CONTROL_KEY: Final = Struct(">hh")
_CONTROL_VALUE: Final = Struct(">hi")
_Writable = TypeVar("_Writable", bytearray, memoryview)


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class ControlType(IntEnum):
    ABORT = 0
    COMMIT = 1


class ControlMarker(NamedTuple):
    """How a transaction ended on this partition, and the epoch of its coordinator."""

    type: ControlType
    coordinator_epoch: int


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int | None = None,
    last_offset_delta: int | None = None,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    max_timestamp: int | None = None,
    delete_horizon_ms: int | None = None,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
) -> bytearray:
    """Returns a complete batch with its CRC. It is writable, so that a broker can stamp it.

    `base_offset` is by default the first record's offset, or 0 without records. The span ends at
    the last record unless `last_offset_delta` is given. `max_timestamp` is by default the largest
    of the records' timestamps; with log-append time it is the timestamp of all records. An empty
    batch is never compressed.

        build_batch([Record(0, now_ms, b"key", b"value")], codec=Codec.ZSTD)
    """
    if base_offset is None:
        base_offset = records[0].offset if records else 0
    if last_offset_delta is None:
        last_offset_delta = records[-1].offset - base_offset if records else 0
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    if delete_horizon_ms is not None:
        base_timestamp = delete_horizon_ms
    if max_timestamp is None:
        max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    _check_records(records, base_offset, last_offset_delta, base_timestamp)
    out = bytearray(HEADER_SIZE)
    kernels.append_records(out, records, base_offset, base_timestamp)
    codec = codec if records else Codec.NONE
    attributes = _attributes(codec, timestamp_type, transactional, control)
    attributes |= DELETE_HORIZON if delete_horizon_ms is not None else 0
    return finish_batch(
        out,
        BatchHeader(
            base_offset=base_offset,
            batch_length=0,
            leader_epoch=leader_epoch,
            magic=MAGIC,
            crc=0,
            attributes=attributes,
            last_offset_delta=last_offset_delta,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=len(records),
        ),
        level,
    )


def _attributes(
    codec: Codec, timestamp_type: TimestampType, transactional: bool, control: bool
) -> int:
    attributes = int(codec)
    attributes |= LOG_APPEND_TIME if timestamp_type == TimestampType.LOG_APPEND_TIME else 0
    attributes |= TRANSACTIONAL if transactional else 0
    attributes |= CONTROL if control else 0
    return attributes


def rebuild_batch(
    header: BatchHeader,
    kept: Sequence[Record],
    *,
    codec: Codec | None = None,
    level: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytearray:
    """Returns the batch of `header` with only the `kept` records, for compaction.

    Everything else about the batch stays: offsets and their span, producer, sequence, epochs,
    timestamp type, transactional and control attributes, and the codec unless another is given. A
    delete horizon stays too. `delete_horizon_ms` is used only if there is none yet, since a
    tombstone's time to live must not start again.
    """
    horizon_ms = header.delete_horizon_ms
    keep_max = not kept or header.timestamp_type == TimestampType.LOG_APPEND_TIME
    return build_batch(
        kept,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        codec=header.codec if codec is None else codec,
        level=level,
        timestamp_type=header.timestamp_type,
        max_timestamp=header.max_timestamp if keep_max else None,
        delete_horizon_ms=delete_horizon_ms if horizon_ms is None else horizon_ms,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
    )


def finish_batch(
    packed: _Writable, header: BatchHeader, level: int | None = None
) -> _Writable | bytearray:
    """Turns packed records that follow `HEADER_SIZE` unused bytes into a complete batch.

    Compresses them with the header's codec. Without compression, `packed` itself becomes the batch.
    """
    batch: _Writable | bytearray = packed
    if header.codec != Codec.NONE:
        batch = bytearray(HEADER_SIZE)
        batch += compress(header.codec, memoryview(packed)[HEADER_SIZE:], level)
    length = len(batch) - LOG_OVERHEAD
    if length > _INT32_MAX:
        raise ValueError(f"a batch of {len(batch)} bytes is too long; split its records")
    write_header(batch, 0, header._replace(batch_length=length))
    seal(batch, 0, len(batch))
    return batch


def read_records(
    batch: Buffer, header: BatchHeader | None = None, *, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> list[Record]:
    """Returns the records of the first batch in `batch`. Raises `CorruptBatch` for a bad record.

    Pass the `header` of a batch that has been validated, to save validating it again. A compressed
    batch may decompress to at most `max_bytes`.
    """
    if header is None:
        header = validate(batch)
    elif not HEADER_SIZE <= header.size <= len(batch):
        raise CorruptBatch(
            f"the batch should have {header.size} bytes, but {len(batch)} were given"
        )
    else:
        check_fields(header)
    payload = read_payload(memoryview(batch)[HEADER_SIZE : header.size], header, max_bytes)
    reader = kernels.RecordReader(
        payload,
        header.record_count,
        header.last_offset_delta,
        header.base_timestamp,
        append_timestamp(header),
    )
    return kernels.read_records(reader, header.record_count, header.base_offset, Record._make)


def read_payload(packed: memoryview, header: BatchHeader, max_bytes: int) -> memoryview:
    """Returns the decompressed bytes after a batch's header. An empty batch may have none."""
    if header.record_count == 0 and not len(packed):
        return packed
    return decompress_view(header.codec, packed, max_bytes)


def append_timestamp(header: BatchHeader) -> int | None:
    """Returns the timestamp of all records under log-append time; None if each has its own."""
    return header.max_timestamp if header.attributes & LOG_APPEND_TIME else None


def control_batch(
    marker: ControlMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """Returns the batch that ends a producer's transaction on a partition. It has one offset."""
    key = _CONTROL_KEY.pack(0, marker.type)
    value = _CONTROL_VALUE.pack(0, marker.coordinator_epoch)
    return build_batch(
        [Record(offset, timestamp, key, value)],
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_control(record: Record) -> ControlMarker:
    """Returns the marker in a record of a control batch. Raises `CorruptBatch` if it is malformed.

    Newer versions may add fields at the end, but not change the known ones. So longer is accepted.
    """
    key, value = record.key, record.value
    if key is None or len(key) < _CONTROL_KEY.size:
        raise CorruptBatch("a control record needs a key of 4 bytes: its version and type")
    version, kind = _CONTROL_KEY.unpack_from(key)
    if version < 0 or kind not in (ControlType.ABORT, ControlType.COMMIT):
        raise CorruptBatch(f"control record version {version} type {kind} is not a commit or abort")
    if value is None or len(value) < _CONTROL_VALUE.size:
        raise CorruptBatch("a transaction marker needs a value of 6 bytes: version and epoch")
    version, coordinator_epoch = _CONTROL_VALUE.unpack_from(value)
    if version < 0:
        raise CorruptBatch(f"transaction marker version {version} cannot be negative")
    return ControlMarker(ControlType(kind), coordinator_epoch)


def _check_records(
    records: Sequence[Record], base_offset: int, last_offset_delta: int, base_timestamp: int
) -> None:
    if not 0 <= last_offset_delta <= _INT32_MAX:
        raise ValueError(f"last offset delta {last_offset_delta} is not in 0 to {_INT32_MAX}")
    if not 0 <= base_offset <= _INT64_MAX - last_offset_delta:
        raise ValueError(f"the offsets from base offset {base_offset} on do not fit 63 bits")
    if not _INT64_MIN <= base_timestamp <= _INT64_MAX:
        raise ValueError(f"base timestamp {base_timestamp} does not fit 64 bits")
    previous = -1
    for record in records:
        delta = record.offset - base_offset
        if not previous < delta <= last_offset_delta:
            raise ValueError(
                f"offset {record.offset} is out of order or outside the batch's span "
                f"{base_offset} to {base_offset + last_offset_delta}; sort the records by offset"
            )
        timestamp = record.timestamp
        if not (
            _INT64_MIN <= timestamp <= _INT64_MAX
            and _INT64_MIN <= timestamp - base_timestamp <= _INT64_MAX
        ):
            raise ValueError(
                f"timestamp {timestamp} or its distance from {base_timestamp}, the base timestamp, "
                "does not fit 64 bits"
            )
        previous = delta
