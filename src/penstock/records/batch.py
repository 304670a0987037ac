"""Reads, checks and writes the 61-byte header of Kafka's record batch v2.

A broker mostly needs only the header. It has the batch's length, its range of offsets and its
producer, and a CRC that covers the records. The records stay packed, compressed or not.

    offset  field                 covered by the CRC
         0  base offset           no    the leader sets it in place, without changing the CRC
         8  batch length          no    bytes after this field
        12  leader epoch          no    the leader sets it in place, too
        16  magic                 no    always 2
        17  crc                   -     CRC32C of everything from byte 21 on
        21  attributes            yes
        23  last offset delta     yes   the offset span; do not derive it from the record count,
        27  base timestamp        yes   since compaction leaves sparse and even empty batches
        35  max timestamp         yes
        43  producer id           yes
        51  producer epoch        yes
        53  base sequence         yes
        57  record count          yes
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

Buffer = bytes | bytearray | memoryview

MAGIC: Final = 2
HEADER_SIZE: Final = 61
LOG_OVERHEAD: Final = 12
"""Bytes of base offset and length, which `batch_length` does not include."""
# Where each field begins, in bytes from the start of the batch.
BASE_OFFSET_START: Final = 0
BATCH_LENGTH_START: Final = 8
LEADER_EPOCH_START: Final = 12
MAGIC_START: Final = 16
CRC_FIELD_START: Final = 17
ATTRIBUTES_START: Final = 21
LAST_OFFSET_DELTA_START: Final = 23
BASE_TIMESTAMP_START: Final = 27
MAX_TIMESTAMP_START: Final = 35
PRODUCER_ID_START: Final = 43
PRODUCER_EPOCH_START: Final = 51
BASE_SEQUENCE_START: Final = 53
RECORD_COUNT_START: Final = 57
CRC_START: Final = ATTRIBUTES_START
"""The first byte that the CRC covers."""
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
NO_LEADER_EPOCH: Final = -1

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

_HEADER: Final = Struct(">qiibIhiqqqhii")
unpack_fields: Final = _HEADER.unpack_from
# Faster than `BatchHeader._make`, which checks the number of fields: the format has fixed it.
_make: Final = tuple.__new__
_OFFSET: Final = Struct(">q")
_EPOCH: Final = Struct(">i")
_CRC: Final = Struct(">I")
_ATTRIBUTES: Final = Struct(">h")
_MAX_TIMESTAMP: Final = Struct(">q")
_MIN_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD
_OFFSET_MAX: Final = (1 << 63) - 1


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_CODEC_MAX: Final = int(Codec.ZSTD)


class TimestampType(IntEnum):
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class CorruptBatch(ValueError):
    """The bytes are not a sound record batch. The message says why."""


class MisshapenBatch(CorruptBatch):
    """The bytes do not have the shape of a batch. Sending them again does not help.

    They are too short, have an old format that is not accepted, or have header fields that
    contradict each other.
    """


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, including the header."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        return Codec(self.attributes & CODEC_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType((self.attributes & LOG_APPEND_TIME) >> 3)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def has_producer(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record. Sequence numbers wrap from 2**31 - 1 to 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may remove this batch's tombstones. Stored in the base timestamp."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None


HeaderFields = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""The fields of a `BatchHeader`, in its order."""


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Returns the header at `position`. Checks only that there are enough bytes."""
    room = len(buffer) - position
    if room < HEADER_SIZE:
        raise _short(room)
    return _make(BatchHeader, unpack_fields(buffer, position))


def validate(buffer: Buffer, position: int = 0, *, check_crc: bool = True) -> BatchHeader:
    """Returns the header of the batch at `position`. Raises `CorruptBatch` if it is not sound.

    Nothing after the header is decoded: the CRC ensures that the records are as their producer
    made them. `check_crc` is false if the CRC was checked before. More bytes may follow the batch.
    """
    return _make(BatchHeader, validate_fields(buffer, position, check_crc=check_crc))


def validate_fields(buffer: Buffer, position: int = 0, *, check_crc: bool = True) -> HeaderFields:
    """Returns the same as `validate` as a plain tuple, for a caller that needs the speed."""
    room = len(buffer) - position
    if room < HEADER_SIZE:
        raise _short(room)
    fields = unpack_fields(buffer, position)
    base_offset, length, _, magic, crc, attributes, delta, _, _, _, _, _, count = fields
    size = length + LOG_OVERHEAD
    if size < HEADER_SIZE or size > room or magic != MAGIC:
        raise _misshapen(_make(BatchHeader, fields), room)
    if check_crc:
        view = buffer if type(buffer) is memoryview else memoryview(buffer)
        checksum = crc32c(view[position + CRC_START : position + size])
        if checksum != crc:
            raise CorruptBatch(f"CRC is {checksum:#010x} but the header says {crc:#010x}")
    if (
        attributes & CODEC_MASK > _CODEC_MAX
        or base_offset < 0
        or delta < 0
        or base_offset + delta > _OFFSET_MAX
        or not 0 <= count <= delta + 1
    ):
        check_fields(_make(BatchHeader, fields))
    return fields


def _short(room: int) -> MisshapenBatch:
    return MisshapenBatch(
        f"a batch header takes {HEADER_SIZE} bytes, but only {max(0, room)} are left"
    )


def _misshapen(header: BatchHeader, room: int) -> MisshapenBatch:
    if header.size < HEADER_SIZE:
        return MisshapenBatch(
            f"batch length {header.batch_length} is below the {_MIN_LENGTH} bytes of a header"
        )
    if header.size > room:
        return MisshapenBatch(
            f"the batch should have {header.size} bytes, but only {room} are left"
        )
    return MisshapenBatch(f"magic {header.magic} is not {MAGIC}: only record batch v2 is accepted")


def check_fields(header: BatchHeader) -> None:
    """Raises `MisshapenBatch` if the fields of the header contradict each other."""
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise MisshapenBatch(f"unknown compression codec {header.attributes & CODEC_MASK}")
    if header.base_offset < 0 or header.last_offset_delta < 0:
        raise MisshapenBatch(
            f"offsets {header.base_offset} + {header.last_offset_delta} cannot be negative"
        )
    if header.last_offset > _OFFSET_MAX:
        raise MisshapenBatch(f"last offset {header.last_offset} does not fit 64 bits")
    # Compaction removes records and keeps the span, so there may be fewer records or none.
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise MisshapenBatch(
            f"{header.record_count} records do not fit a span of "
            f"{header.last_offset_delta + 1} offsets"
        )


def stamp(buffer: bytearray | memoryview, position: int, base_offset: int, epoch: int) -> None:
    """Sets the base offset and the leader epoch in place. The CRC does not cover them."""
    _OFFSET.pack_into(buffer, position, base_offset)
    _EPOCH.pack_into(buffer, position + LEADER_EPOCH_START, epoch)


stamp_prefix = Struct(">qii").pack_into
"""`stamp` in one step, for a caller that has the length: (buffer, position, base offset, batch
length, epoch)."""


def stamp_append_time(buffer: bytearray | memoryview, position: int, now_ms: int) -> BatchHeader:
    """Changes a batch to log-append time. The CRC covers these bytes, so it is computed again."""
    header = read_header(buffer, position)
    _ATTRIBUTES.pack_into(buffer, position + ATTRIBUTES_START, header.attributes | LOG_APPEND_TIME)
    _MAX_TIMESTAMP.pack_into(buffer, position + MAX_TIMESTAMP_START, now_ms)
    seal(buffer, position, header.size)
    return read_header(buffer, position)


def stamp_max_timestamp(
    buffer: bytearray | memoryview, position: int, max_timestamp: int
) -> BatchHeader:
    """Corrects the max timestamp. The CRC covers it, so it is computed again."""
    _MAX_TIMESTAMP.pack_into(buffer, position + MAX_TIMESTAMP_START, max_timestamp)
    header = read_header(buffer, position)
    seal(buffer, position, header.size)
    return read_header(buffer, position)


def seal(buffer: bytearray | memoryview, position: int, size: int) -> None:
    """Computes and stores the CRC of the batch of `size` bytes at `position`."""
    checksum = crc32c(memoryview(buffer)[position + CRC_START : position + size])
    _CRC.pack_into(buffer, position + CRC_FIELD_START, checksum)


def write_header(buffer: bytearray | memoryview, position: int, header: BatchHeader) -> None:
    _HEADER.pack_into(buffer, position, *header)


def iter_batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yields position and header of each batch. Raises `CorruptBatch` at the first bad one."""
    position = 0
    while position < len(buffer):
        header = validate(buffer, position)
        yield position, header
        position += header.size
