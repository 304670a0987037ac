"""What is durable of a schedule: which records were promoted.

All records of the index with `floor <= offset < end` and `(due, offset) <= (due_ms, due_offset)`
have been promoted, and no others. A cursor only moves forward: neither its end nor its due time and
offset decrease. So it has the same size whatever the number of records.
"""

from __future__ import annotations

from typing import Final, NamedTuple

TIME_MAX: Final = 2**63 - 1


class DueEntry(NamedTuple):
    """A record and its due time. Entries are in order of time, then of offsets."""

    due_ms: int
    """Wall-clock time."""
    offset: int


class ScheduleCursor(NamedTuple):
    """See the module's docstring. Of two values with the same floor the greater is the later."""

    floor: int
    """Records below it do not belong to the schedule."""
    end: int
    """Records from it on have not been looked at."""
    due_ms: int = 0
    due_offset: int = -1

    @classmethod
    def starting_at(cls, offset: int) -> ScheduleCursor:
        """Returns the cursor of a schedule that has promoted nothing."""
        return cls(offset, offset)

    @property
    def due(self) -> DueEntry:
        """The last entry that was promoted in order of time, or a later point in time."""
        return DueEntry(self.due_ms, self.due_offset)

    def has_promoted(self, entry: DueEntry) -> bool:
        return self.floor <= entry.offset < self.end and entry <= self.due

    def truncated(self, offset: int) -> ScheduleCursor:
        """Returns the cursor after the log has lost all records from an offset on."""
        return self._replace(floor=min(self.floor, offset), end=min(self.end, offset))
