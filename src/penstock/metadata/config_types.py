"""The definition of a config: a name, a type, a default, bounds, and a description.

Values are sent and stored as text. `Definition.parse` is the only code that converts text to a
typed value, and its error says what is wrong. The numbers of the enums are those of
DescribeConfigs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from math import isfinite
from typing import Final

Value = int | float | bool | str | tuple[str, ...] | None
Check = Callable[[Value], str | None]
"""Returns what is wrong with a value, or None."""


class ConfigType(IntEnum):
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Where an effective value comes from, in order of precedence, except UNKNOWN."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_GROUP_CONFIG = 8


_NUMBER_BITS: Final = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}
LONG_MAX: Final = 2**63 - 1
INT_MAX: Final = 2**31 - 1
_KEY_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker config that provides the default of a topic config. `unit` converts the value, for
    example from hours to ms."""

    name: str
    unit: int = 1

    def scaled(self, value: Value) -> Value:
        """Converts the value. A negative number means "no limit" in every unit."""
        if self.unit == 1 or not isinstance(value, int) or value < 0:
            return value
        return value * self.unit


@dataclass(frozen=True, slots=True)
class Definition:
    """One config."""

    name: str
    type: ConfigType
    default: Value
    doc: str
    check: Check | None = None
    synonyms: tuple[Synonym, ...] = ()
    dynamic: bool = True
    sensitive: bool = False
    no_effect: str = ""
    """Why the setting has no effect here; empty for a setting that is used."""
    set_by: str = ""
    """The key of the broker's config file whose value this setting shows."""

    @property
    def documentation(self) -> str:
        """The description, including whether the setting has an effect and where it is set."""
        if self.no_effect:
            return f"No effect in Penstock: {self.no_effect}. {self.doc}"
        if self.set_by:
            return f"{self.doc} Set it with {self.set_by} in the broker's config file."
        return self.doc

    def parse(self, text: str) -> Value:
        """Returns the typed value. Raises `ValueError` that says what is wrong and what would be
        right."""
        try:
            value = _read(self.type, text.strip())
        except ValueError as error:
            raise ValueError(f"{self.name} is {text!r}: {error}") from None
        problem = self.check(value) if self.check is not None else None
        if problem is not None:
            raise ValueError(f"{self.name} is {text!r}: {problem}")
        return value

    def default_text(self) -> str | None:
        return to_text(self.default)


def to_text(value: Value) -> str | None:
    """Returns the value as Kafka prints it."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(value)
        case _:
            return str(value)


def split_list(text: str) -> tuple[str, ...]:
    parts = (part.strip() for part in text.split(","))
    return tuple(part for part in parts if part)


def _read(kind: ConfigType, text: str) -> Value:
    match kind:
        case ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise ValueError("set it to true or false")
            return text.lower() == "true"
        case ConfigType.SHORT | ConfigType.INT | ConfigType.LONG:
            return _read_whole(text, _NUMBER_BITS[kind])
        case ConfigType.DOUBLE:
            return _read_double(text)
        case ConfigType.LIST:
            return split_list(text)
        case _:
            return text


def _read_whole(text: str, bits: int) -> int:
    bound = 1 << (bits - 1)
    digits = text[1:] if text[:1] in ("-", "+") else text
    # Longer numbers are out of range in any case, and slow to convert.
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 20:
        raise ValueError(f"set it to a whole number of {bits} bits")
    value = int(text)
    if not -bound <= value < bound:
        raise ValueError(f"set it to a whole number between {-bound} and {bound - 1}")
    return value


def _read_double(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("set it to a number") from None
    if not isfinite(value):
        raise ValueError("set it to a finite number")
    return value


def at_least(least: float) -> Check:
    def check(value: Value) -> str | None:
        assert isinstance(value, int | float)
        return None if value >= least else f"set it to {least} or more"

    return check


def between(least: float, most: float, *, besides: int | None = None) -> Check:
    """Checks a number. `besides` is one more number that is allowed."""

    def check(value: Value) -> str | None:
        assert isinstance(value, int | float)
        if least <= value <= most or value == besides:
            return None
        other = "" if besides is None else f", or to {besides}"
        return f"set it between {least} and {most}{other}"

    return check


def one_of(*choices: str) -> Check:
    def check(value: Value) -> str | None:
        return None if value in choices else f"set it to one of {', '.join(choices)}"

    return check


def any_of(*choices: str) -> Check:
    """Checks a list of these choices, each at most once. The list may be empty."""

    def check(value: Value) -> str | None:
        assert isinstance(value, tuple)
        if set(value) <= set(choices) and len(set(value)) == len(value):
            return None
        return f"set it to a comma-separated list of {', '.join(choices)}, each at most once"

    return check


def only(allowed: Value, reason: str) -> Check:
    def check(value: Value) -> str | None:
        return None if value == allowed else reason

    return check


def throttled_replicas(value: Value) -> str | None:
    """Checks Kafka's format: a star for all replicas, or PARTITION:BROKER pairs."""
    assert isinstance(value, tuple)
    if value in ((), ("*",)):
        return None
    for part in value:
        partition, colon, broker = part.partition(":")
        if not (colon and partition.isdigit() and broker.isdigit()):
            return "set it to *, or to a comma-separated list of PARTITION:BROKER pairs"
    return None


def key_name(otherwise: str) -> Check:
    """Accepts the name of an encryption key, or one other word."""

    def check(value: Value) -> str | None:
        if value == otherwise or (isinstance(value, str) and _KEY_NAME.fullmatch(value)):
            return None
        return (
            f"set it to {otherwise}, or to the name of a key: up to 100 letters, digits, dots, "
            "hyphens and underscores"
        )

    return check
