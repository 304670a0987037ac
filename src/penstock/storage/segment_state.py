"""The state of a segment: its files, which bytes were verified, where the last read ended."""

from __future__ import annotations

from penstock.partition.producers import CompletedTransaction
from penstock.records.batch import NO_TIMESTAMP, BatchHeader
from penstock.storage.aborted import AbortedIndex
from penstock.storage.files import (
    CLEANED,
    INDEX,
    LOG,
    TIME_INDEX,
    TRANSACTION_INDEX,
    FilePool,
    Handle,
    offset_name,
)
from penstock.storage.index import IndexCache, OffsetIndex, TimeIndex


class SegmentState:
    """The files of a segment and what is known about them. `segment.Segment` adds writes and
    reads."""

    __slots__ = (
        "_appended_from",
        "_handle",
        "_next_header",
        "_next_position",
        "_since_indexed",
        "aborted",
        "base_offset",
        "created_ms",
        "cuts",
        "damaged",
        "directory",
        "first_timestamp",
        "index",
        "index_interval_bytes",
        "max_timestamp",
        "max_timestamp_offset",
        "path",
        "pool",
        "size",
        "time_index",
        "verified",
    )

    def __init__(
        self,
        directory: str,
        base_offset: int,
        pool: FilePool,
        cache: IndexCache,
        *,
        created_ms: int,
        index_interval_bytes: int = 4096,
    ) -> None:
        stem = f"{directory}/{offset_name(base_offset, '')}"
        self.directory = directory
        self.base_offset = base_offset
        self.path = stem + LOG
        self.pool = pool
        self._handle: Handle | None = None
        self._next_position = 0
        """Where the last read ended, a batch boundary. 0 if it may no longer be one."""
        self._next_header: BatchHeader | None = None
        """The header of the batch at that position, if the read saw it."""
        self.size = 0
        self.cuts = 0
        """Grows whenever existing bytes may be gone: after a truncation, a quarantine, or the
        removal of the segment from its log."""
        self.verified = 0
        """Bytes from the start of the file whose CRCs this process has checked."""
        self._appended_from = -1
        """Where this process began to append after bytes that it had not verified; -1 if it did
        not."""
        self.damaged: tuple[tuple[int, int], ...] = ()
        """Quarantined ranges of the file, as [start, end) positions. They are never read."""
        self.index = OffsetIndex(stem + INDEX, pool, cache)
        self.time_index = TimeIndex(stem + TIME_INDEX, pool)
        self.aborted: AbortedIndex | None = None
        """The transactions aborted by markers in this segment; None if there never were any."""
        self.index_interval_bytes = index_interval_bytes
        self.created_ms = created_ms
        self.first_timestamp: int | None = None
        """The highest timestamp of the first batch. The age of the segment is counted from it."""
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self._since_indexed = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path}, {self.size} bytes)"

    @property
    def aborted_path(self) -> str:
        return self.path.removesuffix(LOG) + TRANSACTION_INDEX

    def paths(self) -> tuple[str, str, str, str]:
        """Returns the paths of all files, the `.log` file first."""
        return self.path, self.index.path, self.time_index.path, self.aborted_path

    def written_paths(self) -> list[str]:
        """Returns the files that exist. An index has no file before it is spilled or sealed."""
        return [path for path in self.paths() if self.pool.disk.exists(path)]

    def note_aborted(self, ended: CompletedTransaction) -> None:
        """Records a transaction that was aborted by a marker in this segment."""
        if self.aborted is None:
            self.aborted = AbortedIndex(self.aborted_path)
        self.aborted.add(ended)

    def drop_cleaned(self) -> None:
        """Removes the files of a compaction that was abandoned."""
        for path in self.paths():
            if self.pool.disk.exists(path + CLEANED):
                self.pool.disk.unlink(path + CLEANED)
