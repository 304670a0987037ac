"""Retention deletes only the oldest segments, and a segment is rolled when it is full or old."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.partition.retention import (
    UNLIMITED,
    Reason,
    RetentionDecision,
    RollConfig,
    SegmentInfo,
    expired_segments,
    should_roll,
)

DAY_MS = 86_400_000


def segment(base: int, size: int = 100, timestamp: int = 0, modified: int = 0) -> SegmentInfo:
    return SegmentInfo(base, base + 10, size, timestamp, modified)


def decide(
    segments: list[SegmentInfo],
    *,
    now: int = 0,
    ms: int = UNLIMITED,
    size: int = UNLIMITED,
    start: int = 0,
    high_watermark: int = 10**9,
) -> RetentionDecision:
    return expired_segments(
        segments,
        now_ms=now,
        retention_ms=ms,
        retention_bytes=size,
        log_start_offset=start,
        high_watermark=high_watermark,
    )


THREE = [segment(0, timestamp=100), segment(10, timestamp=200), segment(20, timestamp=300)]


def test_unlimited_retention_keeps_everything() -> None:
    """-1 means no limit."""
    assert decide(THREE, now=10**15) == RetentionDecision((), (), 0, False)


def test_old_segments_are_deleted_by_the_age_of_their_newest_record() -> None:
    """Strictly older than retention.ms. The log then starts at the first segment that stays."""
    assert decide(THREE, now=600, ms=500) == RetentionDecision((), (), 0, False)
    assert decide(THREE, now=601, ms=500) == RetentionDecision((0,), (Reason.TIME,), 10, False)


def test_deletion_stops_at_the_first_young_segment() -> None:
    """An old segment after a young one stays: a log has no holes."""
    segments = [segment(0, timestamp=900), segment(10, timestamp=1), segment(20, timestamp=1)]
    assert decide(segments, now=1000, ms=500).delete == ()


def test_the_modification_time_counts_where_records_have_no_timestamps() -> None:
    """A max timestamp of -1 says nothing about the age."""
    segments = [segment(0, timestamp=-1, modified=900), segment(10, timestamp=999)]
    assert decide(segments, now=1000, ms=500).delete == ()
    assert decide(segments, now=1401, ms=500).delete == (0,)


def test_the_size_stays_at_or_above_the_limit() -> None:
    """A segment is deleted only if retention.bytes remain without it."""
    assert decide(THREE, size=201).delete == ()
    assert decide(THREE, size=200) == RetentionDecision((0,), (Reason.SIZE,), 10, False)
    assert decide(THREE, size=100).delete == (0, 10)


def test_segments_below_the_log_start_offset_are_deleted() -> None:
    """DeleteRecords frees whole segments. The log start offset itself does not change."""
    assert decide(THREE, start=9).delete == ()
    assert decide(THREE, start=15) == RetentionDecision((0,), (Reason.START_OFFSET,), 15, False)
    assert decide(THREE, start=30).delete == (0, 10)


def test_nothing_above_the_high_watermark_is_deleted() -> None:
    """Uncommitted records stay, however old or many they are."""
    limits = {"now": 10**9, "ms": 1, "size": 0, "start": 0}
    assert decide(THREE, **limits, high_watermark=9).delete == ()
    assert decide(THREE, **limits, high_watermark=19).delete == (0,)
    assert decide(THREE, **limits, high_watermark=29) == RetentionDecision(
        (0, 10), (Reason.SIZE, Reason.SIZE), 20, False
    )


def test_a_gap_after_a_compacted_segment_counts_for_the_high_watermark() -> None:
    """The log would start at the next segment's base offset, so that must be committed too."""
    segments = [segment(0, timestamp=0), segment(50, timestamp=10**9)]
    assert decide(segments, now=10**9, ms=5, high_watermark=49).delete == ()
    assert decide(segments, now=10**9, ms=5, high_watermark=50).log_start_offset == 50


def test_an_expired_active_segment_is_rolled_first() -> None:
    """The caller rolls and asks again. Then the old active segment is like any other."""
    decision = decide(THREE, now=10**6, ms=500)
    assert decision == RetentionDecision((0, 10), (Reason.TIME, Reason.TIME), 20, True)
    rolled = [THREE[2], SegmentInfo(30, 30, 0, -1, 10**6)]
    assert decide(rolled, now=10**6, ms=500, start=20) == RetentionDecision(
        (20,), (Reason.TIME,), 30, False
    )


def test_an_empty_active_segment_is_never_rolled() -> None:
    """Otherwise an idle partition would create new files in every round."""
    assert decide([SegmentInfo(30, 30, 0, -1, 0)], now=10**9, ms=1) == RetentionDecision(
        (), (), 30, False
    )


def test_a_log_without_segments_has_nothing_to_delete() -> None:
    """The log start offset is returned as it was."""
    assert decide([], now=5, ms=1, size=1, start=4) == RetentionDecision((), (), 4, False)


