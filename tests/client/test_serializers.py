"""Tests that keys and values survive serialization, and that unsupported ones are refused."""

from __future__ import annotations

import json as stdlib_json
import math
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from penstock.client import serializers
from penstock.client.errors import OptionError
from penstock.client.serializers import (
    Avro,
    Dataclass,
    Json,
    Pydantic,
    String,
    deserialize_with,
    serialize_with,
)
from penstock.testing.slowness import patient

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def test_functions_and_objects_can_be_serializers() -> None:
    """Functions are called directly, objects by their method, and raw bytes need neither."""
    assert serialize_with(None) is None
    assert serialize_with(serializers.raw) is None
    assert deserialize_with(serializers.raw) is None
    to_bytes = serialize_with(str.encode)
    assert to_bytes is not None
    assert to_bytes("x") == b"x"
    to_text = deserialize_with(serializers.string)
    assert to_text is not None
    assert to_text(b"x") == "x"
    loads = deserialize_with(stdlib_json.loads)
    assert loads is not None
    assert loads(b"[1]") == [1]


@pytest.mark.parametrize("wrong", [7, "json", Json, String])
def test_an_invalid_serializer_is_refused(wrong: Any) -> None:
    """Passing a class instead of an object is the usual mistake, and the error says so."""
    for take in (serialize_with, deserialize_with):
        with pytest.raises(OptionError, match="give a"):
            take(wrong)


@given(st.text())
@settings(deadline=None, max_examples=50)
def test_text_is_encoded_as_utf8(text: str) -> None:
    """Unless another encoding is given."""
    data = serializers.string.serialize(text)
    assert data == text.encode()
    assert serializers.string.deserialize(data) == text


def test_text_in_other_encodings() -> None:
    """An unknown encoding is refused at once."""
    assert String("latin-1").serialize("é") == b"\xe9"
    assert String("latin-1").deserialize(b"\xe9") == "é"
    with pytest.raises(LookupError):
        String("klingon")


@given(JSON_VALUES)
@settings(deadline=None, max_examples=100)
def test_json_values_survive(value: Any) -> None:
    """Any JSON value is returned unchanged."""
    assert serializers.json.deserialize(serializers.json.serialize(value)) == value


def test_json_is_compact_and_strict() -> None:
    """No spaces, no unnecessary escapes, and no NaN, which other readers cannot parse."""
    assert serializers.json.serialize({"a": [1, "é"]}) == '{"a":[1,"é"]}'.encode()
    with pytest.raises(ValueError, match="JSON"):
        serializers.json.serialize(math.nan)


def test_json_hooks() -> None:
    """`default` converts types that JSON does not have, and `object_hook` converts them back."""
    own = Json(default=str, object_hook=lambda found: tuple(found.items()), sort_keys=True)
    assert own.serialize({"b": UUID(int=1), "a": 1}) == (
        b'{"a":1,"b":"00000000-0000-0000-0000-000000000001"}'
    )
    assert own.deserialize(b'{"a":1}') == (("a", 1),)


@pytest.mark.parametrize(
    ("numbers", "layout", "value"),
    [
        (serializers.int32, ">i", -5),
        (serializers.int64, ">q", 1 << 40),
        (serializers.float32, ">f", 0.5),
        (serializers.float64, ">d", math.pi),
    ],
)
def test_numbers_have_javas_format(
    numbers: serializers.Packed[Any], layout: str, value: float
) -> None:
    """Big-endian and of fixed size."""
    data = numbers.serialize(value)
    assert data == struct.pack(layout, value)
    assert numbers.deserialize(data) == value
    with pytest.raises(ValueError, match="cannot deserialize"):
        numbers.deserialize(data + b"x")
    with pytest.raises(ValueError, match="cannot serialize"):
        numbers.serialize("x")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    sku: str
    price: Decimal
    count: int = 1


