"""The notation our message tables are written in, and its parser.

A table holds messages, parted by empty lines. A message is a head and one line per field; deeper
indentation (two spaces a level) lists the fields of the struct that the line above introduces.

    ProduceRequest  key 0  versions 3-13  flexible 9+
      TransactionalId  string?      3+    = null
      TopicData        [Topic]      0+
        Name           string       0-12  ignorable
        TopicId        uuid         13+   ignorable

The columns are the field's name, its type and the versions that have it, then what is unusual:

    [T]          an array of T
    T?           may be null in every version that has the field
    T?7+         may be null in those versions only
    = VALUE      the default, where it is not the type's own (0, false, "", empty, the zero uuid)
    tag N        a tagged field: on the wire only when it differs from its default
    ignorable    versions without the field drop its value; elsewhere that is an error

Type names in lower case are Kafka's primitive types. Names in upper case are structs, named for
our message classes; a struct may be used again later in the same message by its name alone.
A message is parsed when it is first needed: a broker should not pay for APIs nobody calls.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

Default = int | float | bool | str | bytes | list[object] | None

PRIMITIVES: Final = frozenset(
    (
        *("bool", "int8", "int16", "uint16", "int32", "int64", "float64"),
        *("uuid", "string", "bytes", "records"),
    )
)
ZERO_UUID: Final = bytes(16)
_LATEST: Final = 1 << 15
_WORD_START: Final = re.compile(r"(?<!^)(?=[A-Z])")


class Versions(NamedTuple):
    """An inclusive range of versions; the empty range has `first` above `last`."""

    first: int
    last: int

    def cover(self, version: int) -> bool:
        return self.first <= version <= self.last


NO_VERSIONS: Final = Versions(0, -1)


class Field(NamedTuple):
    name: str
    attribute: str
    type: str
    struct: Struct | None
    is_array: bool
    versions: Versions
    nullable: Versions
    default: Default
    tag: int | None
    ignorable: bool

    def is_struct(self) -> bool:
        return self.struct is not None and not self.is_array

    def has_struct_default(self) -> bool:
        """Whether the default is a struct of defaults rather than None.

        By Kafka's rules that holds for tagged structs too. Our classes give those None instead,
        for "not on the wire": building three of them for every partition of every Fetch response
        would be dear, and would say less.
        """
        return self.is_struct() and self.tag is None and self.nullable == NO_VERSIONS


class Struct(NamedTuple):
    name: str
    fields: tuple[Field, ...]


class MessageSchema(NamedTuple):
    name: str
    api_key: int | None
    versions: Versions
    flexible: Versions
    root: Struct

    def structs(self) -> list[Struct]:
        """The structs below the root, each once, those that others use before their users."""
        found: dict[str, Struct] = {}

        def visit(struct: Struct) -> None:
            for field in struct.fields:
                if field.struct is not None and field.struct.name not in found:
                    visit(field.struct)
                    found[field.struct.name] = field.struct

        visit(self.root)
        return list(found.values())

    def has_records(self) -> bool:
        structs = [self.root, *self.structs()]
        return any(field.type == "records" for struct in structs for field in struct.fields)


def parse_versions(text: str) -> Versions:
    if text in ("never", "none"):
        return NO_VERSIONS
    first, dash, last = text.partition("-")
    if dash:
        return Versions(int(first), int(last))
    if text.endswith("+"):
        return Versions(int(text[:-1]), _LATEST)
    return Versions(int(text), int(text))


def split_table(table: str) -> dict[str, str]:
    """The messages of a table by name, still as text."""
    return {block.split(None, 1)[0]: block for block in table.strip("\n").split("\n\n")}


def parse_message(text: str) -> MessageSchema:
    head, *lines = text.split("\n")
    words = head.split()
    settings = dict(zip(words[1::2], words[2::2], strict=True))
    key = settings.get("key")
    rows = [(len(line) - len(line.lstrip()), line.split()) for line in lines]
    fields, end = _parse_fields(rows, 0, 2, {})
    if end != len(rows):
        raise ValueError(f"{words[0]}: line {end + 2} is indented under no struct")
    return MessageSchema(
        words[0],
        None if key is None else int(key),
        parse_versions(settings["versions"]),
        parse_versions(settings["flexible"]),
        Struct(words[0], fields),
    )


def _parse_fields(
    rows: list[tuple[int, list[str]]], start: int, indent: int, known: dict[str, Struct]
) -> tuple[tuple[Field, ...], int]:
    fields = []
    row = start
    while row < len(rows) and rows[row][0] == indent:
        words = rows[row][1]
        row += 1
        name = words[1].partition("?")[0].strip("[]")
        struct = None
        if name not in PRIMITIVES:
            if row < len(rows) and rows[row][0] == indent + 2:
                below, row = _parse_fields(rows, row, indent + 2, known)
                known[name] = Struct(name, below)
            struct = known[name]
        fields.append(_parse_field(words, name, struct))
    return tuple(fields), row


def _parse_field(words: list[str], type_name: str, struct: Struct | None) -> Field:
    name, type_text, versions_text, *rest = words
    shape, mark, nullable_text = type_text.partition("?")
    versions = parse_versions(versions_text)
    nullable = NO_VERSIONS
    if mark:
        nullable = parse_versions(nullable_text) if nullable_text else versions
    is_array = shape.startswith("[")
    tag = int(rest[rest.index("tag") + 1]) if "tag" in rest else None
    given = rest[rest.index("=") + 1] if "=" in rest else None
    return Field(
        name=name,
        attribute=_WORD_START.sub("_", name).lower(),
        type=type_name,
        struct=struct,
        is_array=is_array,
        versions=versions,
        nullable=nullable,
        default=_default(type_name, is_array, given),
        tag=tag,
        ignorable="ignorable" in rest,
    )


def _default(type_name: str, is_array: bool, given: str | None) -> Default:
    if given == "null":
        return None
    if is_array:
        return []
    if type_name == "bool":
        return given == "true"
    if type_name == "float64":
        return float(given or 0)
    if type_name.startswith(("int", "uint")):
        return int(given or 0)
    zeros: dict[str, Default] = {"string": given or "", "bytes": b"", "uuid": ZERO_UUID}
    return zeros.get(type_name)
