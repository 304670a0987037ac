"""Tests the setting by which Spark looks more often which flows of a round have ended."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark import __version__

from penstock.spark.pipelines.flow_polling import (
    POLL_MS,
    SETTING,
    polling_settings,
    seconds_for,
)


def milliseconds_in_java(seconds: int) -> int:
    """Multiplies as Java does with longs."""
    wrapped = seconds * 1000 % 2**64
    return wrapped - 2**64 if wrapped >= 2**63 else wrapped


@pytest.mark.parametrize("poll_ms", [8, 48, 96, 200, 1_000, 3_600_000])
def test_spark_sleeps_for_the_milliseconds(poll_ms: int) -> None:
    seconds = seconds_for(poll_ms)
    assert 0 < seconds < 2**63, "it is a positive long"
    assert milliseconds_in_java(seconds) == poll_ms


@pytest.mark.parametrize("poll_ms", [0, -8, 50, 100 + 1])
def test_other_times_are_refused(poll_ms: int) -> None:
    with pytest.raises(ValueError, match="not a multiple"):
        seconds_for(poll_ms)


def test_a_version_of_spark_that_was_not_read_keeps_its_own_setting() -> None:
    assert polling_settings("4.3.0") == {SETTING: str(seconds_for(POLL_MS))}
    assert polling_settings("4.4.0") == {}


def test_the_installed_spark_reads_the_setting_as_a_long(spark: Any) -> None:
    """Otherwise it would fail in every round, or sleep for ever."""
    settings = polling_settings(__version__)
    if not settings:
        pytest.skip(f"Spark {__version__} keeps its own setting")
    conf = spark._jsparkSession.sessionState().conf().clone()
    conf.setConfString(SETTING, settings[SETTING])
    assert milliseconds_in_java(conf.streamStatePollingInterval()) == POLL_MS
