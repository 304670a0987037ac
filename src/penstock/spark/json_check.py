"""Checks whether a parsed JSON value has the expected type, and says why not. Pure.

A check never rejects a value that Arrow's JSON reader would read into that type. It may accept a
value that Arrow then rejects: Arrow has the last word.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa

Check = Callable[[Any], str]
"""Returns what is wrong, to be appended to the name of the value, or an empty string."""

_TIME: Final = re.compile(
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    r"([ T]([01]\d|2[0-3])(:[0-5]\d(:[0-5]\d(\.\d{1,9})?)?)?(Z|[+-]\d\d(:?\d\d)?)?)?"
)
_SHOWN_CHARACTERS: Final = 40
_NORMALIZED_DIGITS: Final = 28
"""`Decimal.normalize` rounds numbers with more digits."""
_NAMES: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.large_string(): "STRING",
}


def check_of(kind: pa.DataType) -> Check:
    if pa.types.is_struct(kind):
        return _struct(kind)
    if pa.types.is_map(kind):
        return _map(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list(kind)
    if pa.types.is_decimal(kind):
        return _decimal(kind)
    if pa.types.is_integer(kind):
        return _integer(kind)
    if pa.types.is_timestamp(kind):
        return _leaf(_is_time, "a TIMESTAMP such as 2026-01-31T12:00:00Z")
    if pa.types.is_date(kind):
        return _leaf(_is_time, "a DATE such as 2026-01-31")
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _leaf(_is_base64, "BINARY in base64")
    name = _NAMES.get(kind, str(kind))
    if pa.types.is_floating(kind):
        return _leaf(lambda value: type(value) in (int, float, Decimal), name)
    return _leaf(lambda value: type(value) is (bool if name == "BOOLEAN" else str), name)


def leaves(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yields the type itself, then all types inside it."""
    yield kind
    for index in range(kind.num_fields):
        yield from leaves(kind.field(index).type)


def _leaf(fits: Callable[[Any], bool], name: str) -> Check:
    return lambda value: "" if fits(value) else f" is {_shown(value)}, not {name}"


def _struct(kind: pa.StructType) -> Check:
    fields = [
        (field.name, check_of(field.type), field.nullable)
        for field in map(kind.field, range(kind.num_fields))
    ]

    def check(value: Any) -> str:
        if type(value) is not dict:
            return f" is {_shown(value)}, not an object"
        for name, check_field, nullable in fields:
            found = value.get(name)
            if found is None:
                if not nullable:
                    return f".{name} is null, but NOT NULL in the schema"
            elif why := check_field(found):
                return f".{name}{why}"
        return ""

    return check


def _map(kind: pa.MapType) -> Check:
    check_item = check_of(kind.item_type)

    def check(value: Any) -> str:
        if type(value) is not dict:
            return f" is {_shown(value)}, not an object"
        for key, item in value.items():
            if item is not None and (why := check_item(item)):
                return f".{key}{why}"
        return ""

    return check


def _list(kind: pa.ListType) -> Check:
    check_item = check_of(kind.value_type)

    def check(value: Any) -> str:
        if type(value) is not list:
            return f" is {_shown(value)}, not an ARRAY"
        for index, item in enumerate(value):
            if item is not None and (why := check_item(item)):
                return f"[{index}]{why}"
        return ""

    return check


def _integer(kind: pa.DataType) -> Check:
    least, most = -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1
    return _leaf(lambda value: type(value) is int and least <= value <= most, _NAMES[kind])


def _decimal(kind: pa.Decimal128Type) -> Check:
    def fits(value: Any) -> bool:
        if type(value) not in (int, str, Decimal):
            return type(value) is float  # NaN or infinity: other numbers are parsed as Decimal.
        try:
            number = Decimal(value)
        except InvalidOperation:
            return False
        if not number.is_finite() or len(number.as_tuple().digits) > _NORMALIZED_DIGITS:
            return True  # Arrow has the last word on these.
        exponent = number.normalize().as_tuple().exponent
        assert isinstance(exponent, int)
        fraction_fits = -exponent <= kind.scale
        return fraction_fits and (not number or number.adjusted() < kind.precision - kind.scale)

    return _leaf(fits, f"a DECIMAL({kind.precision}, {kind.scale})")


def _is_time(value: Any) -> bool:
    return type(value) is str and _TIME.fullmatch(value) is not None


def _is_base64(value: Any) -> bool:
    if type(value) is not str:
        return False
    try:
        b64decode(value, validate=True)
    except ValueError:
        return False
    return True


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
