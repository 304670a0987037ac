"""Installs the result of compaction in a log: cleaned segments, and how far the log is cleaned.

The cleaned file is renamed to `.swap` durably. From then on, opening the log can finish the swap.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from penstock.storage.files import CLEANED, SNAPSHOT, finish_swap, offset_name, swap_name
from penstock.storage.log_files import LogFiles
from penstock.storage.log_state import LogState
from penstock.storage.segment import Segment


class LogCompaction:
    """Replaces segments with their cleaned versions. `cleaner` writes those."""

    __slots__ = ("_files", "_state")

    def __init__(self, state: LogState, files: LogFiles) -> None:
        self._state = state
        self._files = files

    def swap_in(self, cleaned: Segment, replaced: Sequence[tuple[Segment, int]]) -> bool:
        """Replaces a run of adjacent segments with one cleaned segment.

        `replaced` are the segments with the sizes they had when they were read. The files of the
        cleaned segment are complete, durable and named `.cleaned`. Returns False and drops them if
        the log no longer has the segments they were made from.
        """
        state = self._state
        self._files.check_idle()
        first = bisect_left(state.bases, cleaned.base_offset)
        after = first + len(replaced)
        same = after < len(state.segments) and all(
            held is segment and held.size == size
            for held, (segment, size) in zip(state.segments[first:after], replaced, strict=True)
        )
        if not same:
            cleaned.files.drop_cleaned()
            return False
        covered = (cleaned.base_offset, state.bases[after])
        name = swap_name(*covered)
        try:
            for segment in state.segments[first:after]:
                self._files.forget(segment)
            state.disk.rename(cleaned.path + CLEANED, f"{state.directory}/{name}")
            state.disk.sync_directory(state.directory)
            finish_swap(state.disk, state.directory, name, covered)
            for path in cleaned.files.paths()[1:]:
                if state.disk.exists(path + CLEANED):
                    state.disk.rename(path + CLEANED, path)
            for segment, _ in replaced[1:]:
                self._files.drop(f"{state.directory}/{offset_name(segment.base_offset, SNAPSHOT)}")
            state.disk.sync_directory(state.directory)
        except OSError as error:
            state.fail(f"a compacted segment could not be installed: {error}")
            state.refuse()
        state.segments[first:after] = [cleaned]
        state.bases[first:after] = [cleaned.base_offset]
        return True

    def note_sparse(self, offset: int) -> None:
        """Records that gaps below `offset` come from compaction. Durable before there are any
        gaps."""
        state = self._state
        self._files.check_idle()
        if offset > state.sparse_offset:
            noted = state.checkpoint(state.recovery_point)
            self._files.write_checkpoint(replace(noted, sparse_offset=offset))
            state.sparse_offset = offset

    def note_cleaned(self, offset: int) -> None:
        """Records that compaction has covered everything below `offset`. The next checkpoint stores
        it.

        If that is lost in a crash, the same range is cleaned again, with no effect.
        """
        state = self._state
        state.cleaned_offset = offset
        state.names_dirty = True
