"""Tests the metrics that clients count, and their snapshots."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.metrics import ConsumerMeter, LatencyMeter, ProducerMeter
from penstock.topic_partition import TopicPartition


@given(st.lists(st.floats(1e-5, 1000), min_size=1, max_size=200))
@settings(deadline=None, max_examples=100)
def test_latencies_are_summarized(times_s: list[float]) -> None:
    """Count, mean and maximum are exact; quantiles are within a tenth."""
    meter = LatencyMeter()
    for seconds in times_s:
        meter.add(seconds)
    summary = meter.snapshot()
    ordered = sorted(times_s)
    assert summary.count == len(times_s)
    assert summary.mean_ms == pytest.approx(sum(times_s) / len(times_s) * 1000)
    assert summary.max_ms == pytest.approx(ordered[-1] * 1000)
    for share, found_ms in ((0.5, summary.p50_ms), (0.99, summary.p99_ms)):
        exact_ms = ordered[max(0, -int(-len(ordered) * share // 1) - 1)] * 1000
        assert exact_ms * 0.89 <= found_ms <= exact_ms * 1.11


def test_latencies_without_values_and_with_extreme_values() -> None:
    """No division by zero, and no bucket beyond the last."""
    meter = LatencyMeter()
    assert meter.snapshot().as_dict() == {
        "count": 0,
        "mean_ms": 0.0,
        "p50_ms": 0.0,
        "p99_ms": 0.0,
        "max_ms": 0.0,
    }
    meter.add(0.0)
    meter.add(-1.0)
    assert meter.snapshot().max_ms == 0.0
    meter.add(1e9, count=98)
    assert meter.snapshot().count == 100
    assert meter.snapshot().max_ms == 1e12


def test_a_producers_snapshot_is_a_frozen_copy() -> None:
    """It is nested, and can be written as JSON."""
    meter = ProducerMeter()
    meter.records += 10
    meter.request_latency.add(0.002)
    meter.distribution.add("t", 1, 10)
    taken = meter.snapshot(buffered_bytes=77, buffered_records=3)
    meter.records += 5
    meter.distribution.add("t", 0, 10)
    assert (taken.records, taken.buffered_bytes, taken.buffered_records) == (10, 77, 3)
    assert dict(taken.distribution["t"].counts) == {1: 10}
    assert taken.request_latency.count == 1
    plain = json.loads(json.dumps(taken.as_dict()))
    assert plain["distribution"]["t"]["skew"] == 1.0
    assert plain["request_latency"]["max_ms"] == 2.0
    with pytest.raises(FrozenInstanceError):
        taken.records = 0  # type: ignore[misc]


def test_a_consumers_snapshot_is_a_frozen_copy() -> None:
    """It has the lag by partition."""
    meter = ConsumerMeter()
    meter.polls += 2
    lag = {TopicPartition("t", 3): 9}
    taken = meter.snapshot(queued_bytes=5, lag=lag)
    lag.clear()
    assert (taken.polls, taken.queued_bytes) == (2, 5)
    assert taken.lag == {TopicPartition("t", 3): 9}
    assert json.loads(json.dumps(taken.as_dict()))["lag"] == {"t-3": 9}
