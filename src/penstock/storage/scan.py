"""Walks a `.log` file batch by batch, in chunks of bounded memory.

There are two kinds of walk. `scan_headers` only follows batch lengths, to find a position in bytes
that are known to be sound; `read_fitting` does the same within the bytes that it reads.
`scan_batches` checks every CRC and the order of offsets. Recovery, verification and dumps use it.
All of them stop at the first bytes that cannot be a batch; `scan_headers` and `scan_batches` raise
`BadBatch`, which gives the position and the reason.

In a file that a crash extended with zeros, the walk stops at the first zero length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from penstock.partition.epochs import UNDEFINED_EPOCH
from penstock.partition.retention import RELATIVE_OFFSET_MAX
from penstock.ports import File
from penstock.records.batch import (
    BATCH_LENGTH_START,
    HEADER_SIZE,
    LEADER_EPOCH_START,
    LOG_OVERHEAD,
    MAGIC_START,
    BatchHeader,
    CorruptBatch,
    iter_batches,
    read_header,
    validate,
)
from penstock.storage.errors import LogDamaged

SCAN_CHUNK_BYTES: Final = 1 << 20
HEADER_CHUNK_BYTES: Final = 8 << 10
FIRST_CHUNK_BYTES: Final = 1 << 10
"""Most walks end at the first or second header."""
WALK_BYTES: Final = 64 << 10
"""If the index entry is further than this before the end of a read, the read first checks whether
the batch there fits, instead of reading bytes that it would drop."""


class BadBatch(Exception):
    """The bytes at `position` are not a valid batch for that position."""

    def __init__(self, position: int, reason: str, header: BatchHeader | None = None) -> None:
        super().__init__(f"at byte {position}: {reason}")
        self.header = header
        """The header of a batch that is whole but out of order. Either it or the batch before it is
        wrong."""
        self.position = position
        self.reason = reason


def scan_headers(file: File, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yields the position and header of each batch in [start, end), trusting the lengths."""
    position, chunk, chunk_start, chunk_bytes = start, b"", start, FIRST_CHUNK_BYTES
    while position < end:
        at = position - chunk_start
        if len(chunk) - at < HEADER_SIZE:
            chunk = file.pread(min(chunk_bytes, end - position), position)
            chunk_start, at = position, 0
            chunk_bytes = HEADER_CHUNK_BYTES
            if len(chunk) < HEADER_SIZE:
                raise BadBatch(position, f"only {len(chunk)} bytes are left, less than a header")
        header = read_header(chunk, at)
        if header.batch_length < HEADER_SIZE - LOG_OVERHEAD:
            raise BadBatch(position, f"a batch length of {header.batch_length} is impossible")
        if position + header.batch_length + LOG_OVERHEAD > end:
            raise BadBatch(
                position, f"a batch length of {header.batch_length} reaches beyond byte {end}"
            )
        yield position, header
        position += header.batch_length + LOG_OVERHEAD


def read_fitting(
    file: File, start: int, end: int, limit: int, first_end: int, guess: tuple[int, int] | None
) -> tuple[memoryview | None, BatchHeader | None]:
    """Returns the whole batches in [start, end) and the header of the next one. The first batch
    ends at `first_end`. No batch crosses `limit`, which is beyond `end`.

    `guess` comes from the index: the last offset and the position of a batch near the end. The
    bytes read there show whether it is right. If it is wrong, no data is returned.
    """
    last_offset, position = guess if guess is not None else (-1, first_end)
    near = end if end - position <= WALK_BYTES else position
    data = memoryview(file.pread(min(near + HEADER_SIZE, limit) - start, start))
    while True:
        at = position - start
        if len(data) - at < HEADER_SIZE:
            if near == end:
                # The file is shorter than it was.
                return data[:at], None
            near = end
            data = memoryview(file.pread(min(end + HEADER_SIZE, limit) - start, start))
            continue
        header = read_header(data, at)
        if last_offset not in (-1, header.last_offset):
            return None, None
        last_offset = -1
        size = header.batch_length + LOG_OVERHEAD
        if size < HEADER_SIZE or position + size > end:
            # A bad length ends the good part. The next read reports the error.
            return data[:at], header if HEADER_SIZE <= size <= limit - position else None
        position += size


