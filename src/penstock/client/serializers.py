"""Serializers: they convert keys and values to bytes and back.

None stays null: it is never passed to a serializer or a deserializer, so plain functions such as
`str.encode` and `json.loads` can be used. All objects of this module have both `serialize` and
`deserialize`, so that one object can be given to a producer and to a consumer:

    Producer(value_serializer=serializers.json)
    Consumer(value_deserializer=serializers.json)

    raw                          bytes, unchanged: the same as giving nothing
    string, String(encoding)     text
    json, Json(...)              any JSON value; compact UTF-8
    int32 int64 float32 float64  big-endian, as in Java
    Dataclass(Class)             a dataclass as JSON, restored with its types
    Pydantic(Model)              a pydantic model as JSON, validated when it is read
    Avro(schema, ...)            Avro, plain or with the prefix of a schema registry

If a serializer raises an error, the user gets a `SerializationFailed` with the record concerned.
Pure.
"""

from __future__ import annotations

import json as _json
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from penstock.client.errors import OptionError

if TYPE_CHECKING:
    from pydantic import BaseModel

    M = TypeVar("M", bound=BaseModel)
else:
    M = TypeVar("M")

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)


class CanSerialize(Protocol[T_contra]):
    def serialize(self, value: T_contra, /) -> bytes | None: ...


class CanDeserialize(Protocol[T_co]):
    def deserialize(self, data: bytes, /) -> T_co: ...


Serializer = Callable[[T], bytes | None] | CanSerialize[T]
Deserializer = Callable[[bytes], T] | CanDeserialize[T]


def serialize_with(given: Serializer[T] | None) -> Callable[[T], bytes | None] | None:
    """Returns the function to call for values other than None; None if bytes pass through
    unchanged."""
    if given is None or isinstance(given, Raw):
        return None
    return _function(given, "serialize")


def deserialize_with(given: Deserializer[T] | None) -> Callable[[bytes], T] | None:
    if given is None or isinstance(given, Raw):
        return None
    return _function(given, "deserialize")


def _function(given: Any, method: str) -> Callable[[Any], Any]:
    found = getattr(given, method, None)
    if found is not None and isinstance(given, type):
        raise OptionError(f"{given.__name__} is a class: give an object, {given.__name__}(...)")
    function: Callable[[Any], Any] = given if found is None else found
    if not callable(function):
        raise OptionError(
            f"{given!r} cannot {method}: give a function of one argument, "
            "or one of penstock.serializers"
        )
    return function


class Raw:
    """Bytes, unchanged."""

    def serialize(self, value: bytes, /) -> bytes:
        return value

    def deserialize(self, data: bytes, /) -> bytes:
        return data


class String:
    """Text in the given encoding."""

    def __init__(self, encoding: str = "utf-8") -> None:
        "".encode(encoding)  # fails here for an unknown encoding, not at the first record
        self.encoding = encoding

    def serialize(self, value: str, /) -> bytes:
        return value.encode(self.encoding)

    def deserialize(self, data: bytes, /) -> str:
        return data.decode(self.encoding)


class Json:
    """JSON. `default` converts objects that JSON does not support; `object_hook` restores them.

    Both work as in `json`. NaN and infinities are refused: they are not JSON, and other readers
    would fail on them.
    """

    def __init__(
        self,
        *,
        default: Callable[[Any], Any] | None = None,
        object_hook: Callable[[dict[str, Any]], Any] | None = None,
        sort_keys: bool = False,
    ) -> None:
        encoder = _json.JSONEncoder(
            ensure_ascii=False,
            allow_nan=False,
            separators=(",", ":"),
            default=default,
            sort_keys=sort_keys,
        )
        self._encode = encoder.encode
        self._object_hook = object_hook

    def serialize(self, value: Any, /) -> bytes:
        return self._encode(value).encode()

    def deserialize(self, data: bytes, /) -> Any:
        return _json.loads(data, object_hook=self._object_hook)


class Packed(Generic[T]):
    """One number of fixed size, big-endian."""

    def __init__(self, layout: str, name: str) -> None:
        self._struct = struct.Struct(layout)
        self._name = name

    def serialize(self, value: T, /) -> bytes:
        try:
            return self._struct.pack(value)
        except struct.error as error:
            raise ValueError(f"cannot serialize {value!r} as {self._name}: {error}") from None

    def deserialize(self, data: bytes, /) -> T:
        if len(data) != self._struct.size:
            raise ValueError(
                f"cannot deserialize {len(data)} bytes as {self._name} ({self._struct.size} bytes)"
            )
        value: T = self._struct.unpack(data)[0]
        return value


raw = Raw()
string = String()
json = Json()
int32: Packed[int] = Packed(">i", "int32")
int64: Packed[int] = Packed(">q", "int64")
float32: Packed[float] = Packed(">f", "float32")
float64: Packed[float] = Packed(">d", "float64")


class Dataclass(Generic[T]):
    """A dataclass as a JSON object.

    When it is read, fields get their declared types: nested dataclasses, lists, dicts, tuples and
    sets of them, optional ones, unions that JSON can distinguish, enums, dates and times (ISO),
    UUIDs, decimals, bytes (base64). Unknown fields are ignored and missing ones get their defaults,
    so that either side may be newer.
    """

    def __init__(self, cls: type[T]) -> None:
        from penstock.client import dataclass_json  # noqa: PLC0415 (few need it)

        self._json = Json(default=dataclass_json.plain)
        self._to_plain = dataclass_json.plain
        self._rebuild: Callable[[Any], T] = dataclass_json.builder(cls)

    def serialize(self, value: T, /) -> bytes:
        return self._json.serialize(self._to_plain(value))

    def deserialize(self, data: bytes, /) -> T:
        return self._rebuild(_json.loads(data))


class Pydantic(Generic[M]):
    """A pydantic model as JSON. Data that does not validate is refused."""

    def __init__(self, model: type[M]) -> None:
        if not hasattr(model, "model_validate_json"):
            raise TypeError(
                f"{model!r} is not a pydantic model (version 2): give a BaseModel class"
            )
        self._model = model

    def serialize(self, value: M, /) -> bytes:
        return value.model_dump_json().encode()

    def deserialize(self, data: bytes, /) -> M:
        return self._model.model_validate_json(data)


class Avro:
    """Avro without a container, for records as dicts.

        Avro(schema)                                 plain Avro; both sides know the schema
        Avro(schema, schema_id=7)                    with the prefix of schema registries
        Avro(schema, schema_id=7, resolve=fetch)     the same, and reads other writers' schemas

    The prefix is a zero byte and the writer's schema id in four bytes. `resolve` is called once for
    each id other than `schema_id` and returns that schema; the data is then read into this object's
    own schema by Avro's rules. Requires the extra `penstock[avro]`.
    """

    def __init__(
        self,
        schema: Mapping[str, Any] | str,
        *,
        schema_id: int | None = None,
        resolve: Callable[[int], Mapping[str, Any] | str] | None = None,
    ) -> None:
        from penstock.client import avro_codec  # noqa: PLC0415 (imports fastavro)

        self._codec = avro_codec.AvroCodec(schema, schema_id, resolve)
        self.serialize: Callable[[Any], bytes] = self._codec.encode
        self.deserialize: Callable[[bytes], Any] = self._codec.decode
