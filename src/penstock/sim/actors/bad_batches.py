"""Record batches with a valid CRC and header whose records cannot be decoded.

A broker that checks only the header accepts them. Every reader of the partition then fails on them:
consumers, the cleaner and the search by time. A leader must refuse each of them with INVALID_RECORD
and append nothing.

    batch = bad_batch("count_too_high", [Record(0, now_ms, b"key", b"value")])

`KINDS` lists all kinds in a fixed order, so that a workload can draw one by its number. All kinds
look like the work of a producer: offsets from 0, a record count that fits the offset span, and a
correct length and CRC. Only decoding the records shows what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from penstock.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    Codec,
    read_header,
    seal,
    write_header,
)
from penstock.records.compression import compress
from penstock.records.record import Record, build_batch

_COUNT_EXCESS: Final = 9
_FIRST_OFFSET_DELTA_AT: Final = 3
"""The position of the first record's offset delta, if the record's length takes one byte."""


def _rebuild(header: BatchHeader, payload: bytes, **changes: int) -> bytearray:
    """Returns a batch with `header` and `payload`, with a correct length and CRC."""
    batch = bytearray(HEADER_SIZE) + payload
    changed = header._replace(batch_length=len(batch) - LOG_OVERHEAD, **changes)
    write_header(batch, 0, changed)
    seal(batch, 0, len(batch))
    return batch


def _claim(header: BatchHeader, payload: bytes, count: int) -> bytearray:
    return _rebuild(header, payload, record_count=count, last_offset_delta=count - 1)


def _count_too_high(header: BatchHeader, payload: bytes) -> bytearray:
    return _claim(header, payload, header.record_count + _COUNT_EXCESS)


def _count_too_low(header: BatchHeader, payload: bytes) -> bytearray:
    """More records than the header says: bytes follow the last record."""
    doubled = payload + payload
    return _claim(header, doubled, header.record_count)


def _record_cut_off(header: BatchHeader, payload: bytes) -> bytearray:
    return _rebuild(header, payload[:-1])


def _record_length_negative(header: BatchHeader, payload: bytes) -> bytearray:
    return _rebuild(header, b"\x01" + payload[1:])


def _record_length_endless(header: BatchHeader, payload: bytes) -> bytearray:
    """A varint that never ends."""
    return _rebuild(header, b"\xff" * len(payload))


def _offset_delta_wrong(header: BatchHeader, payload: bytes) -> bytearray:
    """The first record has offset delta 1. A producer starts at 0 and leaves no gaps."""
    broken = bytearray(payload)
    broken[_FIRST_OFFSET_DELTA_AT] = 2
    return _rebuild(header, bytes(broken))


def _key_too_long(header: BatchHeader, payload: bytes) -> bytearray:
    broken = bytearray(payload)
    broken[_FIRST_OFFSET_DELTA_AT + 1] = 0x7E
    return _rebuild(header, bytes(broken))


def _bytes_at_the_end(header: BatchHeader, payload: bytes) -> bytearray:
    return _rebuild(header, payload + b"\x00")


def _noise(header: BatchHeader, payload: bytes) -> bytearray:
    return _rebuild(header, bytes((7 * at + 0x35) & 0xFF for at in range(len(payload))))


def _compressed_noise(header: BatchHeader, payload: bytes) -> bytearray:
    """The header names a codec, but the bytes are not compressed with it."""
    return _rebuild(header, b"\x00" + payload, attributes=int(Codec.ZSTD))


def _compressed_cut_off(header: BatchHeader, payload: bytes) -> bytearray:
    packed = compress(Codec.GZIP, payload)
    return _rebuild(header, packed[: len(packed) // 2], attributes=int(Codec.GZIP))


def _compressed_count_too_high(header: BatchHeader, payload: bytes) -> bytearray:
    count = header.record_count + _COUNT_EXCESS
    return _rebuild(
        header,
        compress(Codec.LZ4, payload),
        attributes=int(Codec.LZ4),
        record_count=count,
        last_offset_delta=count - 1,
    )


_BREAK: Final[Mapping[str, Callable[[BatchHeader, bytes], bytearray]]] = MappingProxyType(
    {
        "count_too_high": _count_too_high,
        "count_too_low": _count_too_low,
        "record_cut_off": _record_cut_off,
        "record_length_negative": _record_length_negative,
        "record_length_endless": _record_length_endless,
        "offset_delta_wrong": _offset_delta_wrong,
        "key_too_long": _key_too_long,
        "bytes_at_the_end": _bytes_at_the_end,
        "noise": _noise,
        "compressed_noise": _compressed_noise,
        "compressed_cut_off": _compressed_cut_off,
        "compressed_count_too_high": _compressed_count_too_high,
    }
)
KINDS: Final = tuple(_BREAK)


def bad_batch(kind: str, records: Sequence[Record], **producer: int) -> bytearray:
    """Returns a batch of `records` that is broken in the way of `kind`, one of `KINDS`.

    The records need offsets from 0 on, and the first of them must take less than 64 bytes.
    `producer` may give `producer_id`, `producer_epoch` and `base_sequence`, as for `build_batch`.
    """
    if not records or records[0].offset != 0:
        raise ValueError("a bad batch needs records with offsets from 0 on")
    # mypy cannot match keywords from a mapping with parameters of several types.
    good = build_batch(records, **producer)  # type: ignore[arg-type]
    if good[HEADER_SIZE] >= 0x80:
        raise ValueError("the first record of a bad batch must take less than 64 bytes")
    return _BREAK[kind](read_header(good), bytes(good[HEADER_SIZE:]))
