"""Checks the dead letters that readers got, by the history of a run.

E44  A dead letter that was read stays as it is, and says which record it is for. A record has at
     most one.
E45  In the end every record that was given up has a dead letter, with its delivery count and the
     reason. Other records have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from penstock.broker.shares.dead_letters import REASONS
from penstock.shares.states import GiveUpReason
from penstock.sim.checkers.logs import Violation
from penstock.sim.history import OK, Entry, GivenUp, LetterRow, LettersRead

_UNKNOWN: Final = -1
Source = tuple[str, str, int]
"""A group, a topic partition and an offset."""


def check_letters(entries: Iterable[Entry]) -> Iterator[Violation]:
    read: dict[tuple[str, int], LetterRow] = {}
    places: dict[Source, int] = {}
    given_up: dict[Source, GivenUp] = {}
    drained: list[LettersRead] = []
    for entry in entries:
        if isinstance(entry, GivenUp):
            given_up[entry.group, entry.partition_name, entry.offset] = entry
        elif isinstance(entry, LettersRead):
            yield from _read_once(entry, read, places)
            if entry.is_all:
                drained.append(entry)
    for drain in drained:
        if drain.status != OK:
            text = f"the dead letters could not be read: {drain.error}"
            yield Violation("E14", drain.partition_name, text)
    if all(drain.status == OK for drain in drained):
        letters = {_source(row): row for drain in drained for row in drain.letters}
        yield from _complete(given_up, letters)


def _source(row: LetterRow) -> Source:
    return row[1:4]


def _read_once(
    entry: LettersRead, read: dict[tuple[str, int], LetterRow], places: dict[Source, int]
) -> Iterator[Violation]:
    name = entry.partition_name
    for row in entry.letters:
        offset, source = row[0], _source(row)
        known = read.setdefault((name, offset), row)
        if known != row:
            text = f"{entry.process} read the dead letter {row}, which was {known} before"
            yield Violation("E44", name, text, offset)
        if not row[1] or _UNKNOWN in row[3:5]:
            yield Violation(
                "E44", name, f"a dead letter does not say what it is for: {row}", offset
            )
        if places.setdefault(source, offset) != offset:
            text = f"{source} has dead letters at the offsets {places[source]} and {offset}"
            yield Violation("E44", name, text, offset)


def _complete(
    given_up: dict[Source, GivenUp], letters: dict[Source, LetterRow]
) -> Iterator[Violation]:
    for source, entry in given_up.items():
        group, name, offset = source
        row = letters.get(source)
        if row is None:
            text = f"group {group} has given up offset {offset}, but it has no dead letter"
            yield Violation("E45", name, text, offset)
        elif row[4:] != (entry.deliveries, REASONS[GiveUpReason[entry.reason]]):
            text = f"group {group}: the dead letter {row} is for {entry}"
            yield Violation("E45", name, text, offset)
    for source in sorted(letters.keys() - given_up.keys()):
        group, name, offset = source
        text = f"group {group}: offset {offset} has a dead letter, but was not given up"
        yield Violation("E45", name, text, offset)
