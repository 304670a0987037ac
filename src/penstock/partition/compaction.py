"""Decides what compaction keeps: the newest record of every key. Pure: touches no files.

A round of compaction of one partition:

1. `plan` finds the dirty part, between the end of the last round and what may not be touched yet.
2. `map_batch` reads the dirty part into an `OffsetMap`, key -> newest offset. A full map ends the
   round early; what it covers is cleaned, the rest stays dirty.
3. `group_segments` joins adjacent segments that have become small, to avoid many tiny files.
4. `compact_batch` processes each batch of those segments: it is kept whole, rewritten with fewer
   records, or dropped.

A record stays if it is the newest of its key, or is above the offsets that the map covers. Offsets
and order never change: readers see the same log with gaps.

A tombstone, a record without a value, deletes its key. It must outlive the records it deletes, or a
reader that has seen those would never learn of the deletion. The first round that covers its batch
stamps a delete horizon into the header (KIP-534: an attribute bit is set and the base timestamp
becomes the horizon; record timestamps stay what they were). A round after that time drops the
tombstone. Unlike in Kafka, the stamp waits until the map covers the whole batch: a horizon that
runs while older records of the key are still there would give their readers no grace period.

Records without a key have no meaning in a compacted topic and are dropped.

A batch that lost all its records stays as a bare header where information would be lost with it:
the last sequence of an active producer (`is_needed_empty`), or the end of the cleaned part.

Transactions: data of aborted transactions is dropped (`aborted`). The plan ends at the last stable
offset, so every transaction in it is decided. A marker stays as long as a batch of its transaction
does, plus a delete horizon: `transactions.CleaningTransactions` follows a round and decides which
data is aborted and what happens to each marker. Without it all markers are kept, which costs one
small batch each and cannot resurrect anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from penstock.partition.producer_state import NO_OFFSET
from penstock.partition.retention import RELATIVE_OFFSET_MAX
from penstock.partition.transactions import MarkerFate
from penstock.records.batch import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchHeader,
    Buffer,
    CorruptBatch,
)
from penstock.records.kernels import append_records
from penstock.records.record import Record, finish_batch, read_records

_TIMESTAMP_MIN: Final = -(2**63)
_DIGEST_BYTES: Final = 32
# A CPython dict entry just after the table has grown, the int object of the offset, and rounding.
_ENTRY_BYTES: Final = 144
_KEY_OBJECT_BYTES: Final = 33
ENTRY_BYTES_MAX: Final = _ENTRY_BYTES + _KEY_OBJECT_BYTES + _DIGEST_BYTES


class OffsetMap:
    """Maps keys to their newest offsets below `end_offset`, within a memory budget.

    Confusing two keys would lose data. Keys shorter than 32 bytes are stored as they are, longer
    ones as their 32-byte BLAKE2b digest, for which no collision attack is known (Kafka stores MD5
    for all). The lengths keep the two kinds apart.
    """

    __slots__ = ("_bytes_left", "_bytes_max", "_offsets", "end_offset")

    def __init__(self, bytes_max: int, start_offset: int = 0) -> None:
        if bytes_max < ENTRY_BYTES_MAX:
            raise ValueError(
                f"an offset map of {bytes_max} bytes cannot hold a single key: allow "
                f"{ENTRY_BYTES_MAX} bytes or more"
            )
        self._bytes_max = bytes_max
        self._bytes_left = bytes_max
        self._offsets: dict[bytes, int] = {}
        self.end_offset = start_offset

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def bytes_used(self) -> int:
        return self._bytes_max - self._bytes_left

    def add(self, key: bytes, offset: int) -> bool:
        """Adds a record, in offset order. Returns False, and adds nothing, if the map is full."""
        if len(key) >= _DIGEST_BYTES:
            key = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        if key not in self._offsets:
            bytes_left = self._bytes_left - (_ENTRY_BYTES + _KEY_OBJECT_BYTES + len(key))
            if bytes_left < 0:
                return False
            self._bytes_left = bytes_left
        self._offsets[key] = offset
        self.end_offset = offset + 1
        return True

    def cover(self, end_offset: int) -> None:
        """Notes that everything below `end_offset` was read, with or without keys."""
        self.end_offset = max(self.end_offset, end_offset)

    def get(self, key: bytes) -> int:
        """Returns the newest offset of the key, or -1 if no record of it was read."""
        if len(key) >= _DIGEST_BYTES:
            key = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        return self._offsets.get(key, NO_OFFSET)


@dataclass(frozen=True, slots=True)
class ClosedSegment:
    """A segment that is no longer active.

    `newest_ms` is the largest record timestamp, or the file's time if there is none.
    """

    base_offset: int
    size_bytes: int
    offset_index_bytes: int
    time_index_bytes: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Read `map_segments` from `first_dirty_offset` up to `uncleanable_offset`."""

    first_dirty_offset: int
    uncleanable_offset: int
    map_segments: tuple[int, ...]
    clean_bytes: int
    dirty_bytes: int

    @property
    def dirty_ratio(self) -> float:
        return dirty_ratio(self.clean_bytes, self.dirty_bytes)


