"""Rates and token buckets, compared with a slow model of Kafka's rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.security.gauges import (
    BYTES_BURST_S,
    THROTTLE_MAX_MS,
    TokenBucket,
    WindowedRate,
    new_byte_bucket,
)

# The model


@dataclass
class _Sample:
    start_ms: int
    last_ms: int
    value: Fraction = Fraction(0)


@dataclass
class _KafkaRate:
    """The rules of Kafka's Rate, SampledStat and ClientQuotaManager, with exact numbers."""

    limit: Fraction
    samples: list[_Sample] = field(default_factory=list)
    current: int = 0

    def record(self, amount: Fraction, now_ms: int) -> Fraction:
        if not self.samples:
            self.samples.append(_Sample(now_ms, now_ms))
        if now_ms - self.samples[self.current].start_ms >= 1000:
            self.current = (self.current + 1) % 12
            if self.current >= len(self.samples):
                self.samples.append(_Sample(now_ms, now_ms))
            else:
                self.samples[self.current] = _Sample(now_ms, now_ms)
        sample = self.samples[self.current]
        sample.value += amount
        sample.last_ms = now_ms
        return self._throttle_ms(now_ms)

    def _throttle_ms(self, now_ms: int) -> Fraction:
        for index, sample in enumerate(self.samples):
            if now_ms - sample.last_ms >= 11 * 1000:
                self.samples[index] = _Sample(now_ms, now_ms)
        window_ms = now_ms - min(sample.start_ms for sample in self.samples)
        full_windows = window_ms // 1000
        if full_windows < 10:
            window_ms += (10 - full_windows) * 1000
        rate = sum((sample.value for sample in self.samples), Fraction(0)) * 1000 / window_ms
        return max(Fraction(0), (rate - self.limit) / self.limit * window_ms)


@given(
    st.integers(1, 10_000),
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, 30), st.integers(0, 1500), st.integers(9_000, 25_000)),
            st.integers(0, 200_000),
        ),
        max_size=60,
    ),
)
def test_a_rate_throttles_as_kafka_does(limit: int, steps: list[tuple[int, int]]) -> None:
    now_ms = 1_000_000
    rate = WindowedRate(limit, now_ms)
    model = _KafkaRate(Fraction(limit), [_Sample(now_ms, now_ms)])
    for pause_ms, amount in steps:
        now_ms += pause_ms
        expected = model.record(Fraction(amount), now_ms)
        assert abs(rate.record(amount, now_ms) - expected) <= 1


@pytest.mark.parametrize("pause_ms", [40, 333, 999, 1000, 1001, 1099])
def test_a_steady_client_is_measured_as_kafka_does(pause_ms: int) -> None:
    rate, model = WindowedRate(100, 0), _KafkaRate(Fraction(100), [_Sample(0, 0)])
    for now_ms in range(0, 40_000, pause_ms):
        expected = model.record(Fraction(pause_ms), now_ms)
        assert abs(rate.record(pause_ms, now_ms) - expected) <= 1


@given(st.lists(st.tuples(st.integers(0, 12_000), st.floats(0, 1000), st.booleans()), max_size=60))
def test_fractions_do_not_drift_and_reading_changes_nothing(
    steps: list[tuple[int, float, bool]],
) -> None:
    now_ms = 5
    rate = WindowedRate(50.0, now_ms)
    model = _KafkaRate(Fraction(50), [_Sample(now_ms, now_ms)])
    for pause_ms, amount, is_read in steps:
        now_ms += pause_ms
        expected = model.record(Fraction(amount), now_ms)
        assert abs(rate.record(amount, now_ms) - expected) <= 1
        if is_read:
            assert rate.rate(now_ms + pause_ms) >= 0


def test_a_new_client_may_use_the_quota_of_ten_seconds_at_once() -> None:
    assert WindowedRate(100, 0).record(1000, 0) == 0
    assert WindowedRate(100, 0).record(1001, 0) == 10


def test_a_client_that_obeys_stays_at_its_limit() -> None:
    """A client that waits as it is told gets what its quota says, plus the first ten seconds."""
    rate, now_ms, sent = WindowedRate(1000, 0), 0, 0
    while now_ms < 300_000:
        sent += 700
        now_ms += rate.record(700, now_ms) or 1
    assert 0.9 * 300_000 <= sent <= 1.1 * 310_000


def test_a_client_that_is_idle_for_eleven_seconds_is_like_a_new_one() -> None:
    rate = WindowedRate(100, 0)
    rate.record(1000, 0)
    assert not rate.is_idle(10_999)
    assert rate.is_idle(11_000)
    assert rate.rate(11_000) == 0
    assert rate.record(1000, 11_000) == 0


def test_what_is_unrecorded_leaves_no_trace() -> None:
    rate = WindowedRate(100, 0)
    rate.record(900, 0)
    throttled_ms = rate.record(500, 400)
    rate.unrecord(500, 400)
    assert (rate.add(0, 400), rate.throttled_ms) == (900, throttled_ms)
    assert rate.record(100, 400) == 0


