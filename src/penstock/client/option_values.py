"""Parsers for option values: each accepts what users write and returns what the code needs.

A parser also accepts its own results, so that an options object can be made from another's fields.
It raises `OptionError`; the message begins with the option's name and ends with what to give. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any, Final, Literal

from penstock.client.address import Address, parse_bootstrap
from penstock.client.errors import OptionError
from penstock.records.batch import Codec

Read = Callable[[str, Any], Any]
"""Converts the option's name and the given value to the parsed value."""

INT32_MAX: Final = (1 << 31) - 1
ACKS_ALL: Final = -1
EARLIEST_TIMESTAMP: Final = -2
LATEST_TIMESTAMP: Final = -1
GroupProtocol = Literal["classic", "consumer"]
CLASSIC: Final[GroupProtocol] = "classic"
CONSUMER: Final[GroupProtocol] = "consumer"

_ACKS: Final = {0: 0, 1: 1, -1: -1, "0": 0, "1": 1, "-1": -1, "all": -1}
_DURATION: Final = re.compile(
    r"P(?!$)(?:(?P<days>\d+)D)?"
    r"(?:T(?!$)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)


class IsolationLevel(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class ResetPolicy:
    """Where to start if a partition has no committed offset, or one that no longer exists."""

    kind: Literal["earliest", "latest", "none", "timestamp", "duration"]
    value_ms: int = 0
    """The time (milliseconds since 1970) for a timestamp, the length for a duration."""

    def timestamp_ms(self, now_ms: int) -> int:
        """Returns the timestamp for a ListOffsets request. Must not be called for `none`."""
        match self.kind:
            case "earliest":
                return EARLIEST_TIMESTAMP
            case "latest":
                return LATEST_TIMESTAMP
            case "timestamp":
                return self.value_ms
            case "duration":
                return max(now_ms - self.value_ms, 0)
            case "none":
                raise AssertionError("auto_offset_reset is none: there is no timestamp")


# -- parsers -------------------------------------------------------------------------------------


def whole(least: int, most: int = INT32_MAX) -> Read:
    """Parses an integer within bounds. A bool is an int in Python, but a mistake here."""

    def read(name: str, given: Any) -> int:
        if isinstance(given, bool) or not isinstance(given, int):
            raise refused(name, given, f"give a whole number from {least} to {most}")
        if not least <= given <= most:
            raise refused(name, given, f"give {least} to {most}")
        return given

    return read


def flag(name: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise refused(name, given, "give True or False")
    return given


def text(name: str, given: Any) -> str:
    if not isinstance(given, str):
        raise refused(name, given, "give a string")
    return given


def maybe(read: Read) -> Read:
    """Accepts None and returns it unchanged."""

    def read_or_none(name: str, given: Any) -> Any:
        return None if given is None else read(name, given)

    return read_or_none


def name_text(name: str, given: Any) -> str:
    """Parses a name, which must not be empty."""
    if not isinstance(given, str) or not given:
        raise refused(name, given, "give a string that is not empty, or leave the option out")
    return given


def acks(name: str, given: Any) -> int:
    if isinstance(given, bool) or given not in _ACKS:
        raise refused(name, given, 'give 0, 1 or "all"')
    return _ACKS[given]


def codec(name: str, given: Any) -> Codec:
    if isinstance(given, Codec):
        return given
    names = {codec.name.lower(): codec for codec in Codec}
    if not isinstance(given, str) or given not in names:
        raise refused(name, given, f"give one of {_listed(names)}")
    return names[given]


def group_protocol(name: str, given: Any) -> GroupProtocol:
    match given.lower() if isinstance(given, str) else given:
        case "classic":
            return CLASSIC
        case "consumer":
            return CONSUMER
    raise refused(name, given, f'give "{CLASSIC}" or "{CONSUMER}"')


def isolation_level(name: str, given: Any) -> IsolationLevel:
    if isinstance(given, IsolationLevel):
        return given
    names = {level.name.lower(): level for level in IsolationLevel}
    if not isinstance(given, str) or given not in names:
        raise refused(name, given, f"give one of {_listed(names)}")
    return names[given]


def bootstrap(name: str, given: Any) -> tuple[Address, ...]:
    """Parses `"host:9092,other:9092"`, or a sequence of such strings or addresses."""
    parts = [given] if isinstance(given, str) else given
    if not isinstance(parts, Sequence) or not all(
        isinstance(part, str | Address) for part in parts
    ):
        raise refused(name, given, 'give "HOST:PORT,..." or a list of "HOST:PORT"')
    try:
        return parse_bootstrap(",".join(map(str, parts)))
    except ValueError as error:
        raise OptionError(f"bootstrap_servers: {error}") from None


def objects(having: str, what: str) -> Read:
    """Parses a sequence of objects that have the method, and returns a tuple."""

    def read(name: str, given: Any) -> tuple[Any, ...]:
        if isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise refused(name, given, f"give a list of {what}")
        items = tuple(given)
        for item in items:
            if isinstance(item, type):
                raise refused(name, item, f"give {what}, not their classes: {item.__name__}(...)")
            if not callable(getattr(item, having, None)):
                raise refused(name, item, f"give {what}: objects with a method {having}")
        return items

    return read


def strategies(known: Sequence[str]) -> Read:
    """Parses assignors given by name or as objects; a single one need not be in a list."""

    def read(name: str, given: Any) -> tuple[Any, ...]:
        items = tuple(given) if isinstance(given, list | tuple) else (given,)
        if not items:
            raise refused(name, given, f"give at least one of {_listed(known)}")
        for item in items:
            if isinstance(item, str) and item not in known:
                raise refused(name, item, f"give any of {_listed(known)}, or an assignor")
            if isinstance(item, type) or not (isinstance(item, str) or hasattr(item, "assign")):
                raise refused(name, item, f"give any of {_listed(known)}, or an assignor")
        return items

    return read


def reset_policy(name: str, given: Any) -> ResetPolicy:
    """Parses a name, a time, or a duration."""
    if isinstance(given, ResetPolicy):
        return given
    if isinstance(given, datetime):
        return ResetPolicy("timestamp", _epoch_ms(name, given))
    if isinstance(given, timedelta):
        if given < timedelta(0):
            raise refused(name, given, "give a positive duration (how long ago)")
        return ResetPolicy("duration", given // timedelta(milliseconds=1))
    match given:
        case "earliest" | "latest" | "none":
            return ResetPolicy(given)
        case str() if given.startswith("timestamp:"):
            return ResetPolicy("timestamp", _time(name, given, given.removeprefix("timestamp:")))
        case str() if given.startswith("by_duration:"):
            length = _DURATION.fullmatch(given.removeprefix("by_duration:"))
            if length is None:
                raise refused(name, given, "write it as by_duration:PT1H or by_duration:P1DT12H")
            span = timedelta(**{unit: float(n) for unit, n in length.groupdict("0").items()})
            return ResetPolicy("duration", span // timedelta(milliseconds=1))
    advice = 'give "earliest", "latest", "none", a datetime, or "timestamp:<ms or ISO time>"'
    if given in ("smallest", "beginning"):
        advice = 'it is called "earliest" here'
    elif given in ("largest", "end"):
        advice = 'it is called "latest" here'
    elif given == "error":
        advice = 'it is called "none" here: without a position the consumer raises NoOffset'
    raise refused(name, given, advice)


def refused(name: str, given: object, advice: str) -> OptionError:
    return OptionError(f"{name} is {given!r}: {advice}")


def _time(name: str, given: str, when: str) -> int:
    if when.isascii() and when.isdigit():
        return int(when)
    try:
        return _epoch_ms(name, datetime.fromisoformat(when))
    except ValueError as error:
        if isinstance(error, OptionError):
            raise
        raise refused(
            name, given, "write the time as milliseconds since 1970 or as 2024-01-31T12:00:00Z"
        ) from None


def _epoch_ms(name: str, when: datetime) -> int:
    if when.tzinfo is None:
        raise refused(name, when, "give it a time zone, such as tzinfo=timezone.utc")
    return int(when.timestamp() * 1000)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
