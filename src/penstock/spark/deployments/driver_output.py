"""What a driver prints, as lines without secrets.

A value is hidden wherever it is found, and each line of a value with several lines, such as a key
in PEM format. Values are hidden before a line is cut, so no part of one is left at the end.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Sequence
from typing import Final

LINE_CHARACTERS_MAX: Final = 8 << 10
_HIDDEN: Final = "***"
_VALUE_LEAST: Final = 4
"""Shorter values are not hidden: they would be found in any text."""
_LINE_LEAST: Final = 8
"""The same for lines of values with several lines."""


class HiddenValues:
    """Values that nobody may read in logs and events."""

    def __init__(self, values: Sequence[str]) -> None:
        found = {each for each in values if len(each) >= _VALUE_LEAST}
        for value in values:
            lines = [each.strip() for each in value.splitlines()]
            if len(lines) > 1:
                found.update(each for each in lines if len(each) >= _LINE_LEAST)
        # Events are JSON, and code prints JSON, too.
        found |= {json.dumps(each)[1:-1] for each in found}
        self._texts = sorted(found, key=len, reverse=True)

    @property
    def longest(self) -> int:
        """The characters of the longest text that is hidden."""
        return len(self._texts[0]) if self._texts else 0

    def hide(self, text: str) -> str:
        for value in self._texts:
            text = text.replace(value, _HIDDEN)
        return text


class OutputLines:
    """Makes lines of what a driver prints. A line that is too long is cut."""

    def __init__(self, hidden: HiddenValues, on_lines: Callable[[list[str]], None]) -> None:
        self._hidden = hidden
        self._on_lines = on_lines
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def add(self, data: bytes) -> None:
        *lines, rest = (self._rest + self._decoder.decode(data)).split("\n")
        told = [self._hidden.hide(line) for line in lines]
        kept = self._hidden.longest
        if len(rest) > LINE_CHARACTERS_MAX + kept:
            # It may have no end for a long time. Its last characters may begin a hidden value.
            rest = self._hidden.hide(rest)
            border = len(rest) - kept
            told.append(rest[:border])
            rest = rest[border:]
        self._rest = rest
        self._tell(told)

    def end(self) -> None:
        """Tells a last line without an end."""
        rest, self._rest = self._rest + self._decoder.decode(b"", final=True), ""
        self._tell([self._hidden.hide(rest)] if rest else [])

    def _tell(self, lines: list[str]) -> None:
        if lines:
            self._on_lines([line[:LINE_CHARACTERS_MAX] for line in lines])
