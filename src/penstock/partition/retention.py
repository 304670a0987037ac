"""Decides when a segment is rolled and when it is deleted. Pure: touches no files.

A log is a sequence of segments; the last one is active and receives appends. Deletion starts at the
oldest segment and stops at the first one that must stay, so the log never gets a hole. A segment
may be deleted

- because the log start offset has passed it (DeleteRecords): the next segment begins at or below;
- because of size: without it the log still has at least `retention_bytes`;
- because of age: its newest record, or the file's modification time where records have no
  timestamps, is more than `retention_ms` old.

They are checked in this order, because the first two fail for all later segments once they fail. A
segment that reaches above the high watermark is never deleted: an offset that is not committed
cannot be "too old", and the log start offset must not pass the high watermark.

The active segment can be too old as well, in a topic that is no longer written to. It must be
rolled before it can be deleted; the decision says so, and the caller asks again afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

UNLIMITED: Final = -1
RELATIVE_OFFSET_MAX: Final = 2**31 - 1
"""Indexes store offsets relative to the segment's base offset in 32 bits, signed as in Kafka."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp_ms: int
    modified_ms: int

    @property
    def age_from_ms(self) -> int:
        """The time from which the segment's age counts; records may have no timestamps."""
        return self.max_timestamp_ms if self.max_timestamp_ms >= 0 else self.modified_ms


class Reason(Enum):
    START_OFFSET = "below the log start offset"
    SIZE = "over retention.bytes"
    TIME = "older than retention.ms"


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """Which segments to delete, by base offset, oldest first; `reasons` has one entry for each."""

    delete: tuple[int, ...]
    reasons: tuple[Reason, ...]
    log_start_offset: int
    roll_active: bool


def expired_segments(
    segments: Sequence[SegmentInfo],
    *,
    now_ms: int,
    retention_ms: int,
    retention_bytes: int,
    log_start_offset: int,
    high_watermark: int,
) -> RetentionDecision:
    """Returns which of `segments` (oldest first, the last one active) to delete."""
    delete: list[int] = []
    reasons: list[Reason] = []
    remaining_bytes = sum(segment.size_bytes for segment in segments)
    roll_active = False
    first_kept = segments[0].base_offset if segments else log_start_offset
    for position, segment in enumerate(segments):
        is_active = position == len(segments) - 1
        # Compaction leaves gaps at a segment's end; the log would then start after the gap.
        end = segment.next_offset if is_active else segments[position + 1].base_offset
        if end > high_watermark:
            break
        if not is_active and end <= log_start_offset:
            reason = Reason.START_OFFSET
        elif retention_bytes >= 0 and remaining_bytes - segment.size_bytes >= retention_bytes:
            reason = Reason.SIZE
        elif retention_ms >= 0 and now_ms - segment.age_from_ms > retention_ms:
            reason = Reason.TIME
        else:
            break
        if is_active:
            roll_active = segment.size_bytes > 0
            break
        delete.append(segment.base_offset)
        reasons.append(reason)
        remaining_bytes -= segment.size_bytes
        first_kept = end
    return RetentionDecision(
        tuple(delete), tuple(reasons), max(log_start_offset, first_kept), roll_active
    )


@dataclass(frozen=True, slots=True)
class RollConfig:
    segment_bytes: int
    segment_ms: int

    def __post_init__(self) -> None:
        # A batch must fit into any segment, and index positions have 31 bits.
        if not 1 <= self.segment_bytes <= RELATIVE_OFFSET_MAX:
            raise ValueError(
                f"segment.bytes is {self.segment_bytes}: set it between 1 and {RELATIVE_OFFSET_MAX}"
            )
        if self.segment_ms < 1:
            raise ValueError(f"segment.ms is {self.segment_ms}: set it to 1 or more")


def should_roll(
    config: RollConfig,
    *,
    base_offset: int,
    size_bytes: int,
    first_timestamp_ms: int,
    created_ms: int,
    jitter_ms: int,
    index_full: bool,
    batch_bytes: int,
    batch_last_offset: int,
    batch_max_timestamp_ms: int,
    now_ms: int,
) -> bool:
    """Returns whether the active segment must be rolled before this batch is appended.

    All arguments but the config and the batch describe the segment; `first_timestamp_ms` is the
    largest timestamp of its first batch. Age is measured by record timestamps where there are any:
    a mirror that copies last year's records makes the same segments as the source, not one for
    today. `jitter_ms` keeps partitions that were created together from rolling together. An empty
    segment never rolls for size or age, or a large batch would never fit.
    """
    if batch_last_offset - base_offset > RELATIVE_OFFSET_MAX:
        return True
    if size_bytes == 0:
        return False
    if index_full or size_bytes + batch_bytes > config.segment_bytes:
        return True
    if first_timestamp_ms >= 0:
        waited_ms = batch_max_timestamp_ms - first_timestamp_ms
    else:
        waited_ms = now_ms - created_ms
    return waited_ms > config.segment_ms - jitter_ms
