"""Formats bytes as JSON, text, hex dump or Avro. Pure.

The browser gets content only as text, with the number of its bytes. Long content is cut. A page
requests the record again to show all of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from penstock.client.model import Record

FORMATS: Final = ("auto", "json", "text", "hex", "avro")
PREVIEW_CHARACTERS: Final = 1_000
_HEX_WIDTH: Final = 16
_REGISTRY_PREFIX_BYTES: Final = 5
_CONTROL: Final = frozenset(range(32)) - {9, 10, 13}

Decode = Callable[[bytes], Any]
Shown = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Format:
    name: str = "auto"
    avro: Decode | None = None
    """Decodes plain Avro. The prefix of a schema registry is removed first."""
    characters_max: int | None = PREVIEW_CHARACTERS
    """None: no limit."""


def show(data: bytes | None, how: Format) -> Shown:
    """Returns the formatted bytes.

    `kind` is the format that was used: hex if the bytes do not have the requested format.
    """
    if data is None:
        return {"kind": "null", "text": "", "bytes": 0, "cut": False}
    kind, text, cut = _render(data, how)
    limit = how.characters_max
    if limit is not None and len(text) > limit:
        text, cut = text[:limit], True
    return {"kind": kind, "text": text, "bytes": len(data), "cut": cut}


def _render(data: bytes, how: Format) -> tuple[str, str, bool]:
    match how.name:
        case "avro" if how.avro is not None:
            value = _avro(data, how.avro)
            if value is not None:
                return "avro", value, False
        case "text":
            return "text", data.decode("utf-8", "replace"), False
        case "auto" | "json":
            text = _utf8(data)
            if text is not None and _is_json(text):
                whole = how.characters_max is None
                return "json", indented(text) if whole else text, False
            if text is not None and how.name == "auto":
                return "text", text, False
    return _hex(data, how.characters_max)


def _utf8(data: bytes) -> str | None:
    """Returns the text; None for data that is not UTF-8 or has control characters at its start."""
    if not _CONTROL.isdisjoint(data[:4096]):
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _is_json(text: str) -> bool:
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _avro(data: bytes, decode: Decode) -> str | None:
    bodies = [data]
    if data[:1] == b"\0" and len(data) > _REGISTRY_PREFIX_BYTES:
        bodies.insert(0, data[_REGISTRY_PREFIX_BYTES:])
    for body in bodies:
        try:
            return json.dumps(decode(body), indent=2, ensure_ascii=False, default=_readable)
        except Exception:  # noqa: BLE001, S112 -- decoders raise anything for foreign bytes
            continue
    return None


def _readable(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _hex(data: bytes, characters_max: int | None) -> tuple[str, str, bool]:
    """Formats only the lines that are shown: a megabyte takes about five million characters."""
    rows_max = None if characters_max is None else characters_max // 78 + 1
    lines: list[str] = []
    for at in range(0, len(data), _HEX_WIDTH):
        if rows_max is not None and len(lines) >= rows_max:
            return "hex", "\n".join(lines), True
        row = data[at : at + _HEX_WIDTH]
        readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08x}  {row.hex(' '):<47}  |{readable}|")
    return "hex", "\n".join(lines), False


def indented(text: str) -> str:
    """Indents valid JSON without changing its values.

    Values are copied, not parsed and written again, so 1.10 stays 1.10 and large numbers keep all
    digits.
    """
    out: list[str] = []
    depth = 0
    at = 0
    while at < len(text):
        character = text[at]
        if character == '"':
            end = _string_end(text, at)
            out.append(text[at:end])
            at = end
            continue
        if character in "{[":
            closing = _next_visible(text, at + 1)
            if text[closing] in "}]":
                out.append(character + text[closing])
                at = closing + 1
                continue
            depth += 1
            out.append(f"{character}\n{'  ' * depth}")
        elif character in "}]":
            depth -= 1
            out.append(f"\n{'  ' * depth}{character}")
        elif character == ",":
            out.append(f",\n{'  ' * depth}")
        elif character == ":":
            out.append(": ")
        elif not character.isspace():
            out.append(character)
        at += 1
    return "".join(out)


def _string_end(text: str, at: int) -> int:
    at += 1
    while text[at] != '"':
        at += 2 if text[at] == "\\" else 1
    return at + 1


def _next_visible(text: str, at: int) -> int:
    while text[at].isspace():
        at += 1
    return at


def show_record(record: Record[bytes | None, bytes | None], how: Format) -> dict[str, Any]:
    # Keys and headers are seldom Avro, even if values are.
    plain = Format("auto" if how.name == "avro" else how.name, None, how.characters_max)
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": record.timestamp_type.name.lower(),
        "key": show(record.key, plain),
        "value": show(record.value, how),
        "headers": [[name, show(value, plain)] for name, value in record.headers],
    }
