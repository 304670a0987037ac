"""Moves a cursor forward, and says which records that promotes.

First the end moves up. Of the records that it passes, some may be due at a time that the cursor has
passed already: they are *late*, and are promoted in order of their offsets. Then the due time moves
up to now, and promotes records in order of their due times.

Both go only as far as there is room. So a crowd of records that are due at the same moment is
promoted in pieces, and the cursor always says exactly which.

The caller stores the new cursor and what becomes of the entries together, before it acts on them.
If that fails, it goes on with the earlier cursor and gets the same entries again. A new leader with
an index of its own goes on in the same way, because entries are facts of the log.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.schedule.cursor import DueEntry, ScheduleCursor
from penstock.schedule.index import DueIndex


class Advance(NamedTuple):
    entries: tuple[DueEntry, ...]
    """What is promoted: late records first, then the others in order of their due times."""
    cursor: ScheduleCursor
    """If it has passed no record of the index, it need not be stored: any leader finds out the
    same."""
    next_ms: int | None
    """The next due time. It has come if there was too little room. None: nothing is scheduled."""


def advance(
    cursor: ScheduleCursor, index: DueIndex, readable_end: int, now_ms: int, room: int
) -> Advance:
    """Returns what to promote now, at most `room` records.

    Only records below `readable_end` are promoted. While the index is being built again, and has
    not reached the end of the cursor, nothing is.
    """
    end = min(index.end, readable_end)
    if end < cursor.end:
        return Advance((), cursor, None)
    late: tuple[DueEntry, ...] = ()
    if end > cursor.end:
        found = index.late(cursor.due, cursor.end, end, room + 1)
        late = tuple(found[:room])
        if len(found) > room:
            end = found[room].offset
            return Advance(late, cursor._replace(end=end), found[room].due_ms)
        cursor = cursor._replace(end=end)
        room -= len(late)
    ahead = index.after(cursor.due, cursor.floor, end, room + 1)
    due = [each for each in ahead[:room] if each.due_ms <= now_ms]
    next_ms = ahead[len(due)].due_ms if len(due) < len(ahead) else None
    reached = cursor.due
    if next_ms is None or next_ms > now_ms:
        reached = max(reached, DueEntry(now_ms, end - 1))
    elif due:
        reached = due[-1]
    cursor = cursor._replace(due_ms=reached.due_ms, due_offset=reached.offset)
    return Advance((*late, *due), cursor, next_ms)
