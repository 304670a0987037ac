"""Tests of the headers of jobs, and of the topic settings that they need."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.client.errors import OptionError
from penstock.client.queues.job_headers import (
    Extras,
    job_headers,
    missing_setting,
    partition_for,
    priority_levels,
)

ALL = {
    "penstock.timed.records": "true",
    "penstock.dedup.window.ms": "60000",
    "penstock.priority.levels": "3",
}


def test_times_are_milliseconds_as_text() -> None:
    """The time to live begins when the job is due."""
    found = job_headers([("a", b"b")], Extras(timedelta(seconds=2), 0.5, None, "x"), 1_000)
    assert found == (
        ("a", b"b"),
        ("penstock-deliver-at", b"3000"),
        ("penstock-expires-at", b"3500"),
        ("penstock-dedup-id", b"x"),
    )
    assert job_headers([], Extras(ttl=1), 1_000) == (("penstock-expires-at", b"2000"),)


@pytest.mark.parametrize(
    "extras", [Extras(delay=-1), Extras(ttl=0), Extras(dedup=""), Extras(delay=float("nan"))]
)
def test_values_that_make_no_sense_are_refused(extras: Extras) -> None:
    with pytest.raises(OptionError):
        job_headers([], extras, 0)


def test_reserved_headers_are_refused() -> None:
    with pytest.raises(OptionError, match="keywords of put"):
        job_headers([("penstock-deliver-at", b"1")], Extras(), 0)


@pytest.mark.parametrize(
    ("extras", "setting"),
    [
        (Extras(delay=1), "penstock.timed.records"),
        (Extras(ttl=1), "penstock.timed.records"),
        (Extras(dedup="x"), "penstock.dedup.window.ms"),
        (Extras(priority=0), "penstock.priority.levels"),
    ],
)
def test_an_error_names_the_setting_that_the_topic_needs(extras: Extras, setting: str) -> None:
    off = {name: "0" if name != "penstock.timed.records" else "false" for name in ALL}
    refusal = missing_setting("jobs", extras, off)
    assert f"penstock topic alter jobs --config {setting}=" in str(refusal)
    unknown = missing_setting("jobs", extras, {})
    assert setting in str(unknown)
    assert "do not have this setting" in str(unknown)
    assert missing_setting("jobs", extras, ALL) is None


def test_a_plain_job_needs_nothing() -> None:
    assert missing_setting("jobs", Extras(), {}) is None
    assert priority_levels({}) == 0


def test_a_priority_chooses_among_the_partitions_of_its_level() -> None:
    for priority in range(3):
        found = {partition_for(priority, 3, 8, None, turn) for turn in range(10)}
        assert found == {each for each in range(8) if each % 3 == priority}
    by_key = {partition_for(1, 3, 8, b"ann", turn) for turn in range(10)}
    assert len(by_key) == 1


def test_priorities_that_the_topic_does_not_have() -> None:
    with pytest.raises(OptionError, match="0 to 2"):
        partition_for(3, 3, 8, None, 0)
    with pytest.raises(OptionError, match="at least 3"):
        partition_for(2, 3, 2, None, 0)
