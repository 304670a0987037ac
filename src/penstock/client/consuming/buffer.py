"""The prefetched data of one partition: raw bytes that are decoded when records are taken.

A fetch returns whole batches one after another, possibly followed by an incomplete one. Such a
response is a `Piece`. Its batches are decoded one at a time, into rows that are still plain tuples.
Records are made only of the rows that the caller takes. So prefetched data costs little more than
its bytes, and a table can be made of the same bytes without any objects.

Offsets increase within a piece and from piece to piece, with gaps where compaction removed records
and where control batches are. `floor` is the first offset that is still needed: rows below it are
skipped, because a batch is fetched whole even if the fetch offset is in its middle.

Invariants: the pieces are contiguous, each begins where the previous one ended; `size` is the sum
of their bytes; rows that `advance_to` has passed are not returned again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from penstock.records import kernels
from penstock.records.aborted import AbortedProducers, AbortedTransaction
from penstock.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    CorruptBatch,
    TimestampType,
    read_header,
    validate,
)
from penstock.records.compression import DECOMPRESSED_BYTES_MAX
from penstock.records.record import append_timestamp, read_payload

Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Offset, timestamp, key, value, headers."""

_OUTLINE: Final = Struct(">8xi45xi")
"""A batch's length and its record count."""


class Extent(NamedTuple):
    """What a fetch returned, according to the headers of its batches."""

    size: int
    """The size of the whole batches. What follows is part of a batch that will be fetched again."""
    batches: int
    rows: int
    """The number of rows according to the headers, including control records and aborted ones."""
    next_offset: int
    leader_epoch: int


def measure(data: memoryview) -> Extent | None:
    """Measures the whole batches. Returns None if there is not a single one."""
    end = len(data)
    position = last = batches = rows = 0
    while end - position >= HEADER_SIZE:
        length, count = _OUTLINE.unpack_from(data, position)
        size = length + LOG_OVERHEAD
        if size < HEADER_SIZE:
            raise CorruptBatch(f"the batch length says {size} bytes, less than a batch header")
        if size > end - position:
            break
        last = position
        position += size
        batches += 1
        rows += count
    if not batches:
        return None
    header = read_header(data, last)
    return Extent(position, batches, rows, header.next_offset, header.leader_epoch)


class Rows(NamedTuple):
    """Rows of one batch, to be made into records, and the offset at which reading continues."""

    rows: Sequence[Row]
    timestamp_type: TimestampType
    leader_epoch: int
    next_offset: int


class Span(NamedTuple):
    """Whole batches for a table. Nothing is taken until `advance_to`."""

    data: memoryview
    aborted: Sequence[AbortedTransaction]
    size: int
    """The size of the batches that are new in it."""
    rows: int
    """The number of rows according to the headers."""
    next_offset: int
    leader_epoch: int


class Answer:
    """The bytes of one response, which stay in memory as long as one of its pieces does."""

    __slots__ = ("_ledger", "_pieces", "size")

    def __init__(self, ledger: Ledger, size: int) -> None:
        self._ledger = ledger
        self._pieces = 0
        self.size = size

    def hold(self) -> None:
        if not self._pieces:
            self._ledger.held_bytes += self.size
        self._pieces += 1

    def release(self) -> None:
        self._pieces -= 1
        if not self._pieces:
            self._ledger.held_bytes -= self.size


class Ledger:
    """Counts the bytes of all responses in memory."""

    __slots__ = ("held_bytes",)

    def __init__(self) -> None:
        self.held_bytes = 0


class Piece:
    """The whole batches of one response for one partition."""

    __slots__ = ("aborted", "answer", "data", "extent", "filter", "opened", "position")

    def __init__(
        self,
        data: memoryview,
        extent: Extent,
        answer: Answer,
        aborted: Sequence[AbortedTransaction] = (),
    ) -> None:
        self.data = data[: extent.size]
        self.extent = extent
        self.answer = answer
        self.aborted = aborted
        self.position = 0
        """The position of the next batch to decode."""
        self.opened = 0
        """The position of the batch that was decoded last."""
        self.filter = AbortedProducers(aborted)


