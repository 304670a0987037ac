"""Which segments a round of compaction reads and rewrites, and the offset map that it builds."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.partition.compaction import (
    ENTRY_BYTES_MAX,
    ClosedSegment,
    CompactionPlan,
    OffsetMap,
    dirty_ratio,
    group_segments,
    plan,
)


def segment(base: int, size: int = 100, newest: int = 0) -> ClosedSegment:
    return ClosedSegment(base, size, 8, 12, newest)


FOUR = [segment(0, 10), segment(10, 20), segment(20, 40), segment(30, 80)]


def planned(
    segments: list[ClosedSegment],
    *,
    checkpoint: int | None = None,
    stable: int = 40,
    start: int = 0,
    lag: int = 0,
    now: int = 0,
) -> CompactionPlan:
    return plan(
        segments,
        active_base_offset=40,
        log_start_offset=start,
        last_stable_offset=stable,
        checkpoint_offset=checkpoint,
        min_compaction_lag_ms=lag,
        now_ms=now,
    )


def test_a_log_that_was_never_cleaned_is_all_dirty() -> None:
    """Everything below the active segment is read."""
    assert planned(FOUR) == CompactionPlan(0, 40, (0, 10, 20, 30), 0, 150)


def test_the_clean_part_is_not_read_again() -> None:
    """The map holds only dirty keys. A segment that was cleaned in part counts as dirty."""
    assert planned(FOUR, checkpoint=20) == CompactionPlan(20, 40, (20, 30), 30, 120)
    assert planned(FOUR, checkpoint=25) == CompactionPlan(25, 40, (20, 30), 30, 120)
    assert planned(FOUR, checkpoint=40) == CompactionPlan(40, 40, (), 150, 0)


@pytest.mark.parametrize(("stable", "end"), [(40, 40), (39, 30), (30, 30), (29, 20), (5, 0)])
def test_nothing_from_the_last_stable_offset_on_is_touched(stable: int, end: int) -> None:
    """A segment that reaches above it is left alone as a whole (I14)."""
    found = planned(FOUR, stable=stable)
    assert found.uncleanable_offset == end
    assert found.map_segments == tuple(base for base in (0, 10, 20, 30) if base < end)


def test_young_segments_and_all_after_them_wait() -> None:
    """min.compaction.lag.ms keeps records from being compacted, except those cleaned before."""
    segments = [replace(each, newest_ms=100) for each in FOUR]
    segments[1] = replace(segments[1], newest_ms=500)
    assert planned(segments, lag=50, now=550).map_segments == (0, 10, 20, 30)
    assert planned(segments, lag=51, now=550).map_segments == (0,)
    assert planned(segments, lag=51, now=550, checkpoint=20).map_segments == (20, 30)
    assert planned(segments, lag=0, now=0).map_segments == (0, 10, 20, 30)


def test_a_checkpoint_outside_the_log_starts_over() -> None:
    """A checkpoint below the log start or beyond the closed segments cannot be trusted."""
    assert planned(FOUR, checkpoint=41).first_dirty_offset == 0
    assert planned(FOUR, checkpoint=3, start=12) == CompactionPlan(12, 40, (10, 20, 30), 10, 140)


def test_a_plan_never_ends_before_its_start() -> None:
    """If the last stable offset is below the checkpoint, there is nothing to do."""
    found = planned(FOUR, checkpoint=30, stable=15)
    assert (found.first_dirty_offset, found.uncleanable_offset) == (30, 30)
    assert found.map_segments == ()


def test_dirty_ratio() -> None:
    """Dirty bytes divided by all bytes. An empty log is clean."""
    assert dirty_ratio(75, 25) == 0.25
    assert dirty_ratio(0, 0) == 0.0
    assert planned(FOUR, checkpoint=20).dirty_ratio == 0.8


def grouped(
    segments: list[ClosedSegment],
    *,
    end: int = 10**12,
    active: int = 10**12,
    size: int = 10**9,
    index: int = 10**9,
) -> list[tuple[int, ...]]:
    return group_segments(
        segments,
        end_offset=end,
        active_base_offset=active,
        segment_bytes=size,
        index_bytes_max=index,
    )


def test_small_adjacent_segments_are_merged() -> None:
    """As long as the log and each index fit into one segment."""
    near = {"active": 40}
    assert grouped(FOUR, **near) == [(0, 10, 20, 30)]
    assert grouped(FOUR, size=70, **near) == [(0, 10, 20), (30,)]
    assert grouped(FOUR, size=69, **near) == [(0, 10), (20,), (30,)]
    assert grouped(FOUR, index=24, **near) == [(0, 10), (20, 30)]
    narrow = [replace(each, time_index_bytes=0) for each in FOUR]
    assert grouped(narrow, index=24, **near) == [(0, 10, 20), (30,)]


def test_only_segments_below_the_end_are_rewritten() -> None:
    """A segment that the map covers only in part is rewritten too."""
    assert grouped(FOUR, end=20, active=40) == [(0, 10)]
    assert grouped(FOUR, end=21, active=40) == [(0, 10, 20)]
    assert grouped(FOUR, end=0) == []
    assert grouped([]) == []


def test_offsets_of_a_group_fit_its_index() -> None:
    """Relative offsets have 31 bits. An empty segment adds none."""
    far = 2**31
    assert grouped([segment(0), segment(5)], active=far) == [(0, 5)]
    assert grouped([segment(0), segment(5)], active=far + 1) == [(0,), (5,)]
    assert grouped([segment(0), segment(5, 0)], active=far + 1) == [(0, 5)]
    assert grouped([segment(0), segment(5), segment(far + 1)], active=far + 5) == [
        (0,),
        (5, far + 1),
    ]


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.tuples(st.integers(1, 2**30), st.integers(0, 60)), min_size=1, max_size=12),
    st.integers(30, 150),
)
def test_every_segment_is_in_one_group_that_fits(shapes: list[tuple[int, int]], limit: int) -> None:
    """Groups keep the order of the segments. A group of several respects every limit, and no two
    adjacent groups could have been merged."""
    segments, base = [], 0
    for span, size in shapes:
        segments.append(segment(base, size))
        base += span
    groups = grouped(segments, end=base, active=base, size=limit, index=48)
    assert [each for group in groups for each in group] == [each.base_offset for each in segments]
    size_of = {each.base_offset: each.size_bytes for each in segments}
    bases = [*size_of, base]
    for group in groups:
        if len(group) > 1:
            assert sum(size_of[each] for each in group) <= limit
            assert len(group) * 12 <= 48
            filled = [each for each in group[1:] if size_of[each]]
            ends = [bases[bases.index(each) + 1] for each in filled]
            assert all(end - 1 - group[0] < 2**31 for end in ends)
    for group, following in pairwise(groups):
        joined = (*group, following[0])
        end = bases[bases.index(following[0]) + 1]
        assert (
            sum(size_of[each] for each in joined) > limit
            or len(joined) * 12 > 48
            or (size_of[following[0]] and end - 1 - group[0] >= 2**31)
        )


def test_the_map_returns_the_newest_offset() -> None:
    """The later offset of a key that was added twice, and -1 for an unknown key."""
    offsets = OffsetMap(10_000, start_offset=5)
    assert offsets.end_offset == 5
    assert offsets.add(b"a", 5)
    assert offsets.add(b"b", 6)
    assert offsets.add(b"a", 9)
    assert (offsets.get(b"a"), offsets.get(b"b"), offsets.get(b"c")) == (9, 6, -1)
    assert offsets.end_offset == 10
    offsets.cover(15)
    offsets.cover(12)
    assert offsets.end_offset == 15
    assert len(offsets) == 2


def test_long_keys_differing_in_one_byte_are_different() -> None:
    """Keys of about the length from which the map stores digests are not confused."""
    offsets = OffsetMap(10**6)
    keys = [b"k" * size + tail for size in range(28, 40) for tail in (b"", b"x", b"y")]
    keys = sorted(set(keys))
    for number, key in enumerate(keys):
        assert offsets.add(key, number)
    assert [offsets.get(key) for key in keys] == list(range(len(keys)))


def test_a_short_key_is_not_mistaken_for_a_digest() -> None:
    """A key whose bytes equal the digest of another key is still a different key."""
    from hashlib import blake2b

    offsets = OffsetMap(10**4)
    long_key = b"z" * 100
    assert offsets.add(long_key, 1)
    assert offsets.get(blake2b(long_key, digest_size=32).digest()) == -1


def test_a_full_map_refuses_only_new_keys() -> None:
    """Known keys are still updated, and a refused record is not covered."""
    offsets = OffsetMap(2 * ENTRY_BYTES_MAX)
    keys = [bytes([number]) * 40 for number in range(3)]
    assert offsets.add(keys[0], 0)
    assert offsets.add(keys[1], 1)
    assert not offsets.add(keys[2], 2)
    assert offsets.end_offset == 2
    assert offsets.get(keys[2]) == -1
    assert offsets.add(keys[0], 3)
    assert offsets.get(keys[0]) == 3


def test_a_map_too_small_for_one_key_is_refused() -> None:
    """Compaction would never make progress with it."""
    with pytest.raises(ValueError, match="cannot hold a single key"):
        OffsetMap(ENTRY_BYTES_MAX - 1)


@pytest.mark.parametrize("key_bytes", [4, 31, 64])
def test_the_map_stays_within_its_memory_budget(key_bytes: int) -> None:
    """The memory that Python allocates is below the limit, including growth of the table."""
    budget = 2_000_000
    tracemalloc.start()
    try:
        offsets = OffsetMap(budget)
        number = 0
        while offsets.add(number.to_bytes(key_bytes, "big"), 10**12 + number):
            number += 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert offsets.bytes_used <= budget
    assert peak <= budget
    assert number > budget / 256
