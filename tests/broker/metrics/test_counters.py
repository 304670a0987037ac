"""Counters for hot paths, and how the number of time series is limited."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.cooperative_yield import Slices
from penstock.broker.counters import BrokerCounters, Histogram, Requests, Sampled, TimedExecutor
from penstock.broker.metrics.group_lag import Lag, limited
from penstock.broker.metrics.names import METRICS, OTHER, Kind
from penstock.broker.metrics.top_topics import IDLE_S, TopTopics, Traffic
from penstock.ports import Slicing
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode

T = TypeVar("T")


class HandClock:
    """A clock that moves only when the test or a sleep moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


# Histograms


def test_a_histogram_counts_by_upper_bounds() -> None:
    """A value equal to a bound belongs to its bucket, as Prometheus' `le` requires. Values above
    all bounds are counted too.
    """
    held = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 3.0):
        held.observe(seconds)
    assert held.counts == [2, 1, 1]
    assert held.sum_s == 3.65


@given(st.lists(st.sampled_from(["ask", "settle"]), max_size=200), st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_the_total_of_a_sampled_histogram_is_exact_after_settle(
    steps: list[str], every: int
) -> None:
    """Each request that is not measured counts with the duration of a measured one."""
    held = Histogram((0.1, 1.0))
    sampled = Sampled(held, every)
    asked = measured = 0
    for step in steps:
        if step == "settle":
            sampled.settle()
            assert sum(held.counts) == asked
            continue
        asked += 1
        if sampled.left:
            sampled.left -= 1
        else:
            measured += 1
            sampled.end(0.5, sampled.begin())
    sampled.settle()
    assert held.counts == [0, asked, 0]
    assert measured == 0 if asked == 0 else measured >= 1


def test_only_one_of_n_requests_is_measured() -> None:
    sampled = Sampled(Histogram((1.0,)), 32)
    measured = 0
    for _ in range(3200):
        if sampled.left:
            sampled.left -= 1
        else:
            measured += 1
            sampled.end(0.5, sampled.begin())
    assert measured == 100


def test_several_requests_may_be_measured_at_the_same_time() -> None:
    """Responses that wait for a commit overlap. The requests before each one are counted once."""
    held = Histogram((1.0,))
    sampled = Sampled(held, 2)
    first = sampled.begin()
    sampled.left -= 1
    second = sampled.begin()
    sampled.end(0.5, second)
    sampled.end(0.5, first)
    sampled.settle()
    assert held.counts == [3, 0]


def test_requests_are_counted_by_api_and_error() -> None:
    """By nothing else, so the number of APIs and error codes limits the number of series."""
    requests = Requests()
    requests.observe(ApiKey.FETCH, 0.01)
    requests.refused(ApiKey.FETCH, ErrorCode.UNKNOWN_TOPIC_ID)
    requests.refused(ApiKey.FETCH, ErrorCode.UNKNOWN_TOPIC_ID)
    assert sum(requests.by_api[ApiKey.FETCH].counts) == 1
    assert requests.errors == {(ApiKey.FETCH, ErrorCode.UNKNOWN_TOPIC_ID): 2}


def test_flushes_are_timed_on_their_thread() -> None:
    """The wait for a thread does not count as disk time. A flush that fails is timed too."""
    clock = HandClock()
    counters = BrokerCounters(clock)

    class Slow:
        async def run(self, work: Callable[[], T]) -> T:
            clock.now += 50
            return work()

    def flush() -> str:
        clock.now += 0.02
        return "done"

    def fail() -> str:
        clock.now += 0.7
        raise OSError("the disk is broken")

    async def run_case() -> None:
        timed = TimedExecutor(Slow(), counters)
        assert await timed.run(flush) == "done"
        try:
            await timed.run(fail)
        except OSError:
            return
        raise AssertionError("the failure was lost")

    asyncio.run(run_case())
    assert sum(counters.flushes.counts) == 2
    assert round(counters.flushes.sum_s, 6) == 0.72


def test_long_work_yields_to_the_event_loop_once_per_slice() -> None:
    """Not after every step: on a busy loop each yield may take long."""
    clock = HandClock()
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    async def run_case() -> None:
        task = asyncio.get_running_loop().create_task(other())
        slices = Slices(clock.monotonic)
        for _ in range(10):
            await slices.give_way()
        assert others == 0
        clock.now += Slicing().slice_s
        await slices.give_way()
        assert others == 1
        await slices.give_way()
        assert others == 1
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(run_case())


# Series of topics


def busy(size: int = 10) -> Traffic:
    return Traffic(received_bytes=size, received_records=1, size_bytes=size)


def test_below_the_limit_every_topic_has_its_own_series() -> None:
    """With traffic or without."""
    top_topics = TopTopics(3)
    top_topics.update({"a": busy(), "b": Traffic(size_bytes=7)}, 0)
    assert {topic: row.size_bytes for topic, row in top_topics.rows.items()} == {"a": 10, "b": 7}
    top_topics.update({"a": busy(), "b": Traffic(size_bytes=7)}, 1)
    assert top_topics.rows["a"].received_bytes == 20
    assert top_topics.rows["a"].size_bytes == 10
    assert top_topics.other == Traffic()


def test_topics_with_traffic_get_a_series_first() -> None:
    """The others share one row, so that sums are right."""
    top_topics = TopTopics(2)
    top_topics.update({"a": Traffic(size_bytes=1), "b": busy(), "c": Traffic(size_bytes=2)}, 0)
    assert set(top_topics.rows) == {"b", "a"}
    assert top_topics.other.size_bytes == 2


def test_a_topic_keeps_its_series_until_it_has_long_been_idle() -> None:
    """Series that appear and disappear often are useless."""
    top_topics = TopTopics(1)
    top_topics.update({"a": busy()}, 0)
    top_topics.update({"a": Traffic(), "b": busy()}, IDLE_S - 1)
    assert set(top_topics.rows) == {"a"}
    assert top_topics.other.received_bytes == 10
    top_topics.update({"a": Traffic(), "b": busy()}, IDLE_S)
    assert set(top_topics.rows) == {"b"}
    assert top_topics.rows["b"].received_bytes == 10


def test_a_topic_that_is_gone_frees_its_series_at_once() -> None:
    top_topics = TopTopics(1)
    top_topics.update({"a": busy()}, 0)
    top_topics.update({"b": busy()}, 1)
    assert set(top_topics.rows) == {"b"}


traffic = st.builds(
    Traffic,
    received_bytes=st.integers(0, 5),
    received_records=st.integers(0, 5),
    sent_bytes=st.integers(0, 5),
    replicated_bytes=st.integers(0, 5),
    size_bytes=st.integers(0, 5),
)
scrapes = st.lists(
    st.tuples(st.dictionaries(st.sampled_from("abcdefg"), traffic), st.sampled_from([1, IDLE_S])),
    max_size=20,
)


@given(scrapes, st.integers(1, 4))
@settings(deadline=None, max_examples=100)
def test_series_are_limited_and_nothing_is_counted_twice_or_lost(
    told: list[tuple[dict[str, Traffic], float]], topics_max: int
) -> None:
    """In each scrape the rows grow by exactly the new traffic, and no row that stays decreases."""
    top_topics = TopTopics(topics_max)
    now = 0.0
    for news, passed in told:
        now += passed
        before = {topic: row.received_bytes for topic, row in top_topics.rows.items()}
        other = top_topics.other.received_bytes
        top_topics.update(news, now)
        assert len(top_topics.rows) <= topics_max
        assert set(top_topics.rows) <= set(news)
        assert len(top_topics.rows) == min(topics_max, len(news))
        gained = top_topics.other.received_bytes - other
        for topic, row in top_topics.rows.items():
            assert row.received_bytes >= before.get(topic, 0)
            gained += row.received_bytes - before.get(topic, 0)
        assert gained == sum(each.received_bytes for each in news.values())
        sizes = (
            sum(row.size_bytes for row in top_topics.rows.values()) + top_topics.other.size_bytes
        )
        assert sizes == sum(each.size_bytes for each in news.values())


# Groups


def test_the_groups_with_the_largest_lag_are_exported() -> None:
    """All other pairs of group and topic share one series."""
    lags = {(f"g{each}", "t"): Lag(each, each) for each in range(10)}
    told = limited(lags, 3)
    assert set(told) == {("g9", "t"), ("g8", "t"), ("g7", "t"), (OTHER, OTHER)}
    assert told[OTHER, OTHER] == Lag(21, 6)
    assert limited(lags, 10) == lags


# Names


def test_the_documentation_lists_exactly_the_metrics() -> None:
    text = (Path(__file__).parents[3] / "docs" / "OPERATIONS.md").read_text("utf-8")
    table = re.findall(r"^\| `(penstock_[a-z_]+)` \|", text, re.MULTILINE)
    assert sorted(table) == sorted(metric.name for metric in METRICS)


def test_metric_names_follow_prometheus_conventions() -> None:
    """Base units, `_total` for counters, and unique names."""
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.name.startswith("penstock_")
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        assert not metric.name.endswith(("_ms", "_kb", "_count", "_sum", "_bucket")), metric.name
        assert metric.about.endswith("."), metric.name
        if metric.kind is Kind.HISTOGRAM:
            assert metric.name.endswith("_seconds")