@dataclass
class Order:
    id: UUID
    at: datetime
    lines: list[Line]
    colour: Colour = Colour.RED
    note: str | None = None
    weight: float = 0.0
    day: date | None = None
    tags: set[str] = field(default_factory=set)
    point: tuple[int, float] = (0, 0.0)
    path: tuple[str, ...] = ()
    by_number: dict[int, Line] = field(default_factory=dict)
    blob: bytes = b""
    either: int | str | Line = 0
    mode: Literal["fast", "slow"] = "fast"
    anything: Any = None
    parent: Order | None = None
    secret: int = field(default=3, init=False)


class Level(Enum):
    LOW = 1


@dataclass
class Holder:
    level: Level
    table: dict[str, int]


LINES = st.builds(
    Line, st.text(max_size=5), st.decimals(allow_nan=False, allow_infinity=False), st.integers()
)
ORDERS: st.SearchStrategy[Order] = st.builds(
    Order,
    id=st.uuids(),
    at=st.datetimes(timezones=st.just(UTC)),
    lines=st.lists(LINES, max_size=2),
    colour=st.sampled_from(Colour),
    note=st.none() | st.text(max_size=5),
    weight=st.floats(allow_nan=False, allow_infinity=False),
    day=st.none() | st.dates(),
    tags=st.sets(st.text(max_size=3), max_size=2),
    point=st.tuples(st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
    path=st.lists(st.text(max_size=3), max_size=2).map(tuple),
    by_number=st.dictionaries(st.integers(), LINES, max_size=2),
    blob=st.binary(max_size=5),
    either=st.integers() | st.text(max_size=3) | LINES,
    mode=st.sampled_from(["fast", "slow"]),
)


@given(ORDERS)
@settings(deadline=None, max_examples=100)
def test_dataclasses_keep_their_types(order: Order) -> None:
    """Nested, optional and in collections: equal to the original by value and by type."""
    orders = Dataclass(Order)
    order.parent = Order(UUID(int=1), datetime(2024, 1, 1, tzinfo=UTC), [])
    back = orders.deserialize(orders.serialize(order))
    assert back == order
    assert isinstance(back.parent, Order)
    assert type(back.weight) is float


def test_reader_and_writer_may_have_different_versions_of_a_dataclass() -> None:
    """Unknown fields are ignored, missing fields get their default."""
    lines = Dataclass(Line)
    assert lines.deserialize(b'{"sku":"a","price":"1.50","later":[]}') == Line("a", Decimal("1.50"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"price":"1"}', "sku"),
        (b'{"sku":7,"price":"1"}', "Line.sku: 7 is not of type str"),
        (b'{"sku":"a","price":"x"}', "Line.price"),
        (b'{"sku":"a","price":"1","count":true}', "Line.count: True is not of type int"),
        (b"[]", "is not of type Line"),
        (b"{", "Expecting"),
    ],
)
def test_data_that_does_not_match_the_dataclass_is_refused(data: bytes, message: str) -> None:
    """The error names the field."""
    with pytest.raises((ValueError, TypeError), match=message):
        Dataclass(Line).deserialize(data)


def test_types_that_json_cannot_represent_are_refused_early() -> None:
    """When the serializer is created, not at the first record."""

    @dataclass
    class Odd:
        callback: Callable[[], int]

    with pytest.raises(TypeError, match="JSON cannot"):
        Dataclass(Odd)

    class Hidden: ...

    @dataclass
    class Local:
        hidden: Hidden

    with pytest.raises(TypeError, match=r"Hidden.*top of its module"):
        Dataclass(Local)
    with pytest.raises(TypeError, match="not a dataclass"):
        Dataclass(int)
    with pytest.raises(TypeError, match="cannot be represented in JSON"):
        Dataclass(Line).serialize(Line("a", object()))  # type: ignore[arg-type]


