"""Which partition a key belongs to: the same one that Java's producer puts it in. Pure.

The hash is 32-bit MurmurHash2 with the seed Kafka chose; its sign bit is dropped and the rest
taken modulo the number of partitions. A key so lands in one place whoever writes it.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The hash as an unsigned 32-bit number."""
    size = len(data)
    words = size // 4
    state = _SEED ^ size
    for word in struct.unpack_from(f"<{words}I", data):
        mixed = (word * _FACTOR) & _MASK
        mixed = ((mixed ^ (mixed >> 24)) * _FACTOR) & _MASK
        state = ((state * _FACTOR) & _MASK) ^ mixed
    if rest := data[words * 4 :]:
        state = ((state ^ int.from_bytes(rest, "little")) * _FACTOR) & _MASK
    state = ((state ^ (state >> 13)) * _FACTOR) & _MASK
    return state ^ (state >> 15)


@lru_cache(maxsize=1 << 16)
def partition_of(key: bytes, partitions: int) -> int:
    """Kept for keys seen lately: real data repeats its keys, and hashing is the slow part."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
