"""Finds the acquired records in a response to a share fetch. Pure.

A leader sends whole batches of its log, and says which offsets in them it has locked for this
member. All other records are dropped. Locked offsets without a record (control batches, and what
compaction removed) are gaps: the member must acknowledge them, or the leader would keep them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.client.consuming.buffer import Row
from penstock.records import kernels
from penstock.records.batch import (
    HEADER_SIZE,
    CorruptBatch,
    TimestampType,
    validate,
)
from penstock.records.compression import DECOMPRESSED_BYTES_MAX
from penstock.records.record import append_timestamp, read_payload


class Range(NamedTuple):
    """Offsets that were acquired together."""

    first: int
    last: int
    deliveries: int = 0
    """How often they were delivered, this delivery included."""


class AcquiredRow(NamedTuple):
    row: Row
    deliveries: int
    timestamp_type: TimestampType
    size: int
    """The bytes of its key, value and headers."""


class Acquired(NamedTuple):
    """What a response has brought from one partition."""

    rows: list[AcquiredRow]
    gaps: list[Range]
    damaged: list[Range]
    """Acquired offsets whose batch is corrupt or missing."""
    error: CorruptBatch | None


def find_acquired(data: memoryview, ranges: Iterable[Range], *, check_crcs: bool) -> Acquired:
    """Decodes the batches and returns the records in these ranges.

    Only the batches prove that there is no record at an offset. Offsets before the first batch or
    after the last one are not gaps: something is missing from the response.
    """
    wanted = sorted(ranges)
    rows: list[AcquiredRow] = []
    covered = Range(0, -1)
    failure: CorruptBatch | None = None
    try:
        covered = _read_all(data, wanted, rows, check_crcs=check_crcs)
    except CorruptBatch as error:
        failure = error
    gaps: list[Range] = []
    damaged: list[Range] = []
    for each in _missing(wanted, rows):
        inside = covered.first <= each.first and each.last <= covered.last
        (gaps if inside else damaged).append(each)
    if damaged and failure is None:
        failure = CorruptBatch(f"the response lacks the records from offset {damaged[0].first} on")
    return Acquired(rows, gaps, damaged, failure)


def _read_all(
    data: memoryview, wanted: Sequence[Range], rows: list[AcquiredRow], *, check_crcs: bool
) -> Range:
    """Reads the batches in order, and returns the offsets that they cover."""
    position = 0
    first = last = -1
    while len(data) - position >= HEADER_SIZE:
        header = validate(data, position, check_crc=check_crcs)
        end = position + header.size
        if header.last_offset <= last:  # A repeated batch. Its records must not be two jobs.
            position = end
            continue
        first, last = (header.base_offset if first < 0 else first), header.last_offset
        inside = [each for each in wanted if each.last >= header.base_offset and each.first <= last]
        if inside and not header.is_control:
            count = header.record_count
            reader = kernels.RecordReader(
                read_payload(data[position + HEADER_SIZE : end], header, DECOMPRESSED_BYTES_MAX),
                count,
                header.last_offset_delta,
                header.base_timestamp,
                append_timestamp(header),
            )
            found: list[Row] = kernels.read_records(reader, count, header.base_offset, tuple)
            rows += _select(found, inside, header.timestamp_type)
        position = end
    return Range(first, last)


def _select(
    found: Iterable[Row], ranges: Sequence[Range], timestamp_type: TimestampType
) -> list[AcquiredRow]:
    """Returns the rows within the ranges. Both are in order."""
    selected: list[AcquiredRow] = []
    at = 0
    for row in found:
        offset = row[0]
        while at < len(ranges) and ranges[at].last < offset:
            at += 1
        if at == len(ranges):
            break
        if ranges[at].first <= offset:
            selected.append(AcquiredRow(row, ranges[at].deliveries, timestamp_type, _size(row)))
    return selected


def _size(row: Row) -> int:
    _, _, key, value, headers = row
    size = len(key or b"") + len(value or b"")
    for name, data in headers:
        size += len(name) + len(data or b"")
    return size


def _missing(wanted: Sequence[Range], rows: Sequence[AcquiredRow]) -> list[Range]:
    """Returns the offsets of the ranges that have no row."""
    missing: list[Range] = []
    at = 0
    for each in wanted:
        position = each.first
        while at < len(rows) and rows[at].row[0] <= each.last:
            offset = rows[at].row[0]
            if offset > position:
                missing.append(Range(position, offset - 1, each.deliveries))
            position = offset + 1
            at += 1
        if position <= each.last:
            missing.append(Range(position, each.last, each.deliveries))
    return missing
