"""Checks that each reader saw consecutive records.

E6   Within one poll the records of a partition are consecutive: none is left out.
E7   The same from one poll of a process to its next, unless its position was set in between.

A failed poll has not moved the position. Consecutive means consecutive in rank: the order of all
offsets that any client knows of, or, with `read_committed`, of the committed ones. So offsets that
have no record for any client are not a gap. Neither are records that were deleted on request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from penstock.sim.checkers.logs import PlaceLog, Violation
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
        return  # Aborted, but read as committed: E4 reports that.
    step = ranks[offset] - ranks[previous]
    if step > 1 and (cut := log.deleted_before(entry.ended_ms, offset)) > previous:
        step = sum(cut <= known <= offset for known in ranks)
    if step > 1:
        text = f"{entry.process} read offset {offset} after {previous} and skipped {step - 1}"
        yield Violation(rule, place, text, offset)
