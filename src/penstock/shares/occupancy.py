"""How many records of a share partition are in which state."""

from __future__ import annotations

from typing import NamedTuple

from penstock.shares.promoted_spans import SpanTables
from penstock.shares.states import RecordState


class Occupancy(NamedTuple):
    """The number of offsets in each state, for metrics and for the lag."""

    available: int
    acquired: int
    archiving: int
    done: int
    """Of the window only."""
    promoted: int
    """Those that are not in the window. They are in the other numbers, too."""


def occupancy_of(tables: SpanTables) -> Occupancy:
    counts = dict.fromkeys(RecordState, 0)
    for span in tables.spans:
        counts[span.state] += len(span)
    return Occupancy(
        counts[RecordState.AVAILABLE],
        counts[RecordState.ACQUIRED],
        counts[RecordState.ARCHIVING],
        counts[RecordState.ACKNOWLEDGED] + counts[RecordState.ARCHIVED],
        len(tables.promoted),
    )
