"""Parses times as people write them. Pure: the current time is an argument."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

_AGO: Final = re.compile(r"(\d+)\s*(ms|s|m|h|d|w)")
_UNIT_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_DIGITS_MAX: Final = 9
TIME_FORMS: Final = "2026-01-31T12:00:00Z (UTC by default), 10m (ago: s m h d w), or ms"
"""Used in help texts and errors."""


def parse_time_ms(text: str, now_ms: int) -> int:
    """Returns milliseconds since 1970. Raises `ValueError` with the accepted forms."""
    given = text.strip()
    if given == "now":
        return now_ms
    if given.isascii() and given.isdigit():
        return int(given)
    if found := _AGO.fullmatch(given.removesuffix(" ago")):
        return now_ms - int(found[1]) * _UNIT_MS[found[2]]
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise ValueError(f"{text!r} is not a time: write {TIME_FORMS}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def parse_duration_ms(text: str) -> int:
    """Returns the milliseconds of a time such as 10m. Raises `ValueError` with the forms."""
    found = _AGO.fullmatch(text.strip())
    if found is None or len(found[1]) > _DIGITS_MAX or not int(found[1]):
        raise ValueError(f"{text!r} is not a duration: write a number with ms, s, m, h, d or w")
    return int(found[1]) * _UNIT_MS[found[2]]
