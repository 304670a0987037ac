"""Long tests are skipped only on CI, and only if the run has already taken too long."""

from __future__ import annotations

import time

from time_budget import LONG_TESTS_S, REASON, TimeBudget, summary


def test_long_tests_start_within_the_budget() -> None:
    late = time.monotonic() - LONG_TESTS_S - 1
    assert TimeBudget({"CI": "true"}, began=late).is_used_up()
    assert not TimeBudget({"CI": "true"}).is_used_up()


def test_without_ci_every_test_runs() -> None:
    late = time.monotonic() - LONG_TESTS_S - 1
    assert not TimeBudget({}, began=late).is_used_up()
    assert not TimeBudget({"CI": ""}, began=late).is_used_up()


def test_the_run_reports_how_many_tests_were_skipped() -> None:
    assert summary(["no Java here"]) == ""
    assert summary(["no Java here", f"Skipped: {REASON}", f"Skipped: {REASON}"]).startswith(
        "2 long tests were left out: this machine is so slow"
    )
