"""Tests the lag of groups in seconds."""

from __future__ import annotations

from penstock.console.lag_times import PARTITIONS_MAX, SAMPLES_MAX, EndOffsets, LagTimes
from penstock.topic_partition import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_the_lag_is_the_age_of_the_oldest_unread_record() -> None:
    """Interpolated between two samples. A group that has read everything has none."""
    ends = EndOffsets()
    for now_ms, end in ((0, 100), (10_000, 200), (20_000, 200), (30_000, 300)):
        ends.add(now_ms, end)
    assert ends.age_s(30_000, 300) == 0.0
    assert ends.age_s(30_000, 250) == 5.0
    assert ends.age_s(30_000, 200) == 10.0
    assert ends.age_s(30_000, 150) == 25.0
    assert ends.age_s(40_000, 150) == 35.0


def test_records_from_before_the_first_sample_have_no_known_age() -> None:
    """Nor has anything in a partition without samples."""
    times = LagTimes()
    times.add(1_000, {P0: 10}, {P0})
    assert times.lag_s(2_000, {P0: 9}) is None
    assert times.lag_s(2_000, {P1: 9}) is None
    assert times.lag_s(2_000, {P0: 10}) == 0.0
    assert times.lag_s(2_000, {}) == 0.0


def test_a_group_has_the_lag_of_its_slowest_partition() -> None:
    times = LagTimes()
    for now_ms, end in ((0, 0), (10_000, 10)):
        times.add(now_ms, {P0: end, P1: end}, {P0, P1})
    assert times.lag_s(10_000, {P0: 8, P1: 2}) == 8.0


def test_a_topic_that_is_created_again_begins_again() -> None:
    """Its end offset is lower than before."""
    ends = EndOffsets()
    ends.add(0, 1_000)
    ends.add(2_000, 5)
    ends.add(4_000, 15)
    assert ends.age_s(4_000, 10) == 1.0


def test_samples_and_partitions_are_limited() -> None:
    """Older samples are further apart, and an idle partition needs two."""
    busy, idle = EndOffsets(), EndOffsets()
    for number in range(5_000):
        busy.add(number * 2_000, number * 10)
        idle.add(number * 2_000, 7)
    assert len(busy) <= SAMPLES_MAX
    assert busy.age_s(9_998_000, 20_000) == 5_998.0
    assert len(idle) == 2
    times = LagTimes()
    many = {TopicPartition("t", number): 1 for number in range(PARTITIONS_MAX + 5)}
    times.add(0, many, many)
    assert len(times) == PARTITIONS_MAX
    times.add(1, many, {P0})
    assert len(times) == 1
