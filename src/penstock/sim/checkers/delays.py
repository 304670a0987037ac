"""Checks a delay topic and its targets, by the history of a run.

E46  In the end every committed record of the delay topic has one copy in its targets, with its
     value and its timestamp. There are no other copies, and what was read stays as it is. A record
     that was acknowledged outside of a transaction is in the delay topic.
E47  No copy is read before its record is due, by the latest time that any clock has shown. A leader
     whose clock was ahead may have copied later records, and then this one comes next.
E48  The copies of one partition are in the order of due times, then of offsets. A record that was
     acknowledged after the copy of a later one was planned may come after it. Only checked without
     transactions, because an open one holds back what was acknowledged after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.sim.checkers.logs import Violation
from penstock.sim.history import OK, CopiesRead, CopyRow, DelayedSend, Entry

_SLACK_MS: Final = 25_000
"""A leader may not know at once that a record is committed, and reading may take long."""


class _Source(NamedTuple):
    """A record of the delay topic."""

    partition_name: str
    due_ms: int
    offset: int
    timestamp_ms: int


@dataclass(slots=True)
class _Found:
    sends: dict[str, DelayedSend] = field(default_factory=dict)
    sources: dict[str, _Source] = field(default_factory=dict)
    """By value: all committed records of the delay topic."""
    copies: dict[str, list[CopyRow]] = field(default_factory=dict)
    """By partition of the targets: everything, as it was read in the end."""
    reads: list[CopiesRead] = field(default_factory=list)


def check_delays(entries: Iterable[Entry]) -> Iterator[Violation]:
    found = _Found()
    failed = False
    for entry in entries:
        if isinstance(entry, DelayedSend):
            found.sends[entry.value] = entry
        elif isinstance(entry, CopiesRead):
            if entry.status != OK:
                failed = True
                text = f"the records of the delay topic and its targets did not come: {entry.error}"
                yield Violation("E14", entry.partition_name, text)
            _add(entry, found)
    yield from _early(found)
    if found.sources and not failed:
        yield from _complete(found)
        yield from _stable(found)
        if all(send.is_promised for send in found.sends.values()):
            yield from _in_order(found)


def _add(entry: CopiesRead, found: _Found) -> None:
    if not entry.is_source:
        found.reads.append(entry)
        if entry.is_all:
            found.copies[entry.partition_name] = sorted(entry.rows)
        return
    for offset, value, due_ms, timestamp_ms, _ in entry.rows:
        found.sources[value] = _Source(entry.partition_name, due_ms, offset, timestamp_ms)


def _complete(found: _Found) -> Iterator[Violation]:
    places: dict[str, list[str]] = {}
    for name, rows in found.copies.items():
        for offset, value, due_ms, _, own_ms in rows:
            places.setdefault(value, []).append(f"{name}@{offset}")
            source = found.sources.get(value)
            if source is None:
                text = f"'{value}' is a copy of no committed record of the delay topic"
                yield Violation("E46", name, text, offset)
            elif due_ms or own_ms != source.timestamp_ms:
                text = f"'{value}' has a due time, or another timestamp than its record {source}"
                yield Violation("E46", name, text, offset)
    for value, source in found.sources.items():
        count = len(places.get(value, ()))
        if count != 1:
            text = f"'{value}' has {count} copies, at {places.get(value, [])}"
            yield Violation("E46", source.partition_name, text, source.offset)
    for value, send in found.sends.items():
        if send.status == OK and send.is_promised and value not in found.sources:
            text = f"'{value}' was acknowledged, and is not in the delay topic"
            yield Violation("E46", send.partition_name, text)


def _stable(found: _Found) -> Iterator[Violation]:
    """What was read during the run is there in the end."""
    final = {(name, row[0]): row for name, rows in found.copies.items() for row in rows}
    for entry in found.reads:
        for row in entry.rows:
            now = final.get((entry.partition_name, row[0]))
            if now != row:
                text = f"{entry.process} read {row} at {entry.ended_ms:.0f} ms, and now it is {now}"
                yield Violation("E46", entry.partition_name, text, row[0])


def _early(found: _Found) -> Iterator[Violation]:
    for entry in found.reads:
        for offset, value, _, planned_ms, _ in entry.rows:
            source = found.sources.get(value)
            if source is not None and source.due_ms > entry.wall_max_ms:
                text = (
                    f"'{value}' {source} was copied at {planned_ms}, and read when no clock had "
                    f"shown more than {entry.wall_max_ms}"
                )
                yield Violation("E47", entry.partition_name, text, offset)


def _in_order(found: _Found) -> Iterator[Violation]:
    for name, rows in found.copies.items():
        last: dict[str, tuple[_Source, CopyRow]] = {}
        for row in rows:
            source = found.sources.get(row[1])
            if source is None:
                continue
            before = last.get(source.partition_name)
            if before is not None and source[1:3] < before[0][1:3]:
                send = found.sends.get(row[1])
                planned_ms = before[1][3]
                if send is not None and send.wall_max_ms + _SLACK_MS < planned_ms:
                    text = (
                        f"'{row[1]}' {source} was acknowledged long before the copy of "
                        f"'{before[1][1]}' {before[0]} was planned, and comes after it"
                    )
                    yield Violation("E48", name, text, row[0])
            else:
                last[source.partition_name] = (source, row)
