"""The records of a delay topic's partition that are due next. Pure.

Memory is bounded: the window keeps the earliest `limit` records at least, and at most twice as
many. Of later ones it only remembers that they exist. When all records of the window are copied,
the caller reads the log again from `floor` on, to find the next ones.
"""

from __future__ import annotations

from heapq import heappop, heappush

from penstock.schedule.cursor import DueEntry


class DueWindow:
    """See the module's docstring."""

    __slots__ = ("_floor", "_heap", "_left_out_floor", "_limit", "_popped", "cut", "left_out")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._heap: list[DueEntry] = []
        self.cut: DueEntry | None = None
        """Records from this one on are left out."""
        self.left_out = 0
        self._left_out_floor: int | None = None
        self._floor = 0
        """No record of the heap has a lower offset."""
        self._popped = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def first(self) -> DueEntry | None:
        return self._heap[0] if self._heap else None

    @property
    def is_used_up(self) -> bool:
        """Whether only records that were left out may be due next."""
        return not self._heap and self.cut is not None

    def add(self, entry: DueEntry) -> None:
        if self.cut is not None and entry >= self.cut:
            self._leave_out(entry)
            return
        if not self._heap:
            self._floor, self._popped = entry.offset, 0
        else:
            self._floor = min(self._floor, entry.offset)
        heappush(self._heap, entry)
        if len(self._heap) > 2 * self._limit:
            self._heap.sort()
            left_out = self._heap[self._limit :]
            del self._heap[self._limit :]
            self.cut = left_out[0]
            for each in left_out:
                self._leave_out(each)

    def pop(self) -> DueEntry:
        self._popped += 1
        return heappop(self._heap)

    def floor(self) -> int | None:
        """Returns an offset below which no record waits. None: none waits at all.

        It is not always the highest such offset, because finding that takes long.
        """
        if not self._heap:
            return self._left_out_floor
        if self._popped > len(self._heap) // 4:
            self._floor, self._popped = min(each.offset for each in self._heap), 0
        if self._left_out_floor is None:
            return self._floor
        return min(self._floor, self._left_out_floor)

    def _leave_out(self, entry: DueEntry) -> None:
        self.left_out += 1
        if self._left_out_floor is None or entry.offset < self._left_out_floor:
            self._left_out_floor = entry.offset