def dirty_ratio(clean_bytes: int, dirty_bytes: int) -> float:
    """Returns the ratio that min.cleanable.dirty.ratio is compared with."""
    total = clean_bytes + dirty_bytes
    return dirty_bytes / total if total else 0.0


def plan(
    segments: Sequence[ClosedSegment],
    *,
    active_base_offset: int,
    log_start_offset: int,
    last_stable_offset: int,
    checkpoint_offset: int | None,
    min_compaction_lag_ms: int,
    now_ms: int,
) -> CompactionPlan:
    """Returns what this round may clean of `segments`: all but the active one, oldest first.

    Not cleaned are the active segment, everything from the last stable offset on (which is never
    above the high watermark), and everything from the first dirty segment on that has a record
    younger than the lag. The bound is a segment's base offset, since segments are cleaned whole. A
    checkpoint outside the log belongs to an earlier state of it: then the whole log is dirty.
    """
    first_dirty = log_start_offset
    if checkpoint_offset is not None and log_start_offset <= checkpoint_offset:
        first_dirty = (
            checkpoint_offset if checkpoint_offset <= active_base_offset else log_start_offset
        )
    end = active_base_offset
    clean_bytes = dirty_bytes = 0
    map_segments: list[int] = []
    for position, segment in enumerate(segments):
        segment_end = _end_of(segments, position, active_base_offset)
        is_dirty = segment_end > first_dirty
        too_young = min_compaction_lag_ms > 0 and segment.newest_ms > now_ms - min_compaction_lag_ms
        if segment_end > last_stable_offset or (is_dirty and too_young):
            end = segment.base_offset
            break
        if is_dirty:
            map_segments.append(segment.base_offset)
            dirty_bytes += segment.size_bytes
        else:
            clean_bytes += segment.size_bytes
    return CompactionPlan(
        first_dirty, max(first_dirty, end), tuple(map_segments), clean_bytes, dirty_bytes
    )


def _end_of(segments: Sequence[ClosedSegment], position: int, end_offset: int) -> int:
    following = position + 1
    return segments[following].base_offset if following < len(segments) else end_offset


def group_segments(
    segments: Sequence[ClosedSegment],
    *,
    end_offset: int,
    active_base_offset: int,
    segment_bytes: int,
    index_bytes_max: int,
) -> list[tuple[int, ...]]:
    """Returns the groups of segments to rewrite below `end_offset`, by base offset.

    Each group is rewritten into one segment. It fits into one even if nothing can be dropped: in
    bytes, in each index, and in offsets relative to its base. A segment that is too large forms its
    own group.
    """
    groups: list[tuple[int, ...]] = []
    group: list[ClosedSegment] = []
    for position, segment in enumerate(segments):
        if segment.base_offset >= end_offset:
            break
        last_offset = _end_of(segments, position, active_base_offset) - 1
        members = [*group, segment]
        fits = (
            sum(member.size_bytes for member in members) <= segment_bytes
            and sum(member.offset_index_bytes for member in members) <= index_bytes_max
            and sum(member.time_index_bytes for member in members) <= index_bytes_max
            # An empty segment adds no offsets, and would never be removed if it were left out.
            and (
                segment.size_bytes == 0
                or last_offset - members[0].base_offset <= RELATIVE_OFFSET_MAX
            )
        )
        if group and not fits:
            groups.append(tuple(member.base_offset for member in group))
            group = [segment]
        else:
            group = members
    if group:
        groups.append(tuple(member.base_offset for member in group))
    return groups


def map_batch(
    offset_map: OffsetMap,
    batch: Buffer,
    header: BatchHeader,
    *,
    start_offset: int,
    aborted: bool = False,
) -> bool:
    """Adds the keys of a dirty batch from `start_offset` on. Returns False if the map became full.

    Data of an aborted transaction supersedes nothing and is skipped. So is a batch that cannot be
    decoded: it stays in the log as it is (`compact_batch`).
    """
    if not aborted and not header.is_control:
        try:
            records = read_records(batch, header)
        except CorruptBatch:
            records = []
        for record in records:
            if record.key is None or record.offset < start_offset:
                continue
            if not offset_map.add(record.key, record.offset):
                return False
    offset_map.cover(header.next_offset)
    return True


