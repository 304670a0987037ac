"""Finds the oldest records of a share partition, which are given up if the queue is too long.

This is for groups without dead letters. The shell limits how many scheduled ranges one event has:
each of them, and each range between them, is a span, until the drop is durable.
"""

from __future__ import annotations

from penstock.shares.events import DropOldest
from penstock.shares.share_schedule import ShareSchedule
from penstock.shares.spans import Span, SpanTable
from penstock.shares.states import RecordState


def oldest(
    table: SpanTable, event: DropOldest, schedule: ShareSchedule
) -> tuple[list[Span], list[tuple[int, int]]]:
    """Extends the window up to `event.below`. Returns the spans to give up, and the ranges of
    scheduled records: the window passes over them, and they stay scheduled."""
    scheduled: list[tuple[int, int]] = []
    for first, last in event.far:
        covered = schedule.covered(first, min(last, event.below - 1))
        if covered is not None:
            _extend(table, covered[0])
            _extend(table, covered[1] + 1)
            for span in table.cut(*covered):
                if span.is_open:
                    span.state, span.not_before_ms = RecordState.ARCHIVED, 0
                    scheduled.append((span.first, span.last))
    _extend(table, event.below)
    return table.open_below(event.below), scheduled


def _extend(table: SpanTable, end: int) -> None:
    if end > table.end:
        table.extend(Span(table.end, end - 1, RecordState.AVAILABLE))
