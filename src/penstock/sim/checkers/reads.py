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

from penstock.sim.checkers.logs import PartitionLog, Violation
from penstock.sim.history import OK, Drain, Entry, Poll


def check_reads(entries: Iterable[Entry], logs: Mapping[str, PartitionLog]) -> Iterator[Violation]:
    last: dict[tuple[str, str], int] = {}
    for entry in entries:
        if isinstance(entry, Drain) and entry.status == OK:
            yield from _within(entry, entry.partition_name, entry.records, logs)
        if not isinstance(entry, Poll):
            continue
        for partition_name in entry.moved:
            last.pop((entry.process, partition_name), None)
        if entry.status != OK:
            continue
        for partition_name, records in entry.reads.items():
            if not records:
                continue
            yield from _within(entry, partition_name, records, logs)
            previous = last.get((entry.process, partition_name))
            if previous is not None:
                yield from _follows("E7", entry, partition_name, previous, records[0][0], logs)
            last[entry.process, partition_name] = records[-1][0]


def _within(
    entry: Poll | Drain,
    partition_name: str,
    records: tuple[tuple[int, str], ...],
    logs: Mapping[str, PartitionLog],
) -> Iterator[Violation]:
    for (previous, _), (offset, _) in pairwise(records):
        yield from _follows("E6", entry, partition_name, previous, offset, logs)


def _follows(
    rule: str,
    entry: Poll | Drain,
    partition_name: str,
    previous: int,
    offset: int,
    logs: Mapping[str, PartitionLog],
) -> Iterator[Violation]:
    log = logs[partition_name]
    ranks = log.committed_ranks if entry.committed else log.ranks
    if offset <= previous:
        text = f"{entry.process} read offset {offset} after {previous}"
        yield Violation(rule, partition_name, text, offset)
        return
    if offset not in ranks or previous not in ranks:
        return  # Aborted, but read as committed: E4 reports that.
    step = ranks[offset] - ranks[previous]
    if step > 1 and (cut := log.deleted_before(entry.ended_ms, offset)) > previous:
        step = sum(cut <= known <= offset for known in ranks)
    if step > 1:
        text = f"{entry.process} read offset {offset} after {previous} and skipped {step - 1}"
        yield Violation(rule, partition_name, text, offset)
