"""Tests the history of the charts: steps, gaps, ranges, and what it keeps when it is full."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from penstock.console.history import (
    CLUSTER,
    COARSE_KEPT,
    COARSE_STEP_MS,
    FINE_KEPT,
    FINE_STEP_MS,
    LINES_SHOWN,
    SERIES_MAX,
    History,
    Ring,
    Scope,
    Series,
)

TOPIC: Scope = ("topic", "t")


def add(history: History, at_ms: int, value: float, scope: Scope = TOPIC) -> None:
    history.record(scope, at_ms, at_ms, {"size": {"all": value}})


def line(history: History, now_ms: int, range_s: int = 300, scope: Scope = TOPIC) -> list[Any]:
    found = history.read(scope, now_ms, range_s)
    lines = found["figures"].get("size", {"lines": {}})["lines"]
    return list(lines.get("all", []))


def test_a_step_has_the_mean_of_its_values() -> None:
    """Steps are aligned to the clock."""
    history = History()
    for at_ms, value in ((2_000, 1.0), (2_500, 2.0), (3_999, 6.0), (4_000, 10.0)):
        add(history, at_ms, value)
    assert line(history, 4_100)[-2:] == [3.0, 10.0]


def test_a_step_without_a_value_is_a_gap() -> None:
    """It has no value, rather than 0."""
    history = History()
    add(history, 2_000, 1.0)
    add(history, 8_000, 4.0)
    assert line(history, 12_000)[-6:] == [1.0, None, None, 4.0, None, None]


def test_a_value_can_describe_more_than_one_step() -> None:
    """Surveys of a large cluster are slower than the steps."""
    history = History()
    history.record(TOPIC, 2_000, 2_000, {"size": {"all": 1.0}})
    history.record(TOPIC, 2_000, 8_500, {"size": {"all": 7.0}})
    assert line(history, 8_500)[-4:] == [1.0, 7.0, 7.0, 7.0]


def test_older_values_have_longer_steps() -> None:
    """Two seconds for a quarter of an hour, half a minute for six hours."""
    history = History()
    end_ms = 6 * 3_600_000
    for at_ms in range(0, end_ms, 1_000):
        add(history, at_ms, at_ms // 30_000)
    now_ms = end_ms - 1
    assert line(history, now_ms, 900) == [step * 2 // 30 for step in range(10_800 - 450, 10_800)]
    assert line(history, now_ms, 21_600) == list(range(720))
    assert line(history, now_ms, 3_600) == list(range(600, 720))
    found = history.read(TOPIC, now_ms, 3_600)
    assert (found["step_ms"], found["steps"], found["from_ms"]) == (30_000, 120, 600 * 30_000)


def test_values_beyond_the_range_are_forgotten() -> None:
    """Also if nothing was recorded for a long time."""
    history = History()
    add(history, 2_000, 1.0)
    later_ms = 2_000 + FINE_STEP_MS * FINE_KEPT * 3
    add(history, later_ms, 2.0)
    found = line(history, later_ms, 900)
    assert found[-1] == 2.0
    assert set(found[:-1]) == {None}


def test_a_clock_that_is_set_back_begins_again() -> None:
    """Otherwise nothing would be recorded until the clock had caught up."""
    history = History()
    add(history, 7_200_000, 1.0)
    add(history, 3_600_000, 2.0)
    assert line(history, 3_600_000)[-1] == 2.0
    assert line(history, 7_200_000) == []


def test_an_unknown_scope_has_no_figures() -> None:
    """The chart says that there is no data."""
    assert History().read(TOPIC, 1_000, 300)["figures"] == {}


def test_a_chart_has_the_largest_lines() -> None:
    """And says how many there are. Lines without a value in the range do not count."""
    history = History()
    history.record(TOPIC, 0, 1_000, {"size": {"old": 99.0}})
    now_ms = 1_000_000
    lines = {f"line {number:02}": float(number) for number in range(12)}
    history.record(TOPIC, now_ms, now_ms, {"size": lines})
    found = history.read(TOPIC, now_ms, 300)["figures"]["size"]
    assert list(found["lines"]) == [f"line {number:02}" for number in range(12 - LINES_SHOWN, 12)]
    assert found["of"] == 12


def full(count: int = 4) -> History:
    """A history that is full of groups that no page shows."""
    history = History(series_max=count)
    for number in range(count):
        add(history, 1_000, 1.0, ("group", str(number)))
    assert len(history) == count
    return history


def test_a_full_history_takes_no_new_series(caplog: pytest.LogCaptureFixture) -> None:
    """It says so in its answers and once in the log. Series that it has go on."""
    history = full()
    for at_ms in (2_000, 4_000):
        add(history, at_ms, 2.0, ("group", "new"))
        add(history, at_ms, 3.0, ("group", "0"))
    assert len(history) == 4
    assert line(history, 4_000, scope=("group", "new")) == []
    assert line(history, 4_000, scope=("group", "0"))[-2:] == [3.0, 3.0]
    assert history.read(CLUSTER, 4_000, 300)["full"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_page_gets_the_room_of_what_no_page_shows() -> None:
    """The room of another page only if that page was looked at earlier."""
    history = full(2)
    history.follow(TOPIC, 2_000)
    add(history, 2_000, 5.0)
    assert line(history, 2_000)[-1] == 5.0
    history.follow(("topic", "other"), 3_000)
    add(history, 3_000, 6.0, ("topic", "other"))
    history.follow(TOPIC, 4_000)
    history.follow(("topic", "third"), 5_000)
    add(history, 5_000, 7.0, ("topic", "third"))
    assert line(history, 5_000)[-2:] == [5.0, None]
    assert line(history, 5_000, scope=("topic", "other")) == []
    assert line(history, 5_000, scope=("topic", "third"))[-1] == 7.0
    assert len(history) == 2


def test_series_that_ended_make_room() -> None:
    """A group that was deleted a minute ago, for example."""
    history = full()
    for number in range(1, 4):
        add(history, 70_000, 1.0, ("group", str(number)))
    add(history, 71_000, 2.0, ("group", "new"))
    assert line(history, 71_000, scope=("group", "new"))[-1] == 2.0
    assert line(history, 71_000, scope=("group", "0")) == []


def test_a_page_follows_for_an_hour() -> None:
    """Then the details that only a page needs are not recorded any more."""
    history = History()
    assert not history.is_followed(TOPIC, 1_000)
    history.follow(TOPIC, 1_000)
    history.record(TOPIC, 2_000, 2_000, {"size": {}})  # nothing is known yet
    assert history.is_followed(TOPIC, 3_600_000)
    assert not history.is_followed(TOPIC, 3_602_000)


def test_the_memory_is_bounded() -> None:
    """A full series takes less than 10 KB, so a full history takes less than 10 MB."""
    series = Series()
    for at_ms in range(0, COARSE_STEP_MS * COARSE_KEPT * 2, 1_000):
        series.add(at_ms, at_ms, 1.0)
    size = sum(bytes_of(ring) for ring in (series.fine, series.coarse)) + sys.getsizeof(series)
    assert size < 10 << 10
    assert SERIES_MAX * size < 10 << 20


def bytes_of(ring: Ring) -> int:
    return sys.getsizeof(ring) + sys.getsizeof(ring._values)
