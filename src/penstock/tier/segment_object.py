"""Encodes record batches as a segment object, and reads them back. Pure.

The batches stay as they are: `EncodedObject.parts` has the buffers that were passed in, and the
footer after them. Every batch is checked, so damaged bytes of a disk never reach the store. For
64 MiB this takes some tens of milliseconds: use a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from penstock.partition.epochs import EpochStart
from penstock.partition.transactions import AbortedEntry
from penstock.records.batch import (
    HEADER_SIZE,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    CorruptBatch,
    read_header,
    validate,
)
from penstock.tier.errors import CorruptObject
from penstock.tier.footer import (
    BLOCK_BYTES,
    CHUNK_BYTES,
    Block,
    ByteRange,
    Footer,
    decode_footer,
    decode_trailer,
    encode_footer,
)
from penstock.tier.keys import TopicIdPartition


class Lineage(NamedTuple):
    """What the log knows at the end offset of an object, apart from the batches."""

    epochs: Sequence[EpochStart] = ()
    """From the start of the log to the end offset."""
    aborted: Sequence[AbortedEntry] = ()
    """The aborted transactions whose markers are in the object."""
    producers: bytes = b""
    """A producer snapshot at the end offset."""


@dataclass(frozen=True, slots=True)
class EncodedObject:
    """A segment object, ready to be uploaded."""

    footer: Footer
    parts: tuple[Buffer, ...]
    """Batches, then footer and trailer, which are the last part."""

    @property
    def tail(self) -> bytes:
        """Footer and trailer."""
        return bytes(self.parts[-1])

    @property
    def size(self) -> int:
        return self.footer.data_size + len(self.parts[-1])

    @property
    def footer_crc(self) -> int:
        return decode_trailer(self.parts[-1]).footer_crc


def encode(
    owner: TopicIdPartition,
    leader_epoch: int,
    covers: tuple[int, int],
    batches: Iterable[Buffer],
    lineage: Lineage,
    *,
    block_bytes: int = BLOCK_BYTES,
    chunk_bytes: int = CHUNK_BYTES,
) -> EncodedObject:
    """Returns the object with these batches. Each buffer has one or more whole batches.

    `covers` are the first offset and the offset after the last. The batches may begin later and
    end earlier, because compaction removes records. Raises `CorruptBatch` for damaged batches.
    """
    scan = _Scan(covers, block_bytes, chunk_bytes)
    parts = [part for part in batches if len(part)]
    for part in parts:
        scan.add(memoryview(part))
    footer = Footer(
        owner,
        leader_epoch,
        *covers,
        scan.max_timestamp,
        scan.batch_count,
        scan.record_count,
        scan.position,
        tuple(scan.index),
        tuple(lineage.aborted),
        tuple(lineage.epochs),
        lineage.producers,
        tuple(scan.finished_chunks()),
        chunk_bytes,
    )
    return EncodedObject(footer, (*parts, encode_footer(footer)))


class _Scan:
    """Goes through all batches once."""

    def __init__(self, covers: tuple[int, int], block_bytes: int, chunk_bytes: int) -> None:
        self._next_offset, self._end_offset = covers
        if not 0 <= self._next_offset < self._end_offset:
            raise ValueError(f"an object cannot cover the offsets {covers}")
        self._block_bytes = block_bytes
        self._chunk_bytes = chunk_bytes
        self._chunk_crc = 0
        self._chunk_filled = 0
        self._crcs: list[int] = []
        self.index: list[Block] = []
        self.position = 0
        self.max_timestamp = NO_TIMESTAMP
        self.batch_count = 0
        self.record_count = 0

    def add(self, data: memoryview) -> None:
        at = 0
        while at < len(data):
            header = validate(data, at)
            self._note(header)
            at += header.size
        self._add_to_chunks(data)

    def _note(self, header: BatchHeader) -> None:
        if header.base_offset < self._next_offset or header.next_offset > self._end_offset:
            raise CorruptBatch(
                f"the batch {header.base_offset} to {header.last_offset} is not between "
                f"{self._next_offset} and {self._end_offset}"
            )
        self._next_offset = header.next_offset
        self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
        if not self.index or self.position - self.index[-1].position >= self._block_bytes:
            self.index.append(Block(header.base_offset, self.max_timestamp, self.position))
        elif self.index[-1].max_timestamp < self.max_timestamp:
            self.index[-1] = self.index[-1]._replace(max_timestamp=self.max_timestamp)
        self.position += header.size
        self.batch_count += 1
        self.record_count += header.record_count

    def _add_to_chunks(self, data: memoryview) -> None:
        at = 0
        while at < len(data):
            part = data[at : at + self._chunk_bytes - self._chunk_filled]
            self._chunk_crc = crc32c(part, self._chunk_crc)
            self._chunk_filled += len(part)
            at += len(part)
            if self._chunk_filled == self._chunk_bytes:
                self._crcs.append(self._chunk_crc)
                self._chunk_crc = self._chunk_filled = 0

    def finished_chunks(self) -> list[int]:
        return [*self._crcs, self._chunk_crc] if self._chunk_filled else self._crcs


def verify(data: Buffer) -> Footer:
    """Checks a whole object: trailer, footer, every chunk, every batch. Returns its footer."""
    footer = decode_footer(data)
    if decode_trailer(data).object_size != len(data):
        raise CorruptObject(
            f"the object has {len(data)} bytes, and its trailer says "
            f"{decode_trailer(data).object_size}"
        )
    view = memoryview(data)[: footer.data_size]
    footer.check_chunks(view, ByteRange(0, footer.data_size))
    lineage = Lineage(footer.epochs, footer.aborted, footer.producers)
    try:
        found = encode(
            footer.owner,
            footer.leader_epoch,
            (footer.base_offset, footer.end_offset),
            [view],
            lineage,
            chunk_bytes=footer.chunk_bytes,
        ).footer
    except ValueError as error:
        raise CorruptObject(f"the batches of the object cannot be decoded: {error}") from error
    counts = (found.batch_count, found.record_count, found.max_timestamp)
    if counts != (footer.batch_count, footer.record_count, footer.max_timestamp):
        raise CorruptObject(f"the batches do not match the footer: {counts}")
    return footer


def batches_from(
    data: Buffer, offset: int, end_offset: int
) -> Iterator[tuple[memoryview, BatchHeader]]:
    """Yields the batches of a range read that end at or after `offset` and below `end_offset`. A
    batch that is cut at the end of the data is left out."""
    view = memoryview(data)
    at = 0
    while len(view) - at >= HEADER_SIZE:
        header = read_header(view, at)
        if header.size < HEADER_SIZE:
            raise CorruptBatch(f"there is no batch at byte {at} of the range")
        if header.size > len(view) - at or header.next_offset > end_offset:
            return
        if header.last_offset >= offset:
            validate(view, at)
            yield view[at : at + header.size], header
        at += header.size
