"""The functions that compiled codecs call. Common short operations are inlined in their code.

All limits against hostile bytes are here or in `compile_decode`: a length may not pass the end of
the frame, a varint has at most five bytes, and each message has a budget for the elements of all
arrays and all tagged fields together. The budget exists because a Python object takes fifty times
as much memory as the bytes that it came from.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct as Layout
from typing import Final

from penstock.wire.errors import ProtocolError

Buffer = bytes | bytearray | memoryview

STRING_BYTES_MAX: Final = 32_767
_CACHED_COUNT_MAX: Final = 1_024
_CODES: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
}
FORMATS: Final = _CODES | {"uuid": "16s"}
"""The struct format of each fixed-size type."""


def encode_uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Returns the value and the position after it."""
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise ProtocolError("a varint is longer than five bytes")


def skip_tags(buffer: Buffer, position: int, size: int, budget: int) -> tuple[int, int]:
    """Skips unknown tagged fields. Returns the position after them and the remaining budget.

    `position` is the position of the field count.
    """
    count, position = decode_uvarint(buffer, position)
    budget -= count
    if budget < 0:
        raise too_many("tagged fields", count)
    for _ in range(count):
        _, position = decode_uvarint(buffer, position)
        length, position = decode_uvarint(buffer, position)
        position += length
        if position > size:
            raise too_short("a tagged field")
    return position, budget


def string_prefix(length: int) -> bytes:
    """Returns the compact length of a string whose length does not fit into one byte."""
    if length > STRING_BYTES_MAX:
        raise ProtocolError(f"a string of {length} bytes is over the limit of {STRING_BYTES_MAX}")
    return encode_uvarint(length + 1)


def too_short(field: str) -> ProtocolError:
    return ProtocolError(f"{field} ends beyond the end of the frame")


def too_many(field: str, count: int) -> ProtocolError:
    return ProtocolError(
        f"{field}: {count} elements do not fit into the frame, or are over a message's limit"
    )


def too_long(field: str, length: int) -> ProtocolError:
    return ProtocolError(f"{field}: {length} bytes are over a string's limit of {STRING_BYTES_MAX}")


def not_nullable(field: str) -> ProtocolError:
    return ProtocolError(f"{field} may not be null, nor have a negative length")


def wrong_size(field: str) -> ProtocolError:
    return ProtocolError(f"{field}: a tagged field is not as long as its length says")


def wrong_uuid(field: str) -> ProtocolError:
    return ProtocolError(f"{field} must be a uuid of 16 bytes")


def not_in_version(field: str, version: int) -> ProtocolError:
    return ProtocolError(f"{field} has a value, but version {version} has no such field")


class ArrayPackers(dict[int, Callable[..., bytes]]):
    """Packs the count and the elements of an array of fixed-size values: `packers[n](*values)`."""

    def __init__(self, type_name: str, flexible: bool) -> None:
        super().__init__()
        self._code = _CODES[type_name]
        self._flexible = flexible

    def __missing__(self, count: int) -> Callable[..., bytes]:
        if not self._flexible:
            packer = partial(Layout(f">i{count}{self._code}").pack, count)
        else:
            prefix = encode_uvarint(count + 1)
            packer = partial(Layout(f">{len(prefix)}s{count}{self._code}").pack, prefix)
        if count <= _CACHED_COUNT_MAX:
            self[count] = packer
        return packer


class ArrayUnpackers(dict[int, Callable[..., tuple[object, ...]]]):
    """Unpacks the elements of an array of fixed-size values: `unpackers[n](buffer, position)`."""

    def __init__(self, type_name: str) -> None:
        super().__init__()
        self._code = _CODES[type_name]

    def __missing__(self, count: int) -> Callable[..., tuple[object, ...]]:
        unpacker = Layout(f">{count}{self._code}").unpack_from
        if count <= _CACHED_COUNT_MAX:
            self[count] = unpacker
        return unpacker


ARRAY_PACKERS: Final = {
    (name, flexible): ArrayPackers(name, flexible) for name in _CODES for flexible in (False, True)
}
ARRAY_UNPACKERS: Final = {name: ArrayUnpackers(name) for name in _CODES}
