"""Records as lines: by a format string, or as JSON. Pure.

A format is compiled once into steps; `%v` alone, by far the commonest, is a step that copies
bytes. What goes to a terminal is escaped, since a terminal obeys control characters; what goes
into a pipe or file is left as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from penstock.cli.output import Shown, bytes_json, bytes_text, printable, time_text
from penstock.client.model import TopicPartition
from penstock.records.record import Record

FORMAT_HELP: Final = r"%k key, %v value, %p partition, %o offset, %t time, %T ms, %h headers"
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
Step = Callable[[TopicPartition, Record], bytes]


class Formatter:
    """`lines(place, records)` is what to write for records of one partition."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps

    def lines(self, place: TopicPartition, records: list[Record]) -> bytes:
        steps = self._steps
        if len(steps) == 1:
            step = steps[0]
            return b"".join([step(place, record) + b"\n" for record in records])
        return b"".join(
            [b"".join([step(place, record) for step in steps]) + b"\n" for record in records]
        )


def compile_format(text: str, *, escaped: bool, keys: Shown, values: Shown) -> Formatter:
    """A formatter for a string such as `%p/%o %k=%v`; `ValueError` says what is wrong with it."""
    fields: dict[str, Step] = {
        "k": lambda place, record: _data(record.key, keys, escaped),
        "v": lambda place, record: _data(record.value, values, escaped),
        "p": lambda place, record: str(place.partition).encode(),
        "o": lambda place, record: str(record.offset).encode(),
        "t": lambda place, record: time_text(record.timestamp).encode(),
        "T": lambda place, record: str(record.timestamp).encode(),
        "h": lambda place, record: _headers(record, escaped),
    }
    steps: list[Step] = []
    literal = bytearray()

    def finish_literal() -> None:
        if literal:
            fixed = bytes(literal)
            steps.append(lambda place, record: fixed)
            literal.clear()

    position = 0
    while position < len(text):
        char = text[position]
        following = text[position + 1 : position + 2]
        if char == "%" and following == "%":
            literal += b"%"
        elif char == "%":
            if following not in fields or not following:
                raise ValueError(f"%{following} is not known in a format: use {FORMAT_HELP}, %%")
            finish_literal()
            steps.append(fields[following])
        elif char == "\\" and following in _ESCAPES and following:
            literal += _ESCAPES[following]
        else:
            literal += char.encode(errors="backslashreplace")
            position -= 1
        position += 2
    finish_literal()
    return Formatter(steps)


def json_formatter(*, keys: Shown, values: Shown) -> Formatter:
    def step(place: TopicPartition, record: Record) -> bytes:
        line = {
            "topic": place.topic,
            "partition": place.partition,
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


def _headers(record: Record, escaped: bool) -> bytes:
    parts = []
    for name, data in record.headers:
        shown = printable(name) if escaped else name
        parts.append(shown.encode() + b"=" + _data(data, Shown.TEXT, escaped))
    return b",".join(parts)
