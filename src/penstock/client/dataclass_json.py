"""Converts dataclasses to JSON data and back. Pure.

`builder` has cattrs inspect a type once and returns a function that converts JSON data to it, so
that each record costs only calls and no inspection. cattrs is lenient by default: it turns the text
"7" into a number and a text into a list of its characters. The hooks below accept exactly what
`plain` writes. An unsupported type is an error when the builder is made, not when the first record
arrives.
"""

from __future__ import annotations

import dataclasses
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin
from uuid import UUID

from cattrs import BaseValidationError, Converter, transform_error
from cattrs.cols import is_any_set, is_mapping, is_sequence, list_structure_factory
from cattrs.gen import make_dict_structure_fn, mapping_structure_factory

Hook = Callable[[Any, Any], Any]

_FROM_TEXT: Final[Mapping[type, Callable[[str], Any]]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    UUID: UUID,
    Decimal: Decimal,
    bytes: lambda text: b64decode(text, validate=True),
}


def plain(value: Any) -> Any:
    """Converts the value to JSON types."""
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, dict):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} cannot be represented in JSON")


def _key(key: Any) -> str:
    simple = plain(key)
    if isinstance(simple, bool) or not isinstance(simple, str | int):
        raise TypeError(f"{key!r} cannot be a key of a JSON object")
    return str(simple)


def builder(kind: Any) -> Callable[[Any], Any]:
    """Returns a function that converts JSON data to the type."""
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise TypeError(f"{kind!r} is not a dataclass")
    try:
        hook = _converter().get_structure_hook(kind)
    except NameError as error:
        raise TypeError(
            f"{kind.__name__}: {error}: define the types of its fields at the top of its module"
        ) from error

    def build(value: Any) -> Any:
        try:
            return hook(value, kind)
        except BaseValidationError as error:
            raise ValueError("; ".join(_reasons(error, kind.__name__))) from error

    return build


def _reasons(error: BaseValidationError, root: str) -> Iterator[str]:
    """Yields what is wrong, each with its path: `Order.lines[0].sku: 7 is not of type str`."""
    for text in transform_error(error, root, lambda each, _: _reason(each)):
        reason, _, path = text.rpartition(" @ ")
        yield f"{path}: {reason}"


def _reason(error: BaseException) -> str:
    return f"the field {error} is missing" if isinstance(error, KeyError) else str(error)


class _WholeKey:
    """The key of a JSON object whose type is `int`: keys are always text."""


def _converter() -> Converter:
    made = Converter(structure_fallback_factory=_unsupported)
    made.register_structure_hook(_WholeKey, lambda key, _: int(key))
    made.register_structure_hook(NoneType, _expect(NoneType, lambda value, _: value))
    made.register_structure_hook_func(lambda kind: kind is object, lambda value, _: value)
    made.register_structure_hook(float, _number)
    for exact in (str, int, bool):
        made.register_structure_hook(exact, _exactly)
    for kind, read in _FROM_TEXT.items():
        made.register_structure_hook(kind, _from_text(read))
    made.register_structure_hook_factory(dataclasses.is_dataclass, _object)
    made.register_structure_hook_factory(is_mapping, _mapping)
    for is_array in (is_sequence, is_any_set, _is_tuple):
        made.register_structure_hook_factory(is_array, _array)
    made.register_structure_hook_factory(_is_union, _first_of)
    return made


def _is_tuple(kind: Any) -> bool:
    return kind is tuple or get_origin(kind) is tuple


def _is_union(kind: Any) -> bool:
    origin: Any = get_origin(kind)
    return origin in (Union, UnionType)


def _unsupported(kind: Any) -> Hook:
    raise TypeError(f"JSON cannot be converted to {kind!r}")


def _expect(plain_kind: type, then: Hook, name: str = "") -> Hook:
    def hook(value: Any, kind: Any) -> Any:
        if not isinstance(value, plain_kind):
            raise TypeError(f"{value!r} is not of type {name or plain_kind.__name__}")
        return then(value, kind)

    return hook


def _from_text(read: Callable[[str], Any]) -> Hook:
    return _expect(str, lambda text, _: read(text))


def _exactly(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value


def _number(value: Any, _: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _object(kind: type, converter: Converter) -> Hook:
    return _expect(dict, make_dict_structure_fn(kind, converter), kind.__name__)


def _mapping(kind: Any, converter: Converter) -> Hook:
    key, item = get_args(kind) or (Any, Any)
    key = _WholeKey if key is int else key
    return _expect(dict, mapping_structure_factory(kind, converter, key_type=key, val_type=item))


def _array(kind: Any, converter: Converter) -> Hook:
    make: Any = get_origin(kind) or kind
    kinds = get_args(kind)
    if make is tuple and kinds and kinds[-1] is not Ellipsis:
        hooks = [converter.get_structure_hook(each) for each in kinds]
        return _expect(
            list,
            lambda value, _: tuple(
                hook(item, each) for hook, each, item in zip(hooks, kinds, value, strict=True)
            ),
        )
    item: Any = kinds[0] if kinds else Any
    items = list_structure_factory(list[item], converter)
    make = list if make is Sequence else make
    return _expect(list, lambda value, _: make(items(value, None)))


def _first_of(kind: Any, converter: Converter) -> Hook:
    # General types last: str accepts anything written as text, and float accepts integers.
    kinds = sorted(get_args(kind), key=lambda each: {float: 1, str: 2, Any: 3}.get(each, 0))
    hooks = [(converter.get_structure_hook(each), each) for each in kinds]

    def hook(value: Any, _: Any) -> Any:
        for convert, each in hooks:
            try:
                return convert(value, each)
            except (ValueError, TypeError, KeyError, ArithmeticError, BaseValidationError):
                continue
        raise ValueError(f"{value!r} is not of type {kind}")

    return hook
