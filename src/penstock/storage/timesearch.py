"""Finding records by their time, which takes opening one batch."""

from __future__ import annotations

from typing import NamedTuple

from penstock.records.record import read_records
from penstock.storage.append_log import AppendLog
from penstock.storage.errors import disk_trouble
from penstock.storage.segment import Segment


class TimedOffset(NamedTuple):
    offset: int
    timestamp: int


def offset_for_time(log: AppendLog, timestamp_ms: int) -> TimedOffset | None:
    """The first record at or after a time."""
    with disk_trouble(f"{log.directory} did not read"):
        for segment in log.segments:
            if segment.largest_timestamp() >= timestamp_ms:
                found = _search(segment, timestamp_ms, log.log_start_offset)
                if found is not None:
                    return found
    return None


def newest_record(log: AppendLog) -> TimedOffset | None:
    """The record with the highest timestamp."""
    newest: TimedOffset | None = None
    with disk_trouble(f"{log.directory} did not read"):
        for segment in log.segments:
            if newest is None or segment.largest_timestamp() > newest.timestamp:
                newest = _newest(segment, log.log_start_offset) or newest
    return newest


def _newest(segment: Segment, start_offset: int) -> TimedOffset | None:
    """The newest record of a segment from `start_offset` on."""
    found = segment.locate(segment.max_timestamp_offset) if segment.max_timestamp >= 0 else None
    if found is not None and found[1].base_offset < start_offset:
        # The newest is not to be seen any more: look at all that is.
        visible = (
            (position, header)
            for position, header in segment.headers(0)
            if header.last_offset >= start_offset and not header.is_control
        )
        found = max(visible, key=lambda batch: batch[1].max_timestamp, default=None)
    if found is None:
        return None
    records = read_records(segment.read(found[0], 0, segment.size, found[1].size))
    best = max(
        (record for record in records if record.offset >= start_offset),
        key=lambda record: record.timestamp,
        default=None,
    )
    return TimedOffset(best.offset, best.timestamp) if best else None


def _search(segment: Segment, timestamp_ms: int, start_offset: int) -> TimedOffset | None:
    found = segment.locate(max(_indexed_offset(segment, timestamp_ms), start_offset))
    for position, header in segment.headers(found[0]) if found else ():
        if header.max_timestamp < timestamp_ms or header.is_control:
            continue
        for record in read_records(segment.read(position, 0, segment.size, header.size)):
            if record.timestamp >= timestamp_ms and record.offset >= start_offset:
                return TimedOffset(record.offset, record.timestamp)
    return None


def _indexed_offset(segment: Segment, timestamp_ms: int) -> int:
    """Where to begin looking for a time; the index is checked before it is believed."""
    entry = segment.time_index.lookup(timestamp_ms)
    if entry is not None and not (
        segment.time_index.rises() and segment.time_entry_is_right(entry)
    ):
        segment.reindex()
        entry = segment.time_index.lookup(timestamp_ms)
    return segment.base_offset + (entry[1] if entry is not None else 0)