def three_passes(segments: list[SegmentInfo], limits: dict[str, int]) -> set[int]:
    """The same rule written differently: one pass for each policy over what the previous one
    left."""
    left = list(segments)

    def begins_behind_first() -> int:
        return left[1].base_offset

    while len(left) > 1 and begins_behind_first() <= min(limits["start"], limits["high_watermark"]):
        left.pop(0)
    while len(left) > 1 and begins_behind_first() <= limits["high_watermark"]:
        if limits["size"] < 0 or sum(item.size_bytes for item in left[1:]) < limits["size"]:
            break
        left.pop(0)
    while len(left) > 1 and begins_behind_first() <= limits["high_watermark"]:
        if limits["ms"] < 0 or limits["now"] - left[0].max_timestamp_ms <= limits["ms"]:
            break
        left.pop(0)
    return {item.base_offset for item in segments} - {item.base_offset for item in left}


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6),
    st.fixed_dictionaries(
        {
            "now": st.integers(0, 60),
            "ms": st.integers(-1, 40),
            "size": st.integers(-1, 200),
            "start": st.integers(0, 70),
            "high_watermark": st.integers(0, 70),
        }
    ),
)
def test_one_pass_decides_like_three(shapes: list[tuple[int, int]], limits: dict[str, int]) -> None:
    """One pass for all policies deletes what Kafka's separate passes delete."""
    segments = [segment(10 * i, size, stamp) for i, (size, stamp) in enumerate(shapes)]
    decision = decide(segments, **limits)
    assert set(decision.delete) == three_passes(segments, limits)
    assert len(decision.reasons) == len(decision.delete)
    assert decision.log_start_offset >= limits["start"]
    assert decision.log_start_offset <= max(limits["start"], limits["high_watermark"])


@dataclass(frozen=True)
class Roll:
    """A segment and a batch that need no roll. Tests change one field at a time."""

    base_offset: int = 0
    size_bytes: int = 500
    first_timestamp_ms: int = 1000
    created_ms: int = 0
    jitter_ms: int = 0
    index_full: bool = False
    batch_bytes: int = 100
    batch_last_offset: int = 10
    batch_max_timestamp_ms: int = 1000
    now_ms: int = 0

    def rolls(self) -> bool:
        config = RollConfig(segment_bytes=1000, segment_ms=DAY_MS)
        return should_roll(
            config,
            base_offset=self.base_offset,
            size_bytes=self.size_bytes,
            first_timestamp_ms=self.first_timestamp_ms,
            created_ms=self.created_ms,
            jitter_ms=self.jitter_ms,
            index_full=self.index_full,
            batch_bytes=self.batch_bytes,
            batch_last_offset=self.batch_last_offset,
            batch_max_timestamp_ms=self.batch_max_timestamp_ms,
            now_ms=self.now_ms,
        )


FITS = Roll()
NO_TIME = replace(FITS, first_timestamp_ms=-1, batch_max_timestamp_ms=-1)


@pytest.mark.parametrize(
    ("case", "rolls"),
    [
        (FITS, False),
        (replace(FITS, batch_bytes=500), False),
        (replace(FITS, batch_bytes=501), True),
        (replace(FITS, size_bytes=0, batch_bytes=5000), False),
        (replace(FITS, index_full=True), True),
        (replace(FITS, batch_last_offset=2**31 - 1), False),
        (replace(FITS, batch_last_offset=2**31), True),
        (replace(FITS, base_offset=1, batch_last_offset=2**31), False),
        (replace(FITS, size_bytes=0, batch_last_offset=2**31), True),
        (replace(FITS, batch_max_timestamp_ms=1000 + DAY_MS), False),
        (replace(FITS, batch_max_timestamp_ms=1001 + DAY_MS), True),
        (replace(FITS, size_bytes=0, batch_max_timestamp_ms=1001 + DAY_MS), False),
        (replace(FITS, jitter_ms=1, batch_max_timestamp_ms=1000 + DAY_MS), True),
        (replace(FITS, now_ms=10 * DAY_MS), False),
        (replace(NO_TIME, now_ms=DAY_MS), False),
        (replace(NO_TIME, now_ms=DAY_MS + 1), True),
    ],
)
def test_when_a_segment_is_rolled(case: Roll, rolls: bool) -> None:
    """By size, by the time of the data or else of the clock, by full indexes, by offset range."""
    assert case.rolls() is rolls


@pytest.mark.parametrize(
    ("segment_bytes", "segment_ms", "name"),
    [(0, 1, "segment.bytes"), (2**31, 1, "segment.bytes"), (1, 0, "segment.ms")],
)
def test_the_config_is_validated(segment_bytes: int, segment_ms: int, name: str) -> None:
    """A bad value is refused where it is set. The error gives its Kafka name."""
    with pytest.raises(ValueError, match=name):
        RollConfig(segment_bytes, segment_ms)