class PartitionBuffer:
    """The prefetched pieces of one partition, in offset order."""

    def __init__(self, *, check_crcs: bool = True, committed_only: bool = False) -> None:
        self._check_crcs = check_crcs
        self._committed_only = committed_only
        self.pieces: deque[Piece] = deque()
        self.size = 0
        self.floor = 0
        self._rows: list[Row] = []
        self._at = 0
        self._header: BatchHeader | None = None

    def __bool__(self) -> bool:
        return bool(self.pieces)

    def clear(self, floor: int = 0) -> None:
        while self.pieces:
            self._drop_piece()
        self.floor = floor

    def push(self, piece: Piece) -> None:
        if not self._committed_only:
            piece.aborted = ()
        piece.answer.hold()
        self.pieces.append(piece)
        self.size += piece.extent.size

    def next_rows(self, limit: int) -> Rows | None:
        """Returns up to `limit` rows of one batch, or None when nothing is left.

        They stay in the buffer until `advance_to` passes them. A batch may have no rows for the
        reader: then the result is empty, and reading continues after it. Raises `CorruptBatch`.
        """
        if self._header is not None and self._at == len(self._rows):
            self._finish_batch()
        if self._header is None:
            if not self.pieces:
                return None
            self._open_next()
        header = self._header
        assert header is not None
        rows = self._rows[self._at : self._at + limit]
        last = self._at + len(rows) == len(self._rows)
        next_offset = header.next_offset if last else rows[-1][0] + 1
        return Rows(rows, header.timestamp_type, header.leader_epoch, max(next_offset, self.floor))

    def advance_to(self, offset: int) -> None:
        """Drops everything before `offset`."""
        self.floor = max(self.floor, offset)
        while self.pieces and self.pieces[0].extent.next_offset <= offset:
            self._drop_piece()
        if not self.pieces:
            return
        if self._header is not None:
            if offset < self._header.next_offset:
                self._at = max(self._at, bisect_left(self._rows, offset, key=_offset_of))
                return
            self._close_batch()
        piece = self.pieces[0]
        while (header := read_header(piece.data, piece.position)).next_offset <= offset:
            end = piece.position + header.size
            if piece.aborted:
                batch = piece.data[piece.position : end]
                piece.filter.passes(batch, header, DECOMPRESSED_BYTES_MAX)
            piece.position = end

    def skip_to(self, offset: int) -> bool:
        """Moves forward to `offset` if it is within the buffer. Returns False if not."""
        if not self.pieces or not self.floor <= offset < self.pieces[-1].extent.next_offset:
            return False
        self.advance_to(offset)
        return True

    def peek(self, rows_max: int, bytes_max: int) -> list[Span]:
        """Returns batches from the front: as many as fit both limits, but at least one."""
        spans: list[Span] = []
        rows = size = 0
        for piece in self.pieces:
            start = piece.opened if self._header is not None and not spans else piece.position
            span = _span(piece, start, rows_max - rows, bytes_max - size, first=not spans)
            if span is None:
                break
            spans.append(span)
            rows += span.rows
            size += span.size
            if span.next_offset < piece.extent.next_offset:
                break
        return spans

    def _open_next(self) -> None:
        piece = self.pieces[0]
        start = piece.position
        header = validate(piece.data, start, check_crc=self._check_crcs)
        batch = piece.data[start : start + header.size]
        wanted = not header.is_control
        if self._committed_only:
            wanted = piece.filter.passes(batch, header, DECOMPRESSED_BYTES_MAX)
        self._rows = _read_rows(batch, header, self.floor) if wanted else []
        self._at = 0
        self._header = header
        piece.opened = start
        piece.position = start + header.size

    def _close_batch(self) -> None:
        self._rows = []
        self._at = 0
        self._header = None

    def _finish_batch(self) -> None:
        self._close_batch()
        piece = self.pieces[0]
        if piece.position == piece.extent.size:
            self._drop_piece()

    def _drop_piece(self) -> None:
        piece = self.pieces.popleft()
        piece.answer.release()
        self.size -= piece.extent.size
        self._close_batch()


def _span(piece: Piece, start: int, rows_max: int, bytes_max: int, *, first: bool) -> Span | None:
    extent = piece.extent
    if rows_max >= extent.rows and bytes_max >= extent.size - start:
        end, rows, next_offset, epoch = extent.size, extent.rows, *extent[3:]
    else:
        end = start
        rows, next_offset, epoch = 0, -1, -1
        while end < extent.size:
            header = read_header(piece.data, end)
            fits = rows + header.record_count <= rows_max and end + header.size - start <= bytes_max
            if not fits and not (first and end == start):
                break
            end += header.size
            rows += header.record_count
            next_offset, epoch = header.next_offset, header.leader_epoch
        if end == start:
            return None
    # The aborted transactions are only known when reading from the first batch.
    begin = 0 if piece.aborted else start
    return Span(piece.data[begin:end], piece.aborted, end - start, rows, next_offset, epoch)


def _offset_of(row: Row) -> int:
    return row[0]


def _read_rows(batch: memoryview, header: BatchHeader, floor: int) -> list[Row]:
    if header.last_offset < floor:
        return []
    count = header.record_count
    reader = kernels.RecordReader(
        read_payload(batch[HEADER_SIZE:], header, DECOMPRESSED_BYTES_MAX),
        count,
        header.last_offset_delta,
        header.base_timestamp,
        append_timestamp(header),
    )
    # `tuple` of a tuple is that same tuple: the kernel makes tuples anyway.
    rows: list[Row] = kernels.read_records(reader, count, header.base_offset, tuple)
    if header.base_offset < floor:
        del rows[: bisect_left(rows, floor, key=_offset_of)]
    return rows
