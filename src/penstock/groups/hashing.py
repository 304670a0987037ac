"""Which partition of `__consumer_offsets` a group lives on.

Tools and clients compute this too, so it must be Kafka's answer to the bit: Java's string hash,
which runs over UTF-16 code units, then its absolute value, where the one number without an
absolute value in 32 bits counts as zero.
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


def partition_for_group(group_id: str, partition_count: int) -> int:
    code = java_hash(group_id)
    return (0 if code == -_SIGN else abs(code)) % partition_count
