"""Serializers: they convert keys and values to bytes and back. Pure.

`penstock.serializers` lists them and explains nulls. All objects of this module have both
`serialize` and `deserialize`, so that one object can be given to a producer and to a consumer.
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
"""What a producer accepts as `key_serializer` and `value_serializer`: a function from a value to
bytes, or an object with a method `serialize`. It is the type for your own annotations.

Example:
    upper: serializers.Serializer[str] = lambda text: text.upper().encode()
    with Producer("localhost:9092", value_serializer=upper) as producer:
        producer.send("orders", "tea").result()
"""
Deserializer = Callable[[bytes], T] | CanDeserialize[T]
"""What a consumer accepts as `key_deserializer` and `value_deserializer`: a function from bytes to
a value, or an object with a method `deserialize`.

Example:
    upper: serializers.Deserializer[str] = lambda data: data.decode().upper()
    with Consumer(
        "localhost:9092", topics="orders", auto_offset_reset="earliest", value_deserializer=upper
    ) as consumer:
        print(consumer.poll(timeout_ms=10_000)[0].value)
    #> TEA
"""


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
    """Text in the given encoding. `serializers.string` is the one for UTF-8.

    An unknown encoding raises `LookupError` here, not at the first record.

    Example:
        latin = serializers.String("latin-1")
        print(latin.serialize("thé"), latin.deserialize(b"th\\xe9"))
        #> b'th\\xe9' thé
    """

    def __init__(self, encoding: str = "utf-8") -> None:
        "".encode(encoding)  # fails here for an unknown encoding, not at the first record
        self.encoding = encoding

    def serialize(self, value: str, /) -> bytes:
        """Encodes the text."""
        return value.encode(self.encoding)

    def deserialize(self, data: bytes, /) -> str:
        """Decodes the text. Raises `UnicodeDecodeError` for other bytes."""
        return data.decode(self.encoding)


class Json:
    """JSON. `default` converts objects that JSON does not support; `object_hook` restores them.

    Both work as in the module `json` of Python. NaN and infinities are refused: they are not JSON,
    and other readers would fail on them. `serializers.json` is one without arguments.

    Example:
        from datetime import date

        with_dates = serializers.Json(default=str)
        print(with_dates.serialize({"sku": "tea", "day": date(2026, 1, 31)}))
        #> b'{"sku":"tea","day":"2026-01-31"}'
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
        """Returns the value as JSON. Raises `TypeError` or `ValueError` if it has no JSON."""
        return self._encode(value).encode()

    def deserialize(self, data: bytes, /) -> Any:
        """Parses JSON. Raises `ValueError` for other bytes."""
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
"""Bytes, unchanged: the same as no serializer.

Example:
    print(serializers.raw.serialize(b"tea"))
    #> b'tea'
"""
string = String()
"""Text in UTF-8.

Example:
    with Producer("localhost:9092", key_serializer=serializers.string) as producer:
        producer.send("orders", b"tea", key="ann").result()
"""
json = Json()
"""Any JSON value, in compact UTF-8.

Example:
    with Producer("localhost:9092", value_serializer=serializers.json) as producer:
        producer.send("orders", {"sku": "tea", "count": 2}).result()
"""
int32: Packed[int] = Packed(">i", "int32")
"""A whole number in 4 bytes, as Java's IntegerSerializer writes it.

Example:
    print(serializers.int32.serialize(42), serializers.int32.deserialize(bytes(4)))
    #> b'\\x00\\x00\\x00*' 0
"""
int64: Packed[int] = Packed(">q", "int64")
"""A whole number in 8 bytes, as Java's LongSerializer writes it.

Example:
    print(serializers.int64.serialize(42))
    #> b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00*'
"""
float32: Packed[float] = Packed(">f", "float32")
"""A number in 4 bytes, as Java's FloatSerializer writes it.

Example:
    print(serializers.float32.deserialize(serializers.float32.serialize(0.5)))
    #> 0.5
"""
float64: Packed[float] = Packed(">d", "float64")
"""A number in 8 bytes, as Java's DoubleSerializer writes it.

Example:
    print(serializers.float64.deserialize(serializers.float64.serialize(0.1)))
    #> 0.1
"""


class Dataclass(Generic[T]):
    """A dataclass as a JSON object.

    When it is read, fields get their declared types: nested dataclasses, lists, dicts, tuples and
    sets of them, optional ones, unions that JSON can distinguish, enums, dates and times (ISO),
    UUIDs, decimals, bytes (base64). Unknown fields are ignored and missing ones get their defaults,
    so that either side may be newer.

    Example:
        from dataclasses import dataclass

        @dataclass
        class Order:
            sku: str
            count: int = 1

        orders = serializers.Dataclass(Order)
        print(orders.serialize(Order("tea")), orders.deserialize(b'{"sku": "milk"}'))
        #> b'{"sku":"tea","count":1}' Order(sku='milk', count=1)
    """

    def __init__(self, cls: type[T]) -> None:
        from penstock.client import dataclass_json  # noqa: PLC0415 (few need it)

        self._json = Json(default=dataclass_json.plain)
        self._to_plain = dataclass_json.plain
        self._rebuild: Callable[[Any], T] = dataclass_json.builder(cls)

    def serialize(self, value: T, /) -> bytes:
        """Returns the fields as a JSON object."""
        return self._json.serialize(self._to_plain(value))

    def deserialize(self, data: bytes, /) -> T:
        """Makes the dataclass. Raises `ValueError` if a field is missing or has another type."""
        return self._rebuild(_json.loads(data))


class Pydantic(Generic[M]):
    """A pydantic model as JSON. Data that does not validate is refused.

    Example:
        from pydantic import BaseModel

        class Order(BaseModel):
            sku: str
            count: int = 1

        orders = serializers.Pydantic(Order)
        print(orders.serialize(Order(sku="tea")), orders.deserialize(b'{"sku": "milk"}'))
        #> b'{"sku":"tea","count":1}' sku='milk' count=1
    """

    def __init__(self, model: type[M]) -> None:
        if not hasattr(model, "model_validate_json"):
            raise TypeError(
                f"{model!r} is not a pydantic model (version 2): give a BaseModel class"
            )
        self._model = model

    def serialize(self, value: M, /) -> bytes:
        """Returns the model as JSON."""
        return value.model_dump_json().encode()

    def deserialize(self, data: bytes, /) -> M:
        """Makes the model. Raises pydantic's `ValidationError` for data that does not fit it."""
        return self._model.model_validate_json(data)


class Avro:
    """Avro without a container, for records as dicts. Requires the extra `penstock[avro]`.

    `Avro(schema)` is for data whose schema both sides know. `Avro(schema, schema_id=7)` adds the
    prefix of schema registries: a zero byte and the writer's schema id in four bytes. With
    `resolve`, other writers' schemas can be read: it is called once for each id other than
    `schema_id` and returns that schema. The data is then read into this object's own schema by
    Avro's rules.

    Example:
        fields = [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}]
        orders = serializers.Avro({"type": "record", "name": "Order", "fields": fields})
        data = orders.serialize({"sku": "tea", "count": 2})
        print(data, orders.deserialize(data))
        #> b'\\x06tea\\x04' {'sku': 'tea', 'count': 2}
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
