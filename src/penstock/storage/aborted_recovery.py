"""Opens a log's transaction indexes: decides which files to trust, and derives the others again.

A file is trusted if its segment was not read back and its CRC is the one in the checkpoint. All
other indexes are derived by replaying the producer state (`producer_state.restore_producers`), from
the first doubtful segment on. Doubtful are:

    segments that were read back      if they contain markers
    a file unlike the checkpoint      missing, changed, or not in the checkpoint at all
    a segment in the checkpoint       the segment that has its offsets now: compaction joined the
    that is gone                      two, and was interrupted before it could store that
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence

from crc32c import crc32c

from penstock.partition.transactions import CorruptTransactionIndex, decode_entries
from penstock.ports import Disk
from penstock.storage.aborted import AbortedIndex
from penstock.storage.checkpoints import read_file, write_atomic
from penstock.storage.files import TRANSACTION_INDEX, offset_name
from penstock.storage.segment import Segment


def aborted_notes(segments: Sequence[Segment]) -> tuple[tuple[int, int], ...]:
    """Returns, for the checkpoint, the segments whose file holds all of their aborted
    transactions."""
    return tuple(
        (segment.base_offset, segment.aborted.crc)
        for segment in segments
        if segment.aborted is not None and segment.aborted.crc is not None and segment.aborted.index
    )


class AbortedOpening:
    """The transaction indexes of a log that is being opened."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segments: Sequence[Segment],
        scanned: Sequence[Segment],
        *,
        marked: Collection[int],
        noted: Mapping[int, int],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._segments = segments
        self._scanned = {segment.base_offset for segment in scanned}
        self._marked = marked
        """Base offsets of segments in which a marker was found when they were read back."""
        self._noted = noted
        self.names_changed = False

    def load(self, files: Collection[int]) -> list[Segment]:
        """Loads the files that can be trusted. `files` are the base offsets of the segments that
        have one. Returns the doubtful segments, in order."""
        if not files and not self._noted and not self._marked:
            return []
        doubtful = []
        joined = self._joined()
        for segment in self._segments:
            base = segment.base_offset
            if base in self._scanned:
                is_doubtful = base in self._marked
            else:
                is_doubtful = base in joined or not self._believe(segment, base in files)
            if is_doubtful:
                doubtful.append(segment)
            if base in files and (is_doubtful or base in self._scanned):
                path = f"{self._directory}/{offset_name(base, TRANSACTION_INDEX)}"
                segment.pool.forget(path)
                self._disk.unlink(path)
                self.names_changed = True
        return doubtful

    def _joined(self) -> set[int]:
        bases = [segment.base_offset for segment in self._segments]
        return {
            bases[bisect_right(bases, base) - 1]
            for base in self._noted
            if base >= bases[0] and base not in bases
        }

    def _believe(self, segment: Segment, has_file: bool) -> bool:
        noted = self._noted.get(segment.base_offset)
        if noted is None or not has_file:
            return noted is None and not has_file
        path = f"{self._directory}/{offset_name(segment.base_offset, TRANSACTION_INDEX)}"
        data = read_file(self._disk, path) or b""
        if crc32c(data) != noted:
            return False
        try:
            segment.aborted = AbortedIndex(path, decode_entries(data))
        except CorruptTransactionIndex:
            return False
        segment.aborted.crc = noted
        return True

    def store(self, derived: Sequence[Segment]) -> None:
        """Writes the files of the segments whose index was derived, except the active segment after
        an unclean stop. That one is derived at every start."""
        for segment in derived:
            if segment.aborted is None:
                continue
            if segment.base_offset not in self._scanned:
                name = offset_name(segment.base_offset, TRANSACTION_INDEX)
                write_atomic(self._disk, self._directory, name, segment.aborted.take())
            elif segment is not self._segments[-1]:
                segment.aborted.write(segment.pool)
                self.names_changed = True
