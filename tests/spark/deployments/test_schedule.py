"""Tests when rounds of a pipeline begin."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.deployments.model import Schedule
from penstock.spark.deployments.schedule import (
    ScheduleInvalid,
    check,
    first_round,
    next_round,
    not_later,
)

CONTINUOUS = Schedule(continuous=True, interval_s=2)
EVERY = Schedule(every_s=600)
NIGHTLY = Schedule(cron="0 3 * * *")


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def test_a_round_of_a_continuous_pipeline_follows_the_last_one_after_a_pause() -> None:
    assert first_round(CONTINUOUS, 7_000) == 7_000
    assert next_round(CONTINUOUS, 7_000, 9_000) == 11_000


def test_every_counts_from_the_beginning_of_the_last_round() -> None:
    assert first_round(EVERY, 7_000) == 7_000
    assert next_round(EVERY, 7_000, 9_000) == 607_000


def test_a_round_that_takes_longer_than_the_schedule_is_followed_at_once_by_one_other() -> None:
    assert next_round(EVERY, 0, 3_000_000) == 3_000_000


def test_cron_waits_for_its_first_time_and_is_in_utc() -> None:
    assert first_round(NIGHTLY, at("2026-11-18 14:00")) == at("2026-11-19 03:00")
    assert first_round(NIGHTLY, at("2026-11-18 03:00")) == at("2026-11-19 03:00")


def test_times_that_cron_missed_are_one_round() -> None:
    """After days without a worker the round begins at once; the one after it is the next night."""
    due = next_round(NIGHTLY, at("2026-11-10 03:00"), at("2026-11-10 03:05"))
    assert due == at("2026-11-11 03:00")
    began = at("2026-11-18 14:00")
    assert next_round(NIGHTLY, began, began) == at("2026-11-19 03:00")


@pytest.mark.parametrize(("schedule", "most_ms"), [(CONTINUOUS, 2_000), (EVERY, 600_000)])
def test_a_clock_that_is_set_back_does_not_delay_rounds(schedule: Schedule, most_ms: int) -> None:
    due = next_round(schedule, at("2026-11-18 14:00"), at("2026-11-18 14:00"))
    now = at("2026-11-01 00:00")
    assert not_later(schedule, due, now) == now + most_ms
    assert not_later(schedule, due, due - 1) == due


def test_a_clock_that_is_set_back_does_not_delay_cron() -> None:
    due = first_round(NIGHTLY, at("2026-11-18 14:00"))
    assert not_later(NIGHTLY, due, at("2026-11-01 00:00")) == at("2026-11-01 03:00")
    assert not_later(NIGHTLY, due, due + 5) == due


@pytest.mark.parametrize(
    "wrong",
    [
        Schedule(),
        Schedule(continuous=True, every_s=60),
        Schedule(every_s=0.01),
        Schedule(every_s=-5),
        Schedule(every_s=math.inf),
        Schedule(every_s=math.nan),
        Schedule(continuous=True, interval_s=-1),
        Schedule(continuous=True, interval_s=math.nan),
        Schedule(cron="every day"),
        Schedule(cron="61 * * * *"),
        Schedule(cron="0 0 30 2 *"),
    ],
)
def test_a_schedule_without_a_time_is_refused(wrong: Schedule) -> None:
    with pytest.raises(ScheduleInvalid):
        check(wrong)


@pytest.mark.parametrize("right", [CONTINUOUS, EVERY, NIGHTLY, Schedule(cron="*/5 8-18 * * 1-5")])
def test_a_schedule_with_a_time_is_accepted(right: Schedule) -> None:
    check(right)


@given(
    began=st.integers(0, 2**41),
    took=st.integers(0, 10**8),
    now=st.integers(0, 2**41),
    schedule=st.sampled_from([CONTINUOUS, EVERY, NIGHTLY]),
)
def test_the_next_round_follows_the_last_one(
    began: int, took: int, now: int, schedule: Schedule
) -> None:
    due = next_round(schedule, began, began + took)
    assert due > began
    assert not_later(schedule, due, now) <= due
