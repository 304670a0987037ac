"""The footer of a segment object: indexes, epochs, producers and checksums. Pure.

`docs/TIERED.md` has the layout. A footer is read from the tail of its object, with one range read
if the tail was long enough.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.partition.epochs import EpochStart
from penstock.partition.transactions import (
    AbortedEntry,
    CorruptTransactionIndex,
    decode_entries,
    encode_entries,
)
from penstock.records.batch import NO_TIMESTAMP, Buffer
from penstock.tier.errors import CorruptObject
from penstock.tier.keys import TopicIdPartition

MAGIC: Final = b"PNSTKSEG"
VERSION: Final = 1
BLOCK_BYTES: Final = 64 << 10
CHUNK_BYTES: Final = 1 << 20
TAIL_BYTES: Final = 64 << 10
"""A read of this much from the end of an object usually has the whole footer."""

_TRAILER: Final = Struct(">8sHHIIqI")
TRAILER_SIZE: Final = _TRAILER.size
_TRAILER_CHECKED: Final = TRAILER_SIZE - 4
_FIXED: Final = Struct(">16siiqqqqqii")
_SECTION: Final = Struct(">HHII")
_BLOCK: Final = Struct(">qqq")
_EPOCH: Final = Struct(">iq")
_CRC: Final = Struct(">I")
_INDEX, _ABORTED, _EPOCHS, _PRODUCERS, _CHUNKS = range(1, 6)
_SECTIONS_MAX: Final = 1000


class Block(NamedTuple):
    """Some batches that follow each other, at least `BLOCK_BYTES` or the rest."""

    base_offset: int
    max_timestamp: int
    """The largest timestamp from the start of the object to the end of this block."""
    position: int


class ByteRange(NamedTuple):
    start: int
    end: int


class Trailer(NamedTuple):
    """The last bytes of an object."""

    footer_size: int
    footer_crc: int
    data_size: int

    @property
    def object_size(self) -> int:
        return self.data_size + self.footer_size + TRAILER_SIZE

    @property
    def tail_size(self) -> int:
        """Bytes of footer and trailer."""
        return self.footer_size + TRAILER_SIZE


@dataclass(frozen=True, slots=True)
class Footer:
    """What a segment object says about its batches."""

    owner: TopicIdPartition
    leader_epoch: int
    base_offset: int
    end_offset: int
    max_timestamp: int
    batch_count: int
    record_count: int
    data_size: int
    index: tuple[Block, ...] = ()
    aborted: tuple[AbortedEntry, ...] = ()
    epochs: tuple[EpochStart, ...] = ()
    producers: bytes = b""
    """A producer snapshot at the end offset, as `partition.producer_snapshot` reads it."""
    chunk_crcs: tuple[int, ...] = ()
    chunk_bytes: int = CHUNK_BYTES

    def range_from(self, offset: int, bytes_max: int) -> ByteRange | None:
        """Returns the bytes to read for the batches from `offset` on: from a batch boundary at or
        before them, and with the first of them, if the object has one. None if the object ends
        before the offset.

        The offset may be in a gap after the last batch of its block, so the range has the following
        block too.
        """
        if offset >= self.end_offset or not self.index:
            return None
        at = max(0, bisect_right(self.index, offset, key=lambda block: block.base_offset) - 1)
        start = self.index[at].position
        following = self.index[at + 2].position if at + 2 < len(self.index) else self.data_size
        return ByteRange(start, min(self.data_size, max(following, start + bytes_max)))

    def range_at_time(self, timestamp_ms: int) -> ByteRange | None:
        """Returns the block with the first batch that may have a record at or after the time. None
        if no record is that new."""
        at = bisect_left(self.index, timestamp_ms, key=lambda block: block.max_timestamp)
        if at == len(self.index):
            return None
        end = self.index[at + 1].position if at + 1 < len(self.index) else self.data_size
        return ByteRange(self.index[at].position, end)

    def whole_chunks(self, part: ByteRange) -> ByteRange:
        """Returns the range, made larger so that `check_chunks` can check all of it."""
        start = part.start // self.chunk_bytes * self.chunk_bytes
        end = -(-part.end // self.chunk_bytes) * self.chunk_bytes
        return ByteRange(start, min(self.data_size, end))

    def check_chunks(self, data: Buffer, part: ByteRange) -> None:
        """Raises `CorruptObject` unless these are the bytes of the range, which begins and ends at
        the bounds of chunks."""
        if part != self.whole_chunks(part) or len(data) != part.end - part.start:
            raise CorruptObject(
                f"expected the chunks {part.start} to {part.end} of an object with "
                f"{self.data_size} bytes of batches, but got {len(data)} bytes: the object was "
                "truncated, or other bounds were read"
            )
        view = memoryview(data)
        first = part.start // self.chunk_bytes
        for number in range(-(-len(view) // self.chunk_bytes)):
            chunk = view[number * self.chunk_bytes : (number + 1) * self.chunk_bytes]
            checksum, wanted = crc32c(chunk), self.chunk_crcs[first + number]
            if checksum != wanted:
                raise CorruptObject(
                    f"chunk {first + number} has the CRC {checksum:#010x}, and its footer says "
                    f"{wanted:#010x}"
                )


def encode_footer(footer: Footer) -> bytes:
    """Returns footer and trailer."""
    contents = [
        (_INDEX, b"".join(_BLOCK.pack(*block) for block in footer.index)),
        (_ABORTED, encode_entries(footer.aborted)),
        (_EPOCHS, b"".join(_EPOCH.pack(*each) for each in footer.epochs)),
        (_PRODUCERS, footer.producers),
        (_CHUNKS, b"".join(_CRC.pack(each) for each in footer.chunk_crcs)),
    ]
    position = _FIXED.size + len(contents) * _SECTION.size
    parts = [
        _FIXED.pack(
            bytes.fromhex(footer.owner.topic_id),
            footer.owner.partition,
            footer.leader_epoch,
            footer.base_offset,
            footer.end_offset,
            footer.max_timestamp,
            footer.batch_count,
            footer.record_count,
            footer.chunk_bytes,
            len(contents),
        )
    ]
    for kind, content in contents:
        parts.append(_SECTION.pack(kind, 0, position, len(content)))
        position += len(content)
    body = b"".join([*parts, *(content for _, content in contents)])
    trailer = _TRAILER.pack(MAGIC, VERSION, 0, len(body), crc32c(body), footer.data_size, 0)
    checked = trailer[:_TRAILER_CHECKED]
    return body + checked + _CRC.pack(crc32c(checked))


def decode_trailer(tail: Buffer) -> Trailer:
    """Returns the trailer at the end of these bytes."""
    if len(tail) < TRAILER_SIZE:
        raise CorruptObject(f"a segment object has at least {TRAILER_SIZE} bytes, not {len(tail)}")
    trailer = bytes(tail[len(tail) - TRAILER_SIZE :])
    magic, version, flags, size, crc, data_size, own_crc = _TRAILER.unpack(trailer)
    if magic != MAGIC:
        raise CorruptObject(f"magic {magic!r} is not {MAGIC!r}: this is not a segment object")
    if crc32c(trailer[:_TRAILER_CHECKED]) != own_crc:
        raise CorruptObject("the trailer of the segment object fails its CRC")
    if version != VERSION or flags:
        raise CorruptObject(
            f"segment object version {version} with flags {flags:#x} is newer than this broker; "
            "upgrade penstock"
        )
    if data_size < 0:
        raise CorruptObject(
            f"the trailer gives an impossible size of the batches: {data_size} bytes"
        )
    return Trailer(size, crc, data_size)


def decode_footer(tail: Buffer) -> Footer:
    """Returns the footer from the tail of an object, of at least `Trailer.tail_size` bytes."""
    trailer = decode_trailer(tail)
    start = len(tail) - trailer.tail_size
    if start < 0:
        raise CorruptObject(
            f"the tail has {len(tail)} bytes, but footer and trailer have {trailer.tail_size}"
        )
    body = bytes(tail[start : start + trailer.footer_size])
    if crc32c(body) != trailer.footer_crc:
        raise CorruptObject("the footer of the segment object fails its CRC")
    if len(body) < _FIXED.size:
        raise CorruptObject(f"a footer has at least {_FIXED.size} bytes, not {len(body)}")
    topic_id, partition, epoch, base, end, newest, batches, records, chunk_bytes, count = (
        _FIXED.unpack_from(body)
    )
    sections = _sections(body, count)
    blocks = sections.get(_INDEX, b"")
    crcs = sections.get(_CHUNKS, b"")
    epochs = sections.get(_EPOCHS, b"")
    if chunk_bytes < 1 or len(blocks) % _BLOCK.size or len(epochs) % _EPOCH.size:
        raise CorruptObject("the sections of the footer have impossible sizes")
    if len(crcs) != -(-trailer.data_size // chunk_bytes) * _CRC.size or not 0 <= base <= end:
        raise CorruptObject("the fields of the footer contradict each other")
    if min(partition, epoch, batches, records) < 0 or newest < NO_TIMESTAMP:
        raise CorruptObject("the footer has negative numbers")
    try:
        aborted = decode_entries(sections.get(_ABORTED, b""))
    except CorruptTransactionIndex as error:
        raise CorruptObject(
            f"the footer's index of aborted transactions cannot be decoded: {error}"
        ) from error
    return Footer(
        TopicIdPartition(topic_id.hex(), partition),
        epoch,
        base,
        end,
        newest,
        batches,
        records,
        trailer.data_size,
        tuple(_blocks(blocks, trailer.data_size, ByteRange(base, end))),
        tuple(aborted),
        tuple(_epochs(epochs)),
        sections.get(_PRODUCERS, b""),
        tuple(fields[0] for fields in _CRC.iter_unpack(crcs)),
        chunk_bytes,
    )


def _sections(body: bytes, count: int) -> dict[int, bytes]:
    """Returns the sections by kind, also those of unknown kinds."""
    if not 0 <= count <= _SECTIONS_MAX or _FIXED.size + count * _SECTION.size > len(body):
        raise CorruptObject(f"the footer announces {count} sections in {len(body)} bytes")
    found: dict[int, bytes] = {}
    left = len(body) - _FIXED.size - count * _SECTION.size
    for number in range(count):
        kind, _, position, size = _SECTION.unpack_from(body, _FIXED.size + number * _SECTION.size)
        if position + size > len(body):
            raise CorruptObject(f"section {kind} of the footer ends after the footer")
        left -= size
        if left < 0 or kind in found:
            raise CorruptObject(
                f"section {kind} of the footer occurs twice, or overlaps another section"
            )
        found[kind] = body[position : position + size]
    return found


def _epochs(data: bytes) -> Sequence[EpochStart]:
    epochs = [EpochStart._make(fields) for fields in _EPOCH.iter_unpack(data)]
    last = EpochStart(-1, 0)
    for each in epochs:
        if each.epoch <= last.epoch or each.start_offset < last.start_offset:
            raise CorruptObject("the leader epochs of the footer are not sorted")
        last = each
    return epochs


def _blocks(data: bytes, data_size: int, offsets: ByteRange) -> Sequence[Block]:
    blocks = [Block._make(fields) for fields in _BLOCK.iter_unpack(data)]
    if bool(blocks) != bool(data_size):
        raise CorruptObject(f"the index has {len(blocks)} blocks for {data_size} bytes of batches")
    if not _rises(blocks) or (blocks and blocks[0].position):
        raise CorruptObject("the index of the footer is not sorted")
    if (
        blocks
        and not offsets.start <= blocks[0].base_offset <= blocks[-1].base_offset < offsets.end
    ):
        raise CorruptObject("the index of the footer has offsets that the object does not cover")
    if blocks and blocks[-1].position >= data_size:
        raise CorruptObject("the index of the footer leads beyond the batches")
    return blocks


def _rises(blocks: Iterable[Block]) -> bool:
    last = None
    for block in blocks:
        if last is not None and not (
            last.base_offset < block.base_offset
            and last.max_timestamp <= block.max_timestamp
            and last.position < block.position
        ):
            return False
        last = block
    return True
