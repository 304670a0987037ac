"""Finds records by their timestamp.

That means decoding a batch, and a compressed batch may take long to decode. So a search is a
generator of `Look`s, one for each batch that may hold the record. Its driver runs each look, on the
event loop if it is quick and otherwise on a thread, and sends the result back. `offset_for_time`
and `newest_record` drive the search synchronously.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple

from penstock.ports import Buffer
from penstock.records import kernels
from penstock.records.batch import HEADER_SIZE, LOG_APPEND_TIME, BatchHeader, Codec, CorruptBatch
from penstock.records.compression import (
    DECOMPRESSED_BYTES_MAX,
    DecompressedTooLarge,
    decompressed,
)
from penstock.storage.errors import disk_trouble
from penstock.storage.log import Log
from penstock.storage.segment import Segment

QUICK_BYTES_MAX: Final = 64 << 10
QUICK_OUTPUT_BYTES_MAX: Final = 256 << 10
QUICK_PLAIN_BYTES_MAX: Final = 4 << 20
"""Batches up to these sizes are quick to decode: compressed, decompressed, and never compressed."""


class TimedOffset(NamedTuple):
    offset: int
    timestamp: int


class NotQuick(Exception):
    """The batch takes long to decode. Use a thread."""


class Look(NamedTuple):
    """A search in one batch, for the first record at or after a timestamp, or for the newest
    record."""

    batch: Buffer
    header: BatchHeader
    start_offset: int
    timestamp_ms: int | None
    """None searches for the newest record."""

    def run(self, *, quickly: bool = False) -> TimedOffset | None:
        """Searches the batch. Blocking. With `quickly`, raises `NotQuick` if that would take long.
        A batch that cannot be decoded counts as one record."""
        header = self.header
        packed = memoryview(self.batch)[HEADER_SIZE : header.size]
        limit = DECOMPRESSED_BYTES_MAX
        if quickly:
            quick = QUICK_BYTES_MAX if header.codec else QUICK_PLAIN_BYTES_MAX
            if len(packed) > quick:
                raise NotQuick
            limit = QUICK_OUTPUT_BYTES_MAX if header.codec else limit
        if not header.record_count:
            return None
        try:
            with decompressed(Codec(header.codec), packed, limit) as payload:
                return self._find(payload)
        except DecompressedTooLarge:
            if quickly:
                raise NotQuick from None
            return self._whole()
        except CorruptBatch:
            return self._whole()

    def _find(self, payload: memoryview) -> TimedOffset | None:
        header = self.header
        asked = (payload, header.record_count, header.base_offset, header.base_timestamp)
        if header.attributes & LOG_APPEND_TIME:
            # All records have the batch's timestamp, so the first visible one is the answer.
            found = kernels.first_record_at(
                *asked, timestamp_ms=_ANY_TIME, start_offset=self.start_offset
            )
            return None if found is None else TimedOffset(found[0], header.max_timestamp)
        if self.timestamp_ms is None:
            found = kernels.newest_record(*asked, start_offset=self.start_offset)
        else:
            found = kernels.first_record_at(
                *asked, timestamp_ms=self.timestamp_ms, start_offset=self.start_offset
            )
        return None if found is None else TimedOffset(*found)

    def _whole(self) -> TimedOffset:
        header = self.header
        return TimedOffset(max(header.base_offset, self.start_offset), header.max_timestamp)


Search = Generator[Look, TimedOffset | None, TimedOffset | None]
_ANY_TIME: Final = -(1 << 62)


def offset_for_time(log: Log, timestamp_ms: int) -> TimedOffset | None:
    """Returns the first record at or after a timestamp."""
    return _drive(search_time(log, timestamp_ms))


def newest_record(log: Log) -> TimedOffset | None:
    """Returns the record with the highest timestamp."""
    return _drive(search_newest(log))


def _drive(search: Search) -> TimedOffset | None:
    found: TimedOffset | None = None
    try:
        look = next(search)
        while True:
            found = look.run()
            look = search.send(found)
    except StopIteration as end:
        result: TimedOffset | None = end.value
        return result


def search_time(log: Log, timestamp_ms: int) -> Search:
    with disk_trouble(f"{log.directory} could not be read"):
        for segment in list(log.segments):
            if segment.largest_timestamp() >= timestamp_ms:
                found = yield from _search(segment, timestamp_ms, log.log_start_offset)
                if found is not None:
                    return found
    return None


def search_newest(log: Log) -> Search:
    newest: TimedOffset | None = None
    with disk_trouble(f"{log.directory} could not be read"):
        for segment in list(log.segments):
            if newest is None or segment.largest_timestamp() > newest.timestamp:
                newest = (yield from _newest(segment, log.log_start_offset)) or newest
    return newest


def _newest(segment: Segment, start_offset: int) -> Search:
    """Searches for the newest record of a segment at or above `start_offset`."""
    found = segment.locate(segment.max_timestamp_offset) if segment.max_timestamp >= 0 else None
    if found is None:
        return None
    position, header = found
    if header.base_offset < start_offset:
        # The newest record is below the log start offset: search all visible batches.
        visible = (
            (at, each)
            for at, each in segment.headers(0)
            if each.last_offset >= start_offset and not each.is_control
        )
        newest = max(visible, key=lambda batch: batch[1].max_timestamp, default=None)
        if newest is None:
            return None
        position, header = newest
    batch = segment.read(position, 0, segment.size, header.size)
    return (yield Look(batch, header, start_offset, None))


def _search(segment: Segment, timestamp_ms: int, start_offset: int) -> Search:
    found = segment.locate(max(_indexed_offset(segment, timestamp_ms), start_offset))
    for position, header in segment.headers(found[0]) if found else ():
        if header.max_timestamp < timestamp_ms or header.is_control:
            continue
        batch = segment.read(position, 0, segment.size, header.size)
        seen = yield Look(batch, header, start_offset, timestamp_ms)
        if seen is not None:
            return seen
    return None


def _indexed_offset(segment: Segment, timestamp_ms: int) -> int:
    """Returns the offset at which to begin searching for a timestamp. Checks the index entry before
    using it."""
    entry = segment.time_index.lookup(timestamp_ms)
    if entry is not None and not (
        segment.time_index.rises() and segment.time_entry_is_right(entry)
    ):
        segment.reindex()
        entry = segment.time_index.lookup(timestamp_ms)
    _, relative = entry or (0, 0)
    return segment.base_offset + relative
