"""Parses lines to records: plain values, keys with values, or JSON. Pure.

JSON lines have the fields that `penstock consume --json` writes, so the output of `consume` is
valid input:

    {"value": "text", "key": "k", "headers": [{"key": "h", "value": "x"}],
     "partition": 0, "timestamp": 1767225600000}

`value_base64` and `key_base64` hold binary data. A value that is neither a string nor null is sent
as JSON text. `headers` may also be an object. `type`, `topic` and `offset` are ignored.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Final, NamedTuple

_FIELDS: Final = frozenset(
    [
        "key",
        "key_base64",
        "value",
        "value_base64",
        "headers",
        "partition",
        "timestamp",
        "type",
        "topic",
        "offset",
    ]
)
_INT64_MAX: Final = (1 << 63) - 1
Headers = tuple[tuple[str, bytes | None], ...]


class BadLine(ValueError):
    """A line that is not a valid record. The message says why."""


class InputRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp: int | None = None


def parse_json_line(line: bytes) -> InputRecord:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadLine('not a JSON object: write {"value": ...}')
    unknown = fields.keys() - _FIELDS
    if unknown:
        raise BadLine(f"unknown field {sorted(unknown)[0]}: use {', '.join(sorted(_FIELDS))}")
    if "value" not in fields and "value_base64" not in fields:
        raise BadLine('"value" is missing: add it (null for a tombstone)')
    return InputRecord(
        _bytes(fields, "key"),
        _bytes(fields, "value"),
        _headers(fields.get("headers")),
        _number(fields, "partition", (1 << 31) - 1),
        _number(fields, "timestamp", _INT64_MAX),
    )


def split_key(line: bytes, separator: bytes) -> InputRecord:
    key, found, value = line.partition(separator)
    if not found:
        raise BadLine(
            f"the separator {separator.decode(errors='replace')!r} is missing: write KEY, the "
            "separator, VALUE"
        )
    return InputRecord(key, value)


def _bytes(fields: dict[str, Any], name: str) -> bytes | None:
    encoded = fields.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise BadLine(f"{name}_base64 is not base64: {error}") from error
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return _encoded(value, name)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _encoded(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadLine(f"{name} is not valid Unicode (half a surrogate pair): {error}") from error


def _headers(given: object) -> Headers:
    if given is None:
        return ()
    if isinstance(given, dict):
        given = [{"key": name, "value": value} for name, value in given.items()]
    if not isinstance(given, list):
        raise BadLine('headers must be a list of {"key": ..., "value": ...}, or an object')
    headers = []
    for header in given:
        if not isinstance(header, dict) or not isinstance(header.get("key"), str):
            raise BadLine('a header must be {"key": ..., "value": ...}')
        _encoded(header["key"], "a header's name")
        headers.append((header["key"], _bytes(header, "value")))
    return tuple(headers)


def _number(fields: dict[str, Any], name: str, maximum: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
        raise BadLine(f"{name} must be a whole number from 0 to {maximum}")
    return value
