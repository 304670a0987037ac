"""What each reader saw, one read after the other.

E6   within one poll a place's records follow each other, none left out
E7   from one poll of a process to its next too, unless its position was set in between

A poll that failed has moved nothing. Records follow each other by rank: the order of all offsets
that anybody knows of; for who reads committed records, of those that were committed. So offsets at
which there is no record for anybody are no gap. Nor are those that were deleted on request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from penstock.sim.checker_logs import PlaceLog, Violation
from penstock.sim.history import OK, Drain, Entry, Poll


def check_reads(entries: Iterable[Entry], logs: Mapping[str, PlaceLog]) -> Iterator[Violation]:
    last: dict[tuple[str, str], int] = {}
    for entry in entries:
        if isinstance(entry, Drain) and entry.status == OK:
            yield from _within(entry, entry.place, entry.records, logs)
        if not isinstance(entry, Poll):
            continue
        for place in entry.moved:
            last.pop((entry.process, place), None)
        if entry.status != OK:
            continue
        for place, records in entry.reads.items():
            if not records:
                continue
            yield from _within(entry, place, records, logs)
            previous = last.get((entry.process, place))
            if previous is not None:
                yield from _follows("E7", entry, place, previous, records[0][0], logs)
            last[entry.process, place] = records[-1][0]


def _within(
    entry: Poll | Drain,
    place: str,
    records: tuple[tuple[int, str], ...],
    logs: Mapping[str, PlaceLog],
) -> Iterator[Violation]:
    for (previous, _), (offset, _) in pairwise(records):
        yield from _follows("E6", entry, place, previous, offset, logs)


def _follows(
    rule: str,
    entry: Poll | Drain,
    place: str,
    previous: int,
    offset: int,
    logs: Mapping[str, PlaceLog],
) -> Iterator[Violation]:
    log = logs[place]
    ranks = log.committed_ranks if entry.committed else log.ranks
    if offset <= previous:
        text = f"{entry.process} read offset {offset} after {previous}"
        yield Violation(rule, place, text, offset)
        return
    if offset not in ranks or previous not in ranks:
        return  # Aborted, and read as committed: that is E4.
    step = ranks[offset] - ranks[previous]
    if step > 1 and (cut := log.deleted_before(entry.ended_ms, offset)) > previous:
        step = sum(cut <= known <= offset for known in ranks)
    if step > 1:
        text = f"{entry.process} read offset {offset} after {previous} and left out {step - 1}"
        yield Violation(rule, place, text, offset)
