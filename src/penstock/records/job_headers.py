"""The record headers that brokers read in topics for queues, and their values."""

from __future__ import annotations

from typing import Final

DELIVER_AT: Final = "penstock-deliver-at"
"""When a record is due: milliseconds since 1970, as decimal digits."""
EXPIRES_AT: Final = "penstock-expires-at"
"""From when on it is not delivered any more, in the same form."""
DEDUP_ID: Final = "penstock-dedup-id"
OWN_TIMESTAMP: Final = "penstock-timestamp"
"""The timestamp that a record had in its delay topic, in the same form."""

_DIGITS_MAX: Final = 18
"""More digits may not fit into 64 bits."""


def time_in(value: bytes | None) -> int | None:
    """Returns the time in a header's value, or None if it is malformed."""
    if value is None or not 0 < len(value) <= _DIGITS_MAX or not value.isdigit():
        return None
    return int(value)
