"""Formats records as lines, by a format string or as JSON. Pure.

A format is compiled once into steps. `%v` alone, by far the most common format, is a step that
copies bytes, or whole columns of them. Output to a terminal is escaped, since a terminal obeys
control characters. Output to a pipe or file is not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from penstock.cli.output import Shown, bytes_json, bytes_text, printable, time_text
from penstock.client.model import Record

FORMAT_HELP: Final = r"%k key, %v value, %p partition, %o offset, %t time, %T ms, %h headers"
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
RawRecord = Record[bytes | None, bytes | None]
Step = Callable[[RawRecord], bytes]


class Formatter:
    """Turns records into lines of output."""

    def __init__(self, steps: list[Step], *, copies_values: bool = False) -> None:
        self.copies_values = copies_values
        """Whether a line is exactly the unchanged value."""
        self._steps = steps

    def lines(self, records: list[RawRecord]) -> bytes:
        steps = self._steps
        if len(steps) == 1:
            step = steps[0]
            return b"".join([step(record) + b"\n" for record in records])
        return b"".join([b"".join([step(record) for step in steps]) + b"\n" for record in records])


def compile_format(text: str, *, escaped: bool, keys: Shown, values: Shown) -> Formatter:
    """Returns a formatter for a string such as `%p/%o %k=%v`. Raises `ValueError` for a bad one."""
    fields: dict[str, Step] = {
        "k": lambda record: _data(record.key, keys, escaped),
        "v": lambda record: _data(record.value, values, escaped),
        "p": lambda record: str(record.partition).encode(),
        "o": lambda record: str(record.offset).encode(),
        "t": lambda record: time_text(record.timestamp).encode(),
        "T": lambda record: str(record.timestamp).encode(),
        "h": lambda record: _headers(record, escaped),
    }
    steps: list[Step] = []
    literal = bytearray()

    def finish_literal() -> None:
        if literal:
            fixed = bytes(literal)
            steps.append(lambda record: fixed)
            literal.clear()

    position = 0
    while position < len(text):
        char = text[position]
        following = text[position + 1 : position + 2]
        if char == "%" and following == "%":
            literal += b"%"
        elif char == "%":
            if following not in fields or not following:
                raise ValueError(f"%{following} is not a field of a format: use {FORMAT_HELP}, %%")
            finish_literal()
            steps.append(fields[following])
        elif char == "\\" and following in _ESCAPES and following:
            literal += _ESCAPES[following]
        else:
            literal += char.encode(errors="backslashreplace")
            position -= 1
        position += 2
    finish_literal()
    copies = text == "%v" and not escaped and values is Shown.TEXT
    return Formatter(steps, copies_values=copies)


def json_formatter(*, keys: Shown, values: Shown) -> Formatter:
    def step(record: RawRecord) -> bytes:
        line = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            **bytes_json("key", record.key, keys),
            **bytes_json("value", record.value, values),
            "headers": [
                {"key": name, **bytes_json("value", data, Shown.TEXT)}
                for name, data in record.headers
            ],
        }
        return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode()

    return Formatter([step])


def _data(data: bytes | None, shown: Shown, escaped: bool) -> bytes:
    if data is None:
        return b"null" if escaped else b""
    if shown is not Shown.TEXT:
        return bytes_text(data, shown).encode()
    if not escaped:
        return data
    try:
        return printable(data.decode()).encode()
    except UnicodeDecodeError:
        return bytes_text(data, Shown.HEX).encode()


def _headers(record: RawRecord, escaped: bool) -> bytes:
    parts = []
    for name, data in record.headers:
        shown = printable(name) if escaped else name
        parts.append(shown.encode() + b"=" + _data(data, Shown.TEXT, escaped))
    return b",".join(parts)