def scan_batches(
    file: File,
    start: int,
    end: int,
    *,
    offset_min: int = 0,
    offset_end: int | None = None,
    epoch_min: int = -1,
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yields the position, header and bytes of each sound batch in [start, end). Raises `BadBatch`
    at the first bad one.

    Offsets must increase and be within [offset_min, offset_end). Leader epochs must not decrease.
    """
    position, chunk, chunk_start = start, memoryview(b""), start
    while position < end:
        at = position - chunk_start
        for least in (SCAN_CHUNK_BYTES, 0):
            # The first pass reads the next chunk, the second a batch that is larger than a chunk.
            needed = _needed(chunk, at, end - position)
            if len(chunk) - at < needed:
                size = min(max(needed, least), end - position)
                chunk, chunk_start, at = memoryview(file.pread(size, position)), position, 0
        try:
            header = validate(chunk, at)
        except CorruptBatch as error:
            raise BadBatch(position, str(error)) from None
        # The CRC covers neither the offset nor the epoch, so their order is checked.
        if header.base_offset < offset_min or header.leader_epoch < epoch_min:
            raise BadBatch(
                position,
                f"the batch has offset {header.base_offset} and leader epoch "
                f"{header.leader_epoch}; at least offset {offset_min} and leader epoch "
                f"{epoch_min} were expected",
                header,
            )
        if offset_end is not None and header.last_offset >= offset_end:
            raise BadBatch(
                position,
                f"offset {header.last_offset} belongs to the next segment, which starts at "
                f"{offset_end}",
            )
        yield position, header, chunk[at : at + header.size]
        offset_min, epoch_min = header.next_offset, header.leader_epoch
        position += header.size


def _needed(chunk: memoryview, at: int, remaining: int) -> int:
    """Returns how many bytes the batch at `at` needs, as far as the chunk shows."""
    if len(chunk) - at < HEADER_SIZE:
        return HEADER_SIZE
    field = chunk[at + BATCH_LENGTH_START : at + LEADER_EPOCH_START]
    length = int.from_bytes(field, "big", signed=True) + LOG_OVERHEAD
    # Do not read by an impossible length; `validate` reports it.
    return length if HEADER_SIZE <= length <= remaining else HEADER_SIZE


def sound_prefix(
    data: memoryview, end_offset: int, epoch_at: Callable[[int], int]
) -> tuple[int, int, int, str]:
    """Returns how far `data` holds sound batches, the last offset and the position of the last one,
    and what is wrong with the bytes after it. Offsets must increase and stay below `end_offset`,
    and each batch must have the epoch that wrote its offsets."""
    good, last, last_position = 0, -1, 0
    try:
        for position, header in iter_batches(data):
            if header.base_offset <= last:
                # Either of the two may be the wrong one.
                return (
                    last_position,
                    last,
                    last_position,
                    (f"offset {header.base_offset} follows offset {last}"),
                )
            if header.last_offset >= end_offset:
                reason = (
                    f"the batch ends with offset {header.last_offset}, but must end below "
                    f"{end_offset}"
                )
                return good, last, last_position, reason
            epoch = epoch_at(header.last_offset)
            if epoch not in (UNDEFINED_EPOCH, header.leader_epoch):
                reason = (
                    f"the batch has leader epoch {header.leader_epoch}, but leader epoch {epoch} "
                    "wrote this offset"
                )
                return good, last, last_position, reason
            good, last, last_position = position + header.size, header.last_offset, position
    except CorruptBatch as error:
        return good, last, last_position, str(error)
    return good, last, last_position, "the file is shorter than it was"


def find_batch(file: File, start: int, end: int, offset_min: int, offset_end: int) -> int | None:
    """Returns where the next sound batch begins after bad bytes. Its CRC makes a false match
    unlikely.

    Reads one chunk at a time, because up to a gigabyte may follow the bad bytes.
    """
    position = start
    while end - position >= HEADER_SIZE:
        chunk = file.pread(min(SCAN_CHUNK_BYTES, end - position), position)
        # A batch may begin anywhere in the chunk where a whole header fits.
        begins = len(chunk) - HEADER_SIZE + 1
        at = chunk.find(b"\x02", MAGIC_START, max(0, begins) + MAGIC_START)
        while at >= 0:
            candidate = at - MAGIC_START
            base_offset = int.from_bytes(chunk[candidate : candidate + 8], "big", signed=True)
            if offset_min <= base_offset < offset_end:
                header = read_header(chunk, candidate)
                found_at = position + candidate
                if header.last_offset < offset_end and _is_sound(file, found_at, header.size, end):
                    return found_at
            at = chunk.find(b"\x02", at + 1, begins + MAGIC_START)
        if begins <= 0:
            # The file is shorter than it was.
            return None
        position += begins
    return None


def _is_sound(file: File, position: int, size: int, end: int) -> bool:
    if not HEADER_SIZE <= size <= end - position:
        return False
    try:
        validate(file.pread(size, position))
    except CorruptBatch:
        return False
    return True


Holes = tuple[tuple[int, int], ...]
"""Quarantined ranges of a file, as [start, end) positions in ascending order."""


def headers_outside(
    holes: Holes, file: File, path: str, start: int, end: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Yields what `scan_headers` finds outside the holes. Raises `LogDamaged` for a bad batch."""
    try:
        for hole_start, hole_end in holes:
            if start <= hole_start:
                yield from scan_headers(file, start, hole_start)
            start = max(start, hole_end)
        yield from scan_headers(file, start, end)
    except BadBatch as error:
        raise _damaged(path, error) from error


def batches_outside(
    holes: Holes, file: File, path: str, start: int, end: int, *, base_offset: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Yields what `scan_batches` finds outside the holes. Raises `LogDamaged` for a bad batch."""
    offset_min = base_offset
    offset_end = base_offset + RELATIVE_OFFSET_MAX + 1
    try:
        for hole_start, hole_end in (*holes, (end, end)):
            if start > hole_start:
                continue
            for position, header, _ in scan_batches(
                file, start, hole_start, offset_min=offset_min, offset_end=offset_end
            ):
                yield position, header
                offset_min = header.next_offset
            start = hole_end
    except BadBatch as error:
        raise _damaged(path, error) from error


def _damaged(path: str, error: BadBatch) -> LogDamaged:
    return LogDamaged(f"{path} is damaged {error}; read from another replica, or restore the file")
