"""Java's string hash, to the bit: what Kafka places groups and transactional ids by.

It runs over UTF-16 code units. Its absolute value, by which a partition is chosen, counts the one
number without an absolute value in 32 bits as zero.
"""

from __future__ import annotations

from typing import Final

_SIGN: Final = 1 << 31
_MODULUS: Final = 1 << 32


def utf16_units(text: str) -> memoryview:
    """The UTF-16 code units of a text: what Java calls its characters."""
    return memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")


def java_hash(text: str) -> int:
    """`String.hashCode()`: a signed 32-bit number."""
    value = 0
    for unit in utf16_units(text):
        value = (31 * value + unit) % _MODULUS
    return value - _MODULUS if value >= _SIGN else value


def partition_of(text: str, partition_count: int) -> int:
    """Where Kafka's coordinators keep what is known by this text."""
    code = java_hash(text)
    return (0 if code == -_SIGN else abs(code)) % partition_count
