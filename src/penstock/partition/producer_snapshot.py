"""Reads and writes Kafka's `.snapshot` file, version 1: a partition's producers at one offset.

    int16   version, 1
    uint32  CRC32C of everything that follows
    int32   count, then per entry:
        int64  producer id
        int16  epoch
        int32  last sequence            -1 if only a marker is known
        int64  last offset              -1 likewise
        int32  offset delta             of the last batch: its span of offsets and of sequences
        int64  timestamp                of the producer's last batch or marker
        int32  coordinator epoch        -1 if no marker was seen
        int64  first offset of the open transaction, -1 if there is none
    then, for each producer in the order of its first entry (Kafka does not read this):
        int64  when it last appended, by the broker's clock

An entry holds one batch, so Kafka's snapshot contains only a producer's last batch. Of the five
batches that a running partition remembers, the older four are restored only if they are above the
snapshot's offset, where the log is replayed. Kafka's loader and dump tool let a later entry of a
producer replace an earlier one. That makes several entries per producer safe to write, and
`ProducerStates.load` adds them up.

Producers expire by the time of their last append. Kafka has no field for it and reads no further
than the entries, so these times are stored after them. A snapshot without them is valid.

A snapshot is derived data: a corrupt one is deleted, and an older one or the whole log is replayed
instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final

from crc32c import crc32c

from penstock.partition.producer_state import ProducerEntry

VERSION: Final = 1

_PREFIX: Final = Struct(">hIi")
_CRC_END: Final = 6
_COUNT: Final = Struct(">i")
_ENTRY: Final = Struct(">qhiqiqiq")
_TIME: Final = Struct(">q")


class CorruptSnapshot(ValueError):
    """The bytes are not a valid snapshot; the message says why."""


def encode_snapshot(
    entries: Iterable[ProducerEntry], append_times: Mapping[int, int] | None = None
) -> bytes:
    entries = list(entries)
    packed = [_ENTRY.pack(*entry) for entry in entries]
    times = [_TIME.pack(append_times[each]) for each in _order(entries)] if append_times else []
    body = _COUNT.pack(len(packed)) + b"".join((*packed, *times))
    return _PREFIX.pack(VERSION, crc32c(body), len(packed)) + body[_COUNT.size :]


def _order(entries: Iterable[ProducerEntry]) -> dict[int, None]:
    return dict.fromkeys(entry.producer_id for entry in entries)


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    return decode_with_times(data)[0]


def decode_with_times(data: bytes) -> tuple[list[ProducerEntry], dict[int, int]]:
    """Returns the entries, and when each producer last appended, if the snapshot has these
    times."""
    if len(data) < _PREFIX.size:
        raise CorruptSnapshot(
            f"a snapshot has at least {_PREFIX.size} bytes, but this one has {len(data)}"
        )
    version, checksum, count = _PREFIX.unpack_from(data)
    if version != VERSION:
        raise CorruptSnapshot(
            f"snapshot version {version} is unknown: only version {VERSION} can be read"
        )
    found = crc32c(memoryview(data)[_CRC_END:])
    if found != checksum:
        raise CorruptSnapshot(f"the CRC is {found:#010x}, but the snapshot says {checksum:#010x}")
    body = memoryview(data)[_PREFIX.size :]
    end = count * _ENTRY.size
    if 0 <= end <= len(body) and (len(body) - end) % _TIME.size == 0:
        entries = [ProducerEntry._make(fields) for fields in _ENTRY.iter_unpack(body[:end])]
        order = list(_order(entries))
        times = [fields[0] for fields in _TIME.iter_unpack(body[end:])]
        if not times or len(times) == len(order):
            return entries, dict(zip(order, times, strict=False))
    raise CorruptSnapshot(
        f"the header announces {count} entries of {_ENTRY.size} bytes, but {len(body)} bytes follow"
    )
