"""The JSON objects that are the values in the metadata store.

A value is an object with a version `v`. Reading is strict: a value is refused if fields are
missing, unknown or out of range. Adding a field requires a higher version, unless the field is
optional.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from penstock.metadata.topic_ids import from_text

VERSION: Final = 1


class MetadataInvalid(ValueError):
    """A stored value that this version of the software cannot read.

    The broker must stop: without the value it would act on incomplete metadata.
    """

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(
            f"{key} in the metadata store: {problem}. If a newer version wrote it, run that "
            "version; otherwise restore the store from a backup"
        )
        self.key = key


def encode_fields(fields: dict[str, Any], version: int = VERSION) -> bytes:
    return json.dumps({"v": version, **fields}, separators=(",", ":")).encode()


def decode_fields(
    key: str,
    value: bytes,
    names: frozenset[str],
    optional: frozenset[str] = frozenset(),
    version: int = VERSION,
) -> dict[str, Any]:
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise MetadataInvalid(key, f"not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise MetadataInvalid(key, "not a JSON object")
    found = fields.pop("v", None)
    if found != version:
        raise MetadataInvalid(
            key, f"format version {found!r}, but this version of Penstock reads {version}"
        )
    if fields.keys() - optional != names:
        raise MetadataInvalid(key, f"has the fields {sorted(fields)}, not {sorted(names)}")
    return fields


def count_field(key: str, fields: Mapping[str, Any], name: str) -> int:
    value = fields[name]
    if type(value) is not int or value < 0:
        raise MetadataInvalid(key, f"{name} is {value!r}, not a whole number of 0 or more")
    return value


def revision_field(key: str, fields: Mapping[str, Any], name: str, absent: int) -> int:
    value = fields.get(name, absent)
    if type(value) is not int or value < -1:
        raise MetadataInvalid(key, f"{name} is {value!r}, not -1 or a revision")
    return value


def id_field(key: str, fields: Mapping[str, Any], name: str) -> bytes:
    value = fields[name]
    try:
        return from_text(value if isinstance(value, str) else repr(value))
    except ValueError as error:
        raise MetadataInvalid(key, str(error)) from error
