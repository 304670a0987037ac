"""File spans: batches that are sent directly from their file, without being read.

A span only covers bytes that this process has verified. Other bytes must be read and checked first.
A span holds no file open, so any number of them can wait for slow readers. Appends do not affect a
span. After its segment was truncated, compacted or deleted, the span raises OSError and the reader
must fetch again.
"""

from __future__ import annotations

from errno import EIO, ESTALE
from typing import Final

from penstock.records.batch import BatchHeader
from penstock.storage.segment import Segment

SPAN_BYTES_MIN: Final = 128 << 10
"""Reading and copying less than this is just as fast."""


class FileSpan:
    """Whole batches in a file, by position and size."""

    __slots__ = ("_cuts", "_segment", "_size", "position")

    def __init__(self, segment: Segment, position: int, size: int) -> None:
        self._segment = segment
        self._cuts = segment.cuts
        self._size = size
        self.position = position

    def __len__(self) -> int:
        return self._size

    @property
    def segment_base(self) -> int:
        return self._segment.base_offset

    def fileno(self) -> int:
        """Returns the file's descriptor. It is valid until the caller yields to the event loop."""
        self._check()
        # Only files of the real disk have one, and only a real network asks for it.
        number: int = self._segment.file.fileno()  # type: ignore[attr-defined]
        return number

    def read(self, skip: int = 0, bytes_max: int | None = None) -> memoryview:
        """Returns the bytes after the first `skip`, all of them or at most `bytes_max`, for a
        connection that cannot send from a file."""
        self._check()
        size = self._size - skip
        if bytes_max is not None:
            size = min(size, bytes_max)
        data = self._segment.file.pread(size, self.position + skip)
        if len(data) < size:
            raise OSError(EIO, "the file is shorter than it was", self._segment.path)
        return memoryview(data)

    def _check(self) -> None:
        if self._segment.cuts != self._cuts:
            raise OSError(
                ESTALE, "the log was truncated while it was being sent", self._segment.path
            )


def find_span(
    segment: Segment, start: int, bytes_max: int, limit: int, first_size: int
) -> FileSpan | None:
    """Returns a span of whole batches from `start`, as many as fit. Returns None if they must be
    read: because they are too small, not verified, or on a disk without file descriptors, such as a
    simulated one."""
    end = min(start + bytes_max, limit)
    if end - start < SPAN_BYTES_MIN or not segment.has_verified(start, end):
        return None
    if not hasattr(segment.file, "fileno"):
        return None
    following = None
    if end < limit:
        if start + first_size >= end:
            return None
        found = _last_boundary(segment, end, start + first_size)
        if found is None:
            return None
        end, following = found
        if end - start < SPAN_BYTES_MIN:
            return None
    segment.note_read(end, following)
    return FileSpan(segment, start, end - start)


def _last_boundary(segment: Segment, end: int, above: int) -> tuple[int, BatchHeader] | None:
    """Returns the position and header of the first batch that does not fit, searching from the
    batch boundary `above`."""
    entry = segment.index.boundary_at_or_below(end, above)
    start = above if entry is None else entry[1]
    for position, header in segment.headers(start):
        if (
            position == start
            and entry is not None
            and (header.last_offset != segment.base_offset + entry[0])
        ):
            # The index is wrong. A read will detect that too, and rebuild it.
            return None
        if position + header.size > end:
            return position, header
    return None
