"""What compaction keeps: of every key, the newest record. Decisions only; no file is touched here.

A round of compaction over one partition:

1. `plan` finds the dirty part, between where the last round ended and what may not be touched yet.
2. `map_batch` reads the dirty part into an `OffsetMap`, key -> newest offset. A full map ends the
   round early; what it covers is cleaned, the rest is dirty still.
3. `group_segments` joins neighbours that have become small, so that files do not shrink to dust.
4. `compact_batch` passes each batch of those segments through, whole, thinned out or not at all.

A record stays if it is the newest of its key or lies behind what the map covers. Offsets never
change and the order never changes: readers see the same log with gaps.

A tombstone, a record without value, deletes its key. It must outlive the records it deletes, or a
reader who has seen those would never learn of the deletion. The first round that covers its batch
stamps a delete horizon into the header (KIP-534: an attribute bit, and the base timestamp becomes
the horizon, record timestamps staying what they were); a round after that time drops it. Unlike
Kafka the stamp waits until the map covers the whole batch: a horizon that runs while older records
of the key are still there would be no grace for their readers.

Records without a key have no meaning in a compacted topic and are dropped.

A batch that lost all records stays as a bare header where the log would forget something with it:
the last sequence of an active producer (`is_needed_empty`), or where the cleaned part ends.

Transactions: data of aborted transactions is dropped (`aborted`); only decided ones are within
reach, as the last stable offset bounds the plan. A marker stays as long as a batch of its
transaction does, and a delete horizon longer: `transactions.CleaningTransactions` follows a round
and says what is aborted and what becomes of each marker. Who does not ask it keeps all markers,
which costs one small batch each and cannot resurrect anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from penstock.partition.producers import NO_OFFSET
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
# A dict entry of CPython while the table has just grown, the offset object, and rounding.
_ENTRY_BYTES: Final = 144
_KEY_OBJECT_BYTES: Final = 33
ENTRY_BYTES_MAX: Final = _ENTRY_BYTES + _KEY_OBJECT_BYTES + _DIGEST_BYTES


class OffsetMap:
    """Key -> newest offset, within a memory budget, over all offsets below `end_offset`.

    Two keys taken for one would lose data. Keys shorter than 32 bytes are stored as they are;
    longer ones as their 32-byte BLAKE2b digest, which no known attack makes collide (Kafka stores
    MD5 for all). Lengths keep the two kinds apart.
    """

    __slots__ = ("_bytes_left", "_bytes_max", "_offsets", "end_offset")

    def __init__(self, bytes_max: int, start_offset: int = 0) -> None:
        if bytes_max < ENTRY_BYTES_MAX:
            raise ValueError(
                f"an offset map of {bytes_max} bytes holds no key at all: "
                f"allow {ENTRY_BYTES_MAX} or more"
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
        """Note a record, in offset order; False, and nothing noted, when the map is full."""
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
        """All below `end_offset` has been seen, be it without keys or gone."""
        self.end_offset = max(self.end_offset, end_offset)

    def get(self, key: bytes) -> int:
        """The newest offset of the key, or -1: it has no record in the part that was read."""
        if len(key) >= _DIGEST_BYTES:
            key = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        return self._offsets.get(key, NO_OFFSET)


@dataclass(frozen=True, slots=True)
class ClosedSegment:
    """`newest_ms` is the largest record timestamp, or the file's time where there is none."""

    base_offset: int
    size_bytes: int
    offset_index_bytes: int
    time_index_bytes: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Read `map_segments` from `first_dirty_offset` on, up to `uncleanable_offset`."""

    first_dirty_offset: int
    uncleanable_offset: int
    map_segments: tuple[int, ...]
    clean_bytes: int
    dirty_bytes: int

    @property
    def dirty_ratio(self) -> float:
        return dirty_ratio(self.clean_bytes, self.dirty_bytes)


def dirty_ratio(clean_bytes: int, dirty_bytes: int) -> float:
    """What min.cleanable.dirty.ratio is compared with."""
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
    """What this round may clean of `segments`, all but the active one, oldest first.

    Out of reach are the active segment, everything from the last stable offset on (which is never
    above the high watermark) and everything from the first dirty segment on that has a record
    younger than the lag. The bound is a segment's base: segments are cleaned whole.
    A checkpoint outside the log comes from another life of it: all of the log is dirty then.
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
    """Base offsets of the segments to rewrite below `end_offset`, those of one group into one.

    A group fits one segment even if nothing can be dropped from it: in bytes, in each index, and
    in offsets relative to its base. A segment too large by itself makes a group of its own.
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
            # An empty segment adds no offsets, and leaving it behind would leave it for ever.
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
    """Note the keys of a dirty batch from `start_offset` on; False when the map got full in it.

    Data of an aborted transaction supersedes nothing and is passed over. So is a batch that cannot
    be decoded: it stays in the log as it is (`compact_batch`).
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
    """Whether the batch must stay even without records.

    Either it holds the last sequence of an active producer, whose next retry could not be told
    from a new batch otherwise; or it is a marker by which alone the epoch of one is known, and its
    predecessors are fenced; or it ends the cleaned part, and a log whose tail is all gone would
    come up with an older end. `last_data_offsets` and `marker_epochs` are those of
    `ProducerStates`.
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
    """What is left of a batch: the very same object, a thinned copy, or None.

    `batch` is exactly one batch and has been validated. Never compressed anew unless it changed.

    `CorruptBatch` when its records cannot be decoded although the CRC is right: an older version
    accepted such batches. The caller keeps it as it is, and from then on passes
    `tombstones_expire=False`: a tombstone behind it may delete a key of the batch, which a reader
    with another decoder would see come back. A newer record of a key in it stays, too, and so
    does an older one: both are in the right order.
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
        # A timestamp too absurd for a delta from the horizon keeps its tombstone, for ever.
        and min(record.timestamp for record in kept)
        >= _TIMESTAMP_MIN + now_ms + delete_retention_ms
    )
    if starts_horizon:
        return _thinned(header, kept, now_ms + delete_retention_ms)
    if len(kept) == header.record_count:
        return batch
    return _thinned(header, kept, horizon_ms)


def _thinned(header: BatchHeader, kept: Sequence[Record], horizon_ms: int | None) -> bytearray:
    """The batch with `kept` records and otherwise unchanged.

    The base timestamp is the old one, from which all deltas are known to fit, or the horizon.
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