def is_needed_empty(
    header: BatchHeader,
    last_data_offsets: Mapping[int, int],
    uncleanable_offset: int,
    marker_epochs: Mapping[int, int] | None = None,
) -> bool:
    """Returns whether the batch must stay even without records.

    It must if it holds the last sequence of an active producer: otherwise the producer's next retry
    would look like a new batch. It must if it is a marker from which alone a producer's epoch is
    known, and which fences its predecessors. And it must if it ends the cleaned part: a log whose
    whole tail is gone would be opened with a lower log end offset. `last_data_offsets` and
    `marker_epochs` come from `ProducerStates`.
    """
    if header.next_offset == uncleanable_offset:
        return True
    if header.is_control:
        return marker_epochs is None or (
            marker_epochs.get(header.producer_id) == header.producer_epoch
        )
    return header.has_producer and (
        last_data_offsets.get(header.producer_id, NO_OFFSET) == header.last_offset
    )


def compact_batch(
    batch: Buffer,
    header: BatchHeader,
    offset_map: OffsetMap,
    *,
    now_ms: int,
    delete_retention_ms: int,
    needed_empty: bool,
    aborted: bool = False,
    marker: MarkerFate = MarkerFate.KEEP,
    tombstones_expire: bool = True,
) -> Buffer | None:
    """Returns what is left of a batch: the same object, a copy with fewer records, or None.

    `batch` is exactly one batch and has been validated. It is compressed again only if it changed.

    Raises `CorruptBatch` if its records cannot be decoded although the CRC is right: an older
    version accepted such batches. The caller keeps the batch as it is, and from then on passes
    `tombstones_expire=False`: a tombstone after it may delete a key in the batch, and a reader with
    another decoder would see that key come back. Newer and older records of its keys are kept, too:
    they are in the right order.
    """
    if header.record_count == 0:
        return batch if needed_empty else None
    if header.is_control:
        if marker is MarkerFate.KEEP:
            return batch
        if marker is MarkerFate.STAMP:
            return _thinned(header, read_records(batch, header), now_ms + delete_retention_ms)
        return _thinned(header, (), header.delete_horizon_ms) if needed_empty else None
    horizon_ms = header.delete_horizon_ms
    drops_tombstones = tombstones_expire and horizon_ms is not None and now_ms >= horizon_ms
    kept = [] if aborted else _kept_records(batch, header, offset_map, drops_tombstones)
    if not kept and not needed_empty:
        return None
    starts_horizon = (
        horizon_ms is None
        and header.next_offset <= offset_map.end_offset
        and any(record.value is None for record in kept)
        # If a timestamp is too extreme to be stored as a delta from the horizon, its tombstone
        # stays forever.
        and min(record.timestamp for record in kept)
        >= _TIMESTAMP_MIN + now_ms + delete_retention_ms
    )
    if starts_horizon:
        return _thinned(header, kept, now_ms + delete_retention_ms)
    if len(kept) == header.record_count:
        return batch
    return _thinned(header, kept, horizon_ms)


def _thinned(header: BatchHeader, kept: Sequence[Record], horizon_ms: int | None) -> bytearray:
    """Returns the batch with only the `kept` records, otherwise unchanged.

    The base timestamp is the old one, for which all deltas are known to fit, or the horizon.
    """
    attributes, base_timestamp = header.attributes, header.base_timestamp
    max_timestamp = header.max_timestamp
    if horizon_ms is not None:
        attributes, base_timestamp = attributes | DELETE_HORIZON, horizon_ms
    elif attributes & LOG_APPEND_TIME:
        base_timestamp = max_timestamp
    if kept:
        max_timestamp = max(record.timestamp for record in kept)
    else:
        attributes &= ~CODEC_MASK
    packed = bytearray(HEADER_SIZE)
    append_records(packed, kept, header.base_offset, base_timestamp)
    return finish_batch(
        packed,
        header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            record_count=len(kept),
        ),
    )


def _kept_records(
    batch: Buffer, header: BatchHeader, offset_map: OffsetMap, drops_tombstones: bool
) -> list[Record]:
    kept = []
    end_offset = offset_map.end_offset
    for record in read_records(batch, header):
        if record.offset < end_offset:
            if record.key is None or record.offset < offset_map.get(record.key):
                continue
            if drops_tombstones and record.value is None:
                continue
        kept.append(record)
    return kept
