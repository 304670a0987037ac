"""Converts plain JSON data to typed dataclasses and back. Pure.

`builder` inspects a type once and returns a function that converts plain data to it, so that each
record costs only calls and no inspection. `plain` is the opposite direction. Both support the same
types. An unsupported type is an error when the builder is made, not when the first record arrives.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Final, Literal, get_args, get_origin
from uuid import UUID

Build = Callable[[Any], Any]

_FROM_TEXT: Final[Mapping[type, Callable[[str], Any]]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    UUID: UUID,
    Decimal: Decimal,
    bytes: lambda text: b64decode(text, validate=True),
}
_COLLECTIONS: Final[Mapping[Any, Callable[[Any], Any]]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    Sequence: list,
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


def builder(kind: Any) -> Build:
    """Returns a function that converts plain data to the type."""
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise TypeError(f"{kind!r} is not a dataclass")
    return _Builders().of(kind)


class _Builders:
    def __init__(self) -> None:
        self._made: dict[type, Build] = {}

    def of(self, kind: Any) -> Build:
        if kind is Any or kind is object:
            return lambda value: value
        if kind is None or kind is type(None):
            return _expect(type(None), lambda value: value)
        origin = get_origin(kind)
        if origin is not None:
            return self._generic(kind, origin, get_args(kind))
        if isinstance(kind, type):
            return self._simple(kind)
        raise TypeError(f"JSON cannot be converted to {kind!r}")

    def _simple(self, kind: type) -> Build:
        if dataclasses.is_dataclass(kind):
            return self._dataclass(kind)
        if issubclass(kind, Enum):
            return kind
        if kind in _FROM_TEXT:
            return _expect(str, _FROM_TEXT[kind])
        if kind is float:
            return _number
        if kind in (str, bool, int):
            return _exactly(kind)
        if kind in (list, dict):
            return _expect(kind, lambda value: value)
        if kind in (tuple, set, frozenset):
            return _expect(list, kind)
        raise TypeError(f"JSON cannot be converted to {kind!r}")

    def _dataclass(self, kind: type) -> Build:
        known = self._made.get(kind)
        if known is not None:
            return known
        steps: dict[str, Build] = {}

        def build(value: Any) -> Any:
            if not isinstance(value, dict):
                raise TypeError(f"{value!r} is not of type {kind.__name__}")
            given = {name: step(value[name]) for name, step in steps.items() if name in value}
            return kind(**given)

        # Before its fields are inspected: one of them may be of this same type.
        self._made[kind] = build
        hints = _hints(kind)
        for field in dataclasses.fields(kind):
            if field.init:
                steps[field.name] = _named(
                    f"{kind.__name__}.{field.name}", self.of(hints[field.name])
                )
        return build

    def _generic(self, kind: Any, origin: Any, arguments: tuple[Any, ...]) -> Build:
        if origin is typing.Annotated:
            return self.of(arguments[0])
        if origin is Literal:
            return _one_of(arguments)
        if origin in (types.UnionType, typing.Union):
            return _first_of([self.of(each) for each in _most_telling_first(arguments)], kind)
        if origin is tuple:
            return self._tuple(arguments)
        if origin in _COLLECTIONS:
            item, make = self.of(arguments[0]), _COLLECTIONS[origin]
            return _expect(list, lambda value: make(item(each) for each in value))
        if origin in (dict, Mapping):
            key, item = self._key(arguments[0]), self.of(arguments[1])
            return _expect(
                dict, lambda value: {key(name): item(each) for name, each in value.items()}
            )
        raise TypeError(f"JSON cannot be converted to {kind!r}")

    def _tuple(self, arguments: tuple[Any, ...]) -> Build:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            item = self.of(arguments[0])
            return _expect(list, lambda value: tuple(item(each) for each in value))
        items = [self.of(each) for each in arguments]
        return _expect(
            list,
            lambda value: tuple(build(each) for build, each in zip(items, value, strict=True)),
        )

    def _key(self, kind: Any) -> Build:
        """Keys of JSON objects are always text."""
        return int if kind is int else self.of(kind)


def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"{kind.__name__}: {error}: define the types of its fields at the top of its module"
        ) from error


def _expect(plain_kind: type, then: Build) -> Build:
    def build(value: Any) -> Any:
        if not isinstance(value, plain_kind):
            raise TypeError(f"{value!r} is not of type {plain_kind.__name__}")
        return then(value)

    return build


def _exactly(kind: type) -> Build:
    def build(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"{value!r} is not of type {kind.__name__}")
        return value

    return build


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _one_of(choices: tuple[Any, ...]) -> Build:
    def build(value: Any) -> Any:
        if value not in choices:
            raise ValueError(f"{value!r} is not one of {list(choices)}")
        return value

    return build


def _most_telling_first(kinds: Sequence[Any]) -> list[Any]:
    """Sorts general types last: str accepts anything written as text, and float accepts
    integers."""
    return sorted(kinds, key=lambda kind: {float: 1, str: 2, Any: 3}.get(kind, 0))


def _first_of(builds: Sequence[Build], kind: Any) -> Build:
    def build(value: Any) -> Any:
        for each in builds:
            try:
                return each(value)
            except (ValueError, TypeError, KeyError, ArithmeticError):
                continue
        raise ValueError(f"{value!r} is not of type {kind}")

    return build


def _named(name: str, inner: Build) -> Build:
    def build(value: Any) -> Any:
        try:
            return inner(value)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise ValueError(f"{name}: {error}") from error

    return build
