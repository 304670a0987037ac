"""Patterns to list transactional ids by: regular expressions that match in linear time.

A pattern comes from any client that may list transactions, and is matched against every id.
Python's own engine backtracks, and a pattern of twenty characters can block it forever. So this
module supports only the part of the syntax that is useful for ids, and matches in time proportional
to pattern and id:

    abc  \\.  .  [a-z_]  [^0-9]      one character each; a backslash makes the next one literal
    x*  x+  x?                      repetition of any of those
    this|that                       alternatives, at the top level only

There are no groups, counts, named classes or anchors; the whole id must match, as in Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.wire.errors import ErrorCode, KafkaError

LENGTH_MAX: Final = 1000
_QUANTIFIERS: Final = "*+?"
_UNREAD: Final = "()[]{}^$"


@dataclass(frozen=True, slots=True)
class _Atom:
    """What one character may be; `negated` without ranges matches any character."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False
    may_skip: bool = False
    may_repeat: bool = False

    def takes(self, character: str) -> bool:
        return any(low <= character <= high for low, high in self.ranges) != self.negated


class IdPattern:
    """A parsed pattern; raises `KafkaError` with the reason if it cannot be parsed."""

    def __init__(self, text: str) -> None:
        if len(text) > LENGTH_MAX:
            raise _unreadable(
                f"it has {len(text)} characters, but at most {LENGTH_MAX} are allowed"
            )
        self._choices = _Reader(text).choices()

    def matches(self, transactional_id: str) -> bool:
        return any(_matches(atoms, transactional_id) for atoms in self._choices)


def _matches(atoms: list[_Atom], text: str) -> bool:
    reached = _skipping(atoms, {0})
    for character in text:
        onward: set[int] = set()
        for position in reached:
            if position < len(atoms) and atoms[position].takes(character):
                onward.add(position + 1)
                if atoms[position].may_repeat:
                    onward.add(position)
        if not onward:
            return False
        reached = _skipping(atoms, onward)
    return len(atoms) in reached


def _skipping(atoms: list[_Atom], reached: set[int]) -> set[int]:
    """Adds the positions after atoms that may be skipped."""
    for position, atom in enumerate(atoms):
        if position in reached and atom.may_skip:
            reached.add(position + 1)
    return reached


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def choices(self) -> list[list[_Atom]]:
        choices: list[list[_Atom]] = [[]]
        while self._position < len(self._text):
            character = self._next()
            if character == "|":
                choices.append([])
            else:
                choices[-1].append(self._quantified(self._atom(character)))
        return choices

    def _next(self) -> str:
        if self._position == len(self._text):
            raise _unreadable("it is incomplete")
        self._position += 1
        return self._text[self._position - 1]

    def _atom(self, character: str) -> _Atom:
        if character == ".":
            return _Atom((), negated=True)
        if character == "[":
            return self._set()
        if character in _QUANTIFIERS or character in _UNREAD:
            raise _unreadable(
                f"{character!r} is not supported here; write \\{character} to match the "
                "character itself"
            )
        return _plain(self._escaped(character))

    def _escaped(self, character: str) -> str:
        if character != "\\":
            return character
        escaped = self._next()
        if escaped.isalnum():
            raise _unreadable(f"\\{escaped} is not supported; list the characters in brackets")
        return escaped

    def _set(self) -> _Atom:
        ranges: list[tuple[str, str]] = []
        character = self._next()
        negated = character == "^"
        if negated:
            character = self._next()
        while character != "]":
            low = self._escaped(character)
            character = self._next()
            if character == "-" and self._text[self._position : self._position + 1] != "]":
                high = self._escaped(self._next())
                ranges.append((low, high))
                character = self._next()
            else:
                ranges.append((low, low))
        if not ranges:
            raise _unreadable("it has empty brackets")
        return _Atom(tuple(ranges), negated)

    def _quantified(self, atom: _Atom) -> _Atom:
        if self._text[self._position : self._position + 1] not in tuple(_QUANTIFIERS):
            return atom
        quantifier = self._next()
        return _Atom(atom.ranges, atom.negated, quantifier in "*?", quantifier in "*+")


def _plain(character: str) -> _Atom:
    return _Atom(((character, character),))


def _unreadable(why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REGULAR_EXPRESSION, f"The transactional id pattern cannot be read: {why}."
    )