@pytest.mark.parametrize("limit", [5e-324, 1e-300, 1e-9])
def test_a_tiny_limit_throttles_as_long_as_a_response_can_say(limit: float) -> None:
    assert WindowedRate(limit, 0).record(10**9, 0) == THROTTLE_MAX_MS
    assert new_byte_bucket(limit, 0).record(10**9, 0) == THROTTLE_MAX_MS
    assert TokenBucket(limit, 0).record(10**9, 0) == THROTTLE_MAX_MS


def test_a_huge_limit_never_throttles() -> None:
    assert WindowedRate(1.7e308, 0).record(2**62, 0) == 0
    for bucket in (TokenBucket(1.7e308, 0), new_byte_bucket(1.7e308, 0)):
        assert bucket.record(2**62, 0) == 0
        assert bucket.admit(2**62, 1) == 0


# Token buckets


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 800), st.booleans()), max_size=50),
)
def test_a_bucket_gives_tokens_as_kafka_does(
    limit: int, steps: list[tuple[int, int, bool]]
) -> None:
    now_ms, bucket = 0, TokenBucket(limit, 0)
    tokens = Fraction(11 * limit)
    for pause_ms, amount, is_strict in steps:
        now_ms += pause_ms
        tokens = min(Fraction(11 * limit), tokens + Fraction(limit * pause_ms, 1000))
        if is_strict and tokens < 0:
            expected = -tokens / limit * 1000
            assert abs(bucket.admit(amount, now_ms) - expected) <= 1
            continue
        tokens -= amount
        if is_strict:
            assert bucket.admit(amount, now_ms) == 0
        else:
            expected = max(Fraction(0), -tokens / limit * 1000)
            assert abs(bucket.record(amount, now_ms) - expected) <= 1


def test_a_refused_client_that_waits_as_told_is_admitted() -> None:
    """A request larger than the whole bucket succeeds too: retries do not go on forever."""
    bucket, now_ms = TokenBucket(2, 0), 0
    for _ in range(20):
        if wait_ms := bucket.admit(500, now_ms):
            now_ms += wait_ms
            assert bucket.admit(500, now_ms) == 0
    assert now_ms == pytest.approx(19 * 250_000 - 11_000, abs=20)


def test_a_refusal_never_tells_the_client_to_retry_at_once() -> None:
    bucket = TokenBucket(1000, 0)
    bucket.record(11_000 + 0.01, 0)
    assert bucket.admit(1, 0) == 1


def test_a_full_bucket_whose_windows_are_over_is_idle() -> None:
    bucket = TokenBucket(10, 0)
    bucket.record(200, 0)
    assert bucket.rate(0) == pytest.approx(20)
    assert not bucket.is_idle(11_000)
    assert not bucket.is_idle(19_999)
    assert bucket.is_idle(20_000)
    bucket.record(1, 20_000)
    assert not bucket.is_idle(30_999)
    assert bucket.is_idle(31_000)


@given(st.integers(1, 5000), st.integers(1, 40), st.integers(0, 40_000))
@settings(deadline=None, max_examples=30)
def test_over_any_thirty_seconds_a_client_sends_the_quota_of_one_second_more_at_most(
    size: int, connections: int, start_ms: int
) -> None:
    """From its start on, with several connections that wait as they are told. What one request of
    each connection adds is on top."""
    limit, span_ms = 1000, 30_000
    bucket, free_ms, total = new_byte_bucket(limit, 0), [0] * connections, 0
    while (now_ms := min(free_ms)) < start_ms + span_ms:
        total += size if now_ms >= start_ms else 0
        free_ms[free_ms.index(now_ms)] += bucket.record(size, now_ms) or 20
    assert total <= limit * (span_ms / 1000 + BYTES_BURST_S) + size * connections


@pytest.mark.parametrize("sizes", [(1000, 10), (300, 300), (5000, 1)])
def test_consumers_of_different_sizes_share_a_bucket_and_none_starves(
    sizes: tuple[int, int],
) -> None:
    """One that asks for much at once is served as well as one that asks for little. Their requests
    take some time on the way, so neither always arrives first."""
    limit, chosen = 1000, Random(7)
    bucket, free_ms, served = new_byte_bucket(limit, 0), [0, 0], [0, 0]
    while (now_ms := min(free_ms)) < 120_000:
        index = free_ms.index(now_ms)
        wait_ms = bucket.admit(0, now_ms)
        if not wait_ms:
            served[index] += 1
            wait_ms = bucket.record(sizes[index], now_ms)
        free_ms[index] += wait_ms + chosen.randint(1, 20)
    assert min(served) >= 10
    total = served[0] * sizes[0] + served[1] * sizes[1]
    assert 0.8 * 120 * limit <= total <= limit * 121 + sum(sizes)
