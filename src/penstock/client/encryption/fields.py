"""Values as objects with fields, and the paths of the fields that are encrypted. Pure.

A field of a path is required or optional. A value without a required field is refused in both
directions: otherwise a wrong name would send a field in the clear, and a person who can write to
the topic could delete a field unnoticed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.client.encryption.envelope import EncryptionFailed
from penstock.client.errors import OptionError
from penstock.client.serializers import Avro


class FieldsCodec(Protocol):
    """A serializer of values with fields."""

    def serialize(self, value: Any, /) -> bytes | None: ...

    def deserialize(self, data: bytes, /) -> Any: ...


class Form(Protocol):
    """How a codec's values become objects with fields, and back."""

    def plain(self, value: Any) -> dict[str, Any] | None: ...

    def to_bytes(self, fields: dict[str, Any]) -> bytes: ...

    def from_bytes(self, data: bytes) -> dict[str, Any]: ...

    def value(self, fields: dict[str, Any]) -> Any: ...


def form_of(codec: FieldsCodec) -> Form:
    return _Records(codec) if isinstance(codec, Avro) else _Objects(codec)


class _Objects:
    """JSON objects: the codec writes and reads them, and the fields are changed in between."""

    def __init__(self, codec: FieldsCodec) -> None:
        self._codec = codec

    def plain(self, value: Any) -> dict[str, Any] | None:
        data = self._codec.serialize(value)
        return None if data is None else self.from_bytes(data)

    def to_bytes(self, fields: dict[str, Any]) -> bytes:
        return json.dumps(
            fields, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode()

    def from_bytes(self, data: bytes) -> dict[str, Any]:
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        return _checked_object(found)

    def value(self, fields: dict[str, Any]) -> Any:
        return self._codec.deserialize(self.to_bytes(fields))


class _Records:
    """Avro records, which are dicts: the fields are changed before they are written."""

    def __init__(self, codec: Avro) -> None:
        self._codec = codec

    def plain(self, value: Any) -> dict[str, Any]:
        return _checked_object(value)

    def to_bytes(self, fields: dict[str, Any]) -> bytes:
        return self._codec.serialize(fields)

    def from_bytes(self, data: bytes) -> dict[str, Any]:
        return _checked_object(self._codec.deserialize(data))

    def value(self, fields: dict[str, Any]) -> Any:
        return fields


@dataclass(frozen=True, slots=True)
class FieldPath:
    """Where an encrypted field is: the names that lead to it, from the outside."""

    names: tuple[str, ...]
    required: bool

    def __str__(self) -> str:
        return ".".join(self.names)

    def change(self, fields: dict[str, Any], change: Callable[[Any, str], Any]) -> dict[str, Any]:
        """Returns a copy in which the field is changed. Leaves out a missing optional field.

        `change` is called with the value of the field and the text of the path. Raises
        `EncryptionFailed` if a required field is missing, or if the path leads through something
        else than objects: a field must never be sent in the clear because it was not found.
        """
        return self._changed(fields, self.names, change)

    def _changed(
        self, fields: Mapping[str, Any], names: Sequence[str], change: Callable[[Any, str], Any]
    ) -> dict[str, Any]:
        first, *rest = names
        found = fields.get(first)
        if first not in fields or (rest and found is None):
            if self.required:
                raise EncryptionFailed(
                    f"the value has no field {self}, which must be encrypted: correct the name, or "
                    "give it in optional_fields if some values do not have it"
                )
            return dict(fields)
        if not rest:
            return {**fields, first: change(found, str(self))}
        if not isinstance(found, dict):
            raise EncryptionFailed(
                f"the field {self} cannot be encrypted: {first} is not an object. Encrypt {first} "
                "as a whole"
            )
        return {**fields, first: self._changed(found, rest, change)}


def checked_paths(fields: Collection[str], optional: Collection[str]) -> list[FieldPath]:
    """Returns the paths of the arguments `fields` and `optional_fields`. Raises `OptionError`."""
    for name, given in (("fields", fields), ("optional_fields", optional)):
        if isinstance(given, str):
            raise OptionError(f"{name} is a single string: give a list, {name}=[{given!r}]")
    paths = [
        *(FieldPath(tuple(each.split(".")), True) for each in sorted(set(fields))),
        *(FieldPath(tuple(each.split(".")), False) for each in sorted(set(optional))),
    ]
    if not paths or not all(all(path.names) for path in paths):
        raise OptionError("fields must be names such as name or address.street: give at least one")
    for one in paths:
        for other in paths:
            if one is other or other.names[: len(one.names)] != one.names:
                continue
            if one.names == other.names:
                raise OptionError(f"{one} is in fields and in optional_fields: leave one out")
            raise OptionError(f"the field {other} is within {one}: leave it out")
    return paths


def _checked_object(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise EncryptionFailed(
            "only values with fields can have encrypted fields: use encrypted for other values"
        )
    return found
