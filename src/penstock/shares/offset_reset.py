"""Where a share group begins in a partition that it has never read: `share.auto.offset.reset`."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

_BY_DURATION: Final = "by_duration:"
_DURATION: Final = re.compile(
    r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,9}))?S)?)?", re.ASCII
)
_DAYS_MAX: Final = 100_000


class ResetKind(Enum):
    LATEST = "latest"
    EARLIEST = "earliest"
    BY_DURATION = "by_duration"


class OffsetReset(NamedTuple):
    kind: ResetKind = ResetKind.LATEST
    duration_ms: int = 0
    """With BY_DURATION: the first record that is at most this old."""


LATEST: Final = OffsetReset()


def parse_reset(text: str) -> OffsetReset:
    """Returns the meaning of a setting. Raises `ValueError` if it has none.

    Example:
        >>> parse_reset("by_duration:PT1H30M").duration_ms
        5400000
    """
    plain = text.strip()
    if plain.lower() in ("latest", "earliest"):
        return OffsetReset(ResetKind(plain.lower()))
    found = None
    if plain.lower().startswith(_BY_DURATION):
        found = _DURATION.fullmatch(plain[len(_BY_DURATION) :].upper())
    if found is None or not any(found.groups()):
        raise ValueError(
            f"{text!r} is not a start: use latest, earliest, or by_duration: with an ISO 8601 "
            "duration, such as by_duration:PT1H30M"
        )
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups()[:4])
    if days > _DAYS_MAX:
        raise ValueError(f"{text!r} is too long: use at most {_DAYS_MAX} days")
    millis = int((found.group(5) or "").ljust(3, "0")[:3])
    total_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return OffsetReset(ResetKind.BY_DURATION, total_s * 1000 + millis)
