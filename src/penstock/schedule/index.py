"""The due times of the records of a partition. Derived from the log, for any number of cursors.

`DueIndex` is what `advance` needs. Its calls may read files, so they block and raise `OSError`.
`MemoryDueIndex` keeps everything in memory: it is for tests, and the reference for others.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol

from penstock.schedule.cursor import DueEntry


class DueIndex(Protocol):
    @property
    def end(self) -> int:
        """The records below this offset are in the index."""

    def late(self, due: DueEntry, first: int, end: int, limit: int) -> Sequence[DueEntry]:
        """Returns entries up to `due` with `first <= offset < end`: those with the lowest offsets,
        in order of offsets."""

    def after(self, due: DueEntry, first: int, end: int, limit: int) -> Sequence[DueEntry]:
        """Returns the next entries after `due` with `first <= offset < end`, in order of time."""


class MemoryDueIndex:
    """A `DueIndex` in memory."""

    def __init__(self, end: int = 0) -> None:
        self.end = end
        self._entries: list[DueEntry] = []

    def has_any(self, first: int, end: int) -> bool:
        """Returns whether there are entries with `first <= offset < end`."""
        return any(first <= each.offset < end for each in self._entries)

    def add(self, entries: Iterable[DueEntry], end: int) -> None:
        """Adds the entries of the records from the end of the index up to a new end."""
        for entry in entries:
            insort(self._entries, entry)
        self.end = end

    def late(self, due: DueEntry, first: int, end: int, limit: int) -> Sequence[DueEntry]:
        entries = self._entries[: bisect_right(self._entries, due)]
        found = (each for each in entries if first <= each.offset < end)
        return sorted(found, key=lambda each: each.offset)[:limit]

    def after(self, due: DueEntry, first: int, end: int, limit: int) -> Sequence[DueEntry]:
        entries = self._entries[bisect_right(self._entries, due) :]
        return list(islice((each for each in entries if first <= each.offset < end), limit))
