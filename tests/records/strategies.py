"""Hypothesis strategies for the record tests, and an independent way to write a batch.

`raw_batch` writes a header field by field from the format's table, and computes the CRC32C with its
own table. So nothing here depends on the code under test or on the library that it uses.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import pyarrow as pa
from hypothesis import strategies as st

from penstock.records.batch import Codec
from penstock.records.record import Record

INT16_MAX = 2**15 - 1
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)

FIELDS: dict[str, tuple[int, int]] = {
    "base_offset": (0, 8),
    "batch_length": (8, 4),
    "leader_epoch": (12, 4),
    "magic": (16, 1),
    "crc": (17, 4),
    "attributes": (21, 2),
    "last_offset_delta": (23, 4),
    "base_timestamp": (27, 8),
    "max_timestamp": (35, 8),
    "producer_id": (43, 8),
    "producer_epoch": (51, 2),
    "base_sequence": (53, 4),
    "record_count": (57, 4),
}
"""The position and the size of each header field."""

DEFAULTS: dict[str, int] = {
    "base_offset": 0,
    "leader_epoch": -1,
    "magic": 2,
    "attributes": 0,
    "last_offset_delta": 0,
    "base_timestamp": 0,
    "max_timestamp": 0,
    "producer_id": -1,
    "producer_epoch": -1,
    "base_sequence": -1,
    "record_count": 0,
}


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        remainder = byte
        for _ in range(8):
            remainder = (remainder >> 1) ^ (0x82F63B78 if remainder & 1 else 0)
        table.append(remainder)
    return tuple(table)


def plain_crc32c(data: Iterable[int]) -> int:
    """CRC32C by definition: reflected polynomial 0x1EDC6F41, initial value and final XOR ~0."""
    table = _crc_table()
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder = (remainder >> 8) ^ table[(remainder ^ byte) & 0xFF]
    return remainder ^ 0xFFFFFFFF


def put(buffer: bytearray, field: str, value: int) -> None:
    start, size = FIELDS[field]
    buffer[start : start + size] = value.to_bytes(size, "big", signed=field != "crc")


def reseal(buffer: bytearray) -> bytearray:
    """Corrects length and CRC, so that only decoding can find what else is wrong."""
    put(buffer, "batch_length", len(buffer) - 12)
    put(buffer, "crc", plain_crc32c(buffer[21:]))
    return buffer


def raw_batch(body: bytes = b"", **fields: int) -> bytearray:
    """Returns a batch around `body` with a correct length and CRC, unless `fields` sets them."""
    buffer = bytearray(61) + body
    for field, value in {**DEFAULTS, **fields}.items():
        put(buffer, field, value)
    reseal(buffer)
    for field in ("batch_length", "crc"):
        if field in fields:
            put(buffer, field, fields[field])
    return buffer


def varint(value: int) -> bytes:
    """Zigzag encoding, then seven bits per byte, lowest first."""
    rest = value * 2 if value >= 0 else -value * 2 - 1
    out = bytearray()
    while rest > 0x7F:
        out.append(0x80 | rest & 0x7F)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def raw_bytes(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def raw_record(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    """Returns one record, encoded as the format describes."""
    fields = [
        b"\x00",
        varint(record.timestamp - base_timestamp),
        varint(record.offset - base_offset),
        raw_bytes(record.key),
        raw_bytes(record.value),
        varint(len(record.headers)),
    ]
    for name, value in record.headers:
        fields += [raw_bytes(name.encode()), raw_bytes(value)]
    packed = b"".join(fields)
    return varint(len(packed)) + packed


def from_columns(table: pa.RecordBatch) -> list[Record]:
    """Returns the rows of a decoded table as records, after Arrow has validated its buffers."""
    table.validate(full=True)
    columns = [table.column(name).to_pylist() for name in ("offset", "key", "value", "headers")]
    times = table.column("timestamp").cast(pa.int64()).to_pylist()
    return [
        Record(offset, time, key, value, tuple((item["key"], item["value"]) for item in headers))
        for time, offset, key, value, headers in zip(times, *columns, strict=True)
    ]


codecs = st.sampled_from(list(Codec))
blobs = st.one_of(
    st.binary(max_size=12),
    st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 255), st.integers(60, 300)),
)
nullable_blobs = st.none() | blobs
header_names = st.text(max_size=6) | st.sampled_from(["", "trace-id", "ключ", "鍵", "🔑", "a" * 70])
headers = st.lists(st.tuples(header_names, nullable_blobs), max_size=3).map(tuple)
repeated_headers = st.tuples(header_names, nullable_blobs).map(lambda header: (header,) * 3)

# Half of the int64 range, so that the difference of two timestamps of a batch fits an int64.
timestamps = (
    st.integers(1_700_000_000_000, 1_700_000_100_000)
    | st.integers(-5, 5)
    | st.integers(-(2**62), 2**62 - 1)
)
producers = st.one_of(
    st.just((-1, -1, -1)),
    st.tuples(st.integers(0, INT64_MAX), st.integers(0, INT16_MAX), st.integers(0, INT32_MAX)),
)
base_offsets = st.integers(0, 2**62) | st.just(0)


@st.composite
def record_lists(
    draw: st.DrawFn,
    *,
    min_size: int = 1,
    max_size: int = 6,
    sparse: bool = True,
    base_offset: int | None = None,
) -> list[Record]:
    """Returns records in offset order; with `sparse` some offsets between them are missing."""
    offset = draw(base_offsets) if base_offset is None else base_offset
    gaps = st.just(1) | st.integers(1, 1000) if sparse else st.just(1)
    records = []
    for _ in range(draw(st.integers(min_size, max_size))):
        records.append(
            Record(
                offset=offset,
                timestamp=draw(timestamps),
                key=draw(nullable_blobs),
                value=draw(nullable_blobs),
                headers=draw(headers | repeated_headers),
            )
        )
        offset += draw(gaps)
    return records
