"""The files of a segment: their names, and its two indexes, which are written and removed together.

A segment has a `.log` file, an `.index` of offsets, a `.timeindex`, and a `.txnindex` if a marker
in it aborted a transaction. The segment fills the indexes in memory, this module writes them.
"""

from __future__ import annotations

import sys

from penstock.storage.checkpoints import write_atomic
from penstock.storage.files import (
    CLEANED,
    INDEX,
    LOG,
    TIME_INDEX,
    TRANSACTION_INDEX,
    FilePool,
    offset_name,
)
from penstock.storage.index import SPILL_ENTRIES, IndexCache, OffsetIndex, TimeIndex, begin_file


class SegmentFiles:
    """The names of a segment's files, and its indexes."""

    __slots__ = ("_pool", "aborted_path", "directory", "index", "log_path", "time_index")

    def __init__(self, directory: str, base_offset: int, pool: FilePool, cache: IndexCache) -> None:
        stem = f"{directory}/{offset_name(base_offset, '')}"
        self._pool = pool
        self.directory = directory
        self.log_path = stem + LOG
        self.aborted_path = stem + TRANSACTION_INDEX
        self.index = OffsetIndex(stem + INDEX, pool, cache)
        self.time_index = TimeIndex(stem + TIME_INDEX, pool)

    def paths(self) -> tuple[str, str, str, str]:
        """Returns the paths of all files, the `.log` file first."""
        return self.log_path, self.index.path, self.time_index.path, self.aborted_path

    def written_paths(self) -> list[str]:
        """Returns the files that exist. An index has no file before it is spilled or sealed."""
        return [path for path in self.paths() if self._pool.disk.exists(path)]

    def drop_cleaned(self) -> None:
        """Removes the files of a compaction that was abandoned."""
        for path in self.paths():
            if self._pool.disk.exists(path + CLEANED):
                self._pool.disk.unlink(path + CLEANED)

    def seal_indexes(self, *, has_batches: bool) -> None:
        """Writes all index entries to files. Called when appends end."""
        for index in (self.index, self.time_index):
            index.spill()
            if has_batches and not index.spilled:
                # An index may have no entries, but a sealed segment must have its file.
                begin_file(self._pool, index.path)

    def hold_indexes(self) -> None:
        """Keeps all index entries in memory. Used while the index files still belong to another
        segment."""
        self.index.spill_at = self.time_index.spill_at = sys.maxsize

    def take_indexes(self) -> list[tuple[str, bytes]]:
        """Returns the held indexes as path and content. From now on they count as written to
        files."""
        taken = []
        for index in (self.index, self.time_index):
            taken.append((index.path, index.encode()))
            index.mark_spilled()
        return taken

    def write_held_indexes(self) -> None:
        """Writes the held indexes atomically, so that each file is complete or absent."""
        for path, data in self.take_indexes():
            write_atomic(self._pool.disk, self.directory, path.rpartition("/")[2], data)
        self.index.spill_at = self.time_index.spill_at = SPILL_ENTRIES

    def remove_indexes(self) -> None:
        """Removes both index files, and all entries."""
        for path in (self.index.path, self.time_index.path):
            self._pool.forget(path)
            if self._pool.disk.exists(path):
                self._pool.disk.unlink(path)
        self.index.clear()
        self.time_index.clear()