def test_enums_of_numbers_and_unusual_keys() -> None:
    """Enums are written by value, not by name. Keys must be text or integers."""

    holders = Dataclass(Holder)
    sent = Holder(Level.LOW, {"a": 1})
    assert holders.serialize(sent) == b'{"level":1,"table":{"a":1}}'
    assert holders.deserialize(holders.serialize(sent)) == sent
    with pytest.raises(TypeError, match="key"):
        holders.serialize(Holder(Level.LOW, {2.5: 1}))  # type: ignore[dict-item]


class Reading(BaseModel):
    sensor: str
    value: float


def test_pydantic_models_are_serialized_and_validated() -> None:
    readings = Pydantic(Reading)
    reading = Reading(sensor="a", value=1.5)
    assert readings.deserialize(readings.serialize(reading)) == reading
    with pytest.raises(ValidationError):
        readings.deserialize(b'{"sensor":"a","value":"warm"}')
    with pytest.raises(TypeError, match="pydantic"):
        Pydantic(Line)  # type: ignore[type-var]


SCHEMA = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": "sensor", "type": "string"}, {"name": "value", "type": "double"}],
}
NEWER = {
    **SCHEMA,
    "fields": [*SCHEMA["fields"], {"name": "unit", "type": "string", "default": "K"}],
}
VALUE = {"sensor": "a", "value": 1.5}


def test_avro_without_a_prefix() -> None:
    """Only the data: a length, the text, eight bytes of a double."""
    avro = Avro(SCHEMA)
    data = avro.serialize(VALUE)
    assert data == b"\x02a" + struct.pack("<d", 1.5)
    assert avro.deserialize(data) == VALUE
    assert Avro(stdlib_json.dumps(SCHEMA)).deserialize(data) == VALUE
    with pytest.raises(ValueError, match="left over"):
        avro.deserialize(data + b"x")


def test_avro_with_a_schema_registrys_prefix() -> None:
    """A zero byte, the id, the data. A reader with a newer schema resolves the old one once."""
    old = Avro(SCHEMA, schema_id=7)
    data = old.serialize(VALUE)
    assert data[:5] == b"\x00\x00\x00\x00\x07"
    assert old.deserialize(data) == VALUE
    asked: list[int] = []

    def resolve(schema_id: int) -> dict[str, Any]:
        asked.append(schema_id)
        return SCHEMA

    new = Avro(NEWER, schema_id=8, resolve=resolve)
    assert new.deserialize(data) == {**VALUE, "unit": "K"}
    assert new.deserialize(data) == {**VALUE, "unit": "K"}
    assert asked == [7]
    assert new.deserialize(new.serialize({**VALUE, "unit": "C"}))["unit"] == "C"


def test_wrong_avro_prefixes_are_refused() -> None:
    """An unknown id, a missing prefix, no id to write: each error says what to give."""
    data = Avro(SCHEMA, schema_id=7).serialize(VALUE)
    with pytest.raises(ValueError, match=r"schema id 7 is not known: give Avro\(resolve"):
        Avro(SCHEMA, schema_id=8).deserialize(data)
    for broken in (b"", b"\x01\x00\x00\x00\x07", data[:4]):
        with pytest.raises(ValueError, match="prefix"):
            Avro(SCHEMA, schema_id=7).deserialize(broken)
    with pytest.raises(ValueError, match="schema_id"):
        Avro(SCHEMA, resolve=lambda _: SCHEMA).serialize(VALUE)


@pytest.mark.parametrize(
    ("module", "use", "extra"),
    [
        ("fastavro", "from penstock.client.serializers import Avro; Avro({})", "penstock[avro]"),
        ("opentelemetry", "import penstock.client.tracing", "penstock[otel]"),
    ],
)
def test_missing_libraries_are_named(module: str, use: str, extra: str) -> None:
    """Everything else can be imported without the library. Using it raises an error
    that says what to install."""
    code = (
        f"import sys; sys.modules['{module}'] = None\n"
        "import penstock.client.serializers, penstock.client.options\n"
        f"try:\n    {use}\nexcept ImportError as error:\n    print(error)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=patient(60),
    )
    assert extra in ran.stdout, ran.stderr
