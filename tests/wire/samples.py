"""Sample messages, and a second, simple encoder to compare the compiled one with.

The simple encoder walks the schema field by field, as the protocol describes it, and shares only
the schema with the compiled one. It can also act as a newer peer and add unknown tagged fields to
every struct.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

from penstock.wire import messages
from penstock.wire.messages.base import Message
from penstock.wire.schema import message_schema, modules_by_message
from penstock.wire.schema.notation import Field, MessageSchema, Struct

NUMBERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
}
WORDS = ("", "a", "orders", "münchen-✓", "x" * 126, "y" * 127, "z" * 300)


def message_names() -> list[str]:
    return list(modules_by_message())


def message_class(name: str) -> type[Message]:
    found: type[Message] = getattr(messages, name)
    return found


def versions(name: str) -> range:
    known = message_schema(name).versions
    return range(known.first, known.last + 1)


def every_version() -> Iterator[tuple[str, int]]:
    for name in message_names():
        for version in versions(name):
            yield name, version


def sample(name: str, version: int, seed: int = 0, *, count: int | None = None) -> Message:
    """Returns a message with random values that the version allows; the same for the same seed.

    With `count`, every array has that many elements, and no field is left at its default.
    """
    schema = message_schema(name)
    chance = random.Random(f"{name} {version} {seed}")
    built = _sample_struct(schema, schema.root, version, chance, count)
    assert isinstance(built, Message)
    return built


def _sample_struct(
    schema: MessageSchema, part: Struct, version: int, chance: random.Random, count: int | None
) -> Any:
    root = message_class(schema.name)
    made = root if part is schema.root else getattr(root, part.name)
    values = {}
    for field in part.fields:
        if not field.versions.cover(version):
            continue
        if count is None and field.tag is not None and chance.random() < 0.5:
            continue
        values[field.attribute] = _sample_field(schema, field, version, chance, count)
    return made(**values)


def _sample_field(
    schema: MessageSchema, field: Field, version: int, chance: random.Random, count: int | None
) -> Any:
    if count is None and field.nullable.cover(version) and chance.random() < 0.3:
        return None
    if not field.is_array:
        return _sample_value(schema, field, version, chance, count)
    size = chance.choice((0, 1, 1, 2, 3)) if count is None else count
    if count is None and field.struct is None and chance.random() < 0.05:
        size = 150
    return [_sample_value(schema, field, version, chance, count) for _ in range(size)]


def _sample_value(
    schema: MessageSchema, field: Field, version: int, chance: random.Random, count: int | None
) -> Any:
    if field.struct is not None:
        return _sample_struct(schema, field.struct, version, chance, count)
    if field.type in NUMBERS:
        bits = NUMBERS[field.type]
        edges = (0, 1, -1, -(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        return 7 if count else chance.choice((*edges, chance.getrandbits(bits - 1)))
    if field.type == "uint16":
        return 7 if count else chance.choice((0, 1, 32_768, 65_535))
    if field.type == "bool":
        return chance.random() < 0.5
    if field.type == "float64":
        return chance.choice((0.0, -1.5, 1e300))
    if field.type == "uuid":
        return chance.randbytes(16)
    if field.type == "string":
        return "name" if count else chance.choice(WORDS)
    return b"value" if count else chance.randbytes(chance.choice((0, 1, 126, 127, 200, 5000)))


def plain_encode(
    name: str, version: int, message: Message, unknown: dict[int, bytes] | None = None
) -> bytes:
    """Returns the bytes of a message; `unknown` tagged fields are added to every struct."""
    schema = message_schema(name)
    return _plain_struct(schema, schema.root, version, message, unknown or {})


def uvarint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value % 128 + 128]) + uvarint(value // 128)


def _plain_struct(
    schema: MessageSchema, part: Struct, version: int, value: Any, unknown: dict[int, bytes]
) -> bytes:
    out = b""
    tags = dict(unknown)
    for field in part.fields:
        if not field.versions.cover(version):
            continue
        inner = getattr(value, field.attribute)
        if field.tag is None:
            out += _plain_field(schema, field, version, inner, unknown)
        elif inner != field.default:
            tags[field.tag] = _plain_field(schema, field, version, inner, unknown)
    if schema.flexible.cover(version):
        out += uvarint(len(tags))
        for tag, data in sorted(tags.items()):
            out += uvarint(tag) + uvarint(len(data)) + data
    return out


def _plain_field(
    schema: MessageSchema, field: Field, version: int, value: Any, unknown: dict[int, bytes]
) -> bytes:
    flexible = schema.flexible.cover(version)
    if not field.is_array:
        return _plain_value(schema, field, version, value, unknown)
    if value is None:
        return b"\0" if flexible else struct.pack(">i", -1)
    prefix = uvarint(len(value) + 1) if flexible else struct.pack(">i", len(value))
    one = field._replace(is_array=False, nullable=field.nullable._replace(first=0, last=-1))
    return prefix + b"".join(_plain_value(schema, one, version, item, unknown) for item in value)


def _plain_value(
    schema: MessageSchema, field: Field, version: int, value: Any, unknown: dict[int, bytes]
) -> bytes:
    flexible = schema.flexible.cover(version)
    if field.struct is not None:
        mark = b""
        if field.nullable.cover(version):
            mark = b"\xff" if value is None else b"\x01"
        return mark + (
            b"" if value is None else _plain_struct(schema, field.struct, version, value, unknown)
        )
    if field.type in FIXED:
        return struct.pack(">" + FIXED[field.type], value)
    if field.type == "uuid":
        return bytes(value)
    code = ">h" if field.type == "string" else ">i"
    if value is None:
        return b"\0" if flexible else struct.pack(code, -1)
    data = value.encode() if field.type == "string" else bytes(value)
    return (uvarint(len(data) + 1) if flexible else struct.pack(code, len(data))) + data
