"""Finds promoted records in batches of the log, for `Acquire`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from penstock.shares.events import BatchKind, LogBatch
from penstock.shares.record_marks import Mark
from penstock.shares.spans import Span

PARTS_MAX: Final = 1000
"""How many parts one attempt to acquire records visits."""


def promoted_parts(
    spans: Iterable[Span], read_from: int, batches: Sequence[LogBatch], marks: Mapping[int, Mark]
) -> tuple[LogBatch, ...]:
    """Returns a part for each available promoted record in the batches, in order, up to a limit.

    It ends before the first record whose times are not in `marks`: they are still being read.
    `batches` are all batches of the log from `read_from` on, up to a limit. A record that is not in
    them does not exist any more: its part is a control batch.
    """
    parts: list[LogBatch] = []
    at, last = 0, batches[-1].last if batches else -1
    for span in spans:
        if not span.is_open:
            continue
        for offset in range(max(span.first, read_from), min(span.last, last) + 1):
            mark = marks.get(offset)
            if mark is None or len(parts) == PARTS_MAX:
                return tuple(parts)
            while batches[at].last < offset:
                at += 1
            batch = batches[at]._replace(first=offset, last=offset)
            if batches[at].first > offset:
                batch = batch._replace(kind=BatchKind.CONTROL)
            else:
                batch = batch._replace(due_ms=mark.due_ms, expires_ms=mark.expires_ms)
            parts.append(batch)
    return tuple(parts)
