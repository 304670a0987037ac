"""Computes Java's string hash, by which Kafka assigns groups and transactional ids to partitions.

The hash is over UTF-16 code units. The partition is chosen by its absolute value. For the one
32-bit number without an absolute value, -2**31, that is zero, as in Kafka.
"""

from __future__ import annotations

from typing import Final

_SIGN: Final = 1 << 31
_MODULUS: Final = 1 << 32


def utf16_units(text: str) -> memoryview:
    """Returns the UTF-16 code units of a text, which are Java's characters."""
    return memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")


def java_hash(text: str) -> int:
    """Returns `String.hashCode()`, a signed 32-bit number."""
    value = 0
    for unit in utf16_units(text):
        value = (31 * value + unit) % _MODULUS
    return value - _MODULUS if value >= _SIGN else value


def partition_of(text: str, partition_count: int) -> int:
    """Returns the partition of the internal topic for this group id or transactional id."""
    code = java_hash(text)
    return (0 if code == -_SIGN else abs(code)) % partition_count
