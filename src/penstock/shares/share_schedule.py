"""The far due times of a share partition: which records its window passes over, and which of them
were promoted.

A record is *far* if it is due more than `FAR_MS` after its own timestamp. That is a fact of the
log, so every leader decides the same. The window passes over far records of the schedule, as if
nothing were there. The schedule promotes each of them when it is due: from then on it is a span of
its own beside the window.

A schedule begins at the end of the window when the topic gets timed records, and covers all offsets
from there on. When the topic loses the setting, the schedule is *closed* at the end of the window:
it goes on with the records below, and those above are plain. It has *ended* when all of its records
were promoted, and the window starts above them. Only then another one can begin; until then far
records hold their places in the window, as others do.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.schedule.cursor import ScheduleCursor

FAR_MS: Final = 60_000


class ShareSchedule(NamedTuple):
    """See the module's docstring."""

    number: int = 0
    """How many schedules have begun. 0: there is none."""
    ceiling: int = -1
    """Records from it on do not belong to the schedule. -1: it is open."""
    cursor: ScheduleCursor = ScheduleCursor(0, 0)

    @property
    def is_open(self) -> bool:
        return self.number > 0 and self.ceiling < 0

    @property
    def has_ended(self) -> bool:
        return self.number == 0 or 0 <= self.ceiling <= self.cursor.floor

    def covers(self, offset: int) -> bool:
        """Whether a far record at this offset belongs to the schedule."""
        return (
            self.number > 0
            and offset >= self.cursor.floor
            and (self.ceiling < 0 or offset < self.ceiling)
        )

    def covered(self, first: int, last: int) -> tuple[int, int] | None:
        """Returns the part of a range whose far records belong to the schedule."""
        first = max(first, self.cursor.floor)
        if self.ceiling >= 0:
            last = min(last, self.ceiling - 1)
        return (first, last) if self.number and first <= last else None

    def next_border(self, offset: int) -> int | None:
        """Returns the first offset after this one where `covers` changes; None if there is none."""
        borders = (self.cursor.floor, self.ceiling) if self.number else ()
        return min((each for each in borders if each > offset), default=None)

    def switched(self, window_end: int, *, is_timed: bool) -> ShareSchedule:
        """Returns the schedule after the topic has got, or lost, timed records."""
        if is_timed and self.has_ended:
            return ShareSchedule(self.number + 1, -1, ScheduleCursor.starting_at(window_end))
        if not is_timed and self.is_open:
            return self._replace(ceiling=window_end)
        return self

    def advanced(self, cursor: ScheduleCursor, *, is_last: bool = False) -> ShareSchedule:
        """`is_last`: nothing is left of a closed schedule."""
        if is_last and 0 <= self.ceiling <= cursor.end:
            cursor = cursor._replace(floor=self.ceiling, end=self.ceiling)
        return self._replace(cursor=cursor)

    def merged(self, other: ShareSchedule) -> ShareSchedule:
        """Returns the later of two values, or what is later of each: the writes that stored them
        may have overtaken each other."""
        if self.number != other.number:
            return max(self, other)
        ceiling = max(self.ceiling, other.ceiling)
        return ShareSchedule(self.number, ceiling, max(self.cursor, other.cursor))

    def truncated(self, offset: int) -> ShareSchedule:
        """Returns the schedule after the log has lost all records from an offset on."""
        return ShareSchedule(self.number, min(self.ceiling, offset), self.cursor.truncated(offset))


NO_SCHEDULE: Final = ShareSchedule()
