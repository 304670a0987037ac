"""The jobs of a worker that dies are delivered to another worker. Real processes, real signals.

How long it takes is not asserted here: `make chaos-redelivery` measures it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing.slowness import patient

from .redelivery import JOBS, figures, run

HOUR_S = 3_600.0


@pytest.mark.timeout(600)
def test_the_jobs_of_a_killed_worker_come_before_their_locks_end(tmp_path: Path) -> None:
    """The locks last for an hour: only the end of the connection can tell the broker."""
    report = run(tmp_path, HOUR_S, ways=("killed",))
    assert report.complaints == []
    assert len(report.waits["killed"]) == JOBS


@pytest.mark.timeout(600)
def test_the_jobs_of_a_frozen_worker_come_when_their_locks_end(tmp_path: Path) -> None:
    """Its connection stays. When it goes on, it finds that it has lost its jobs."""
    report = run(tmp_path, min(60.0, patient(5.0)), ways=("frozen",))
    assert report.complaints == []
    assert len(report.waits["frozen"]) == JOBS


def test_the_report_compares_the_longest_wait_with_the_lock() -> None:
    assert figures([0.5, 2.0, 1.0], lock_s=2.0) == {
        "jobs": 3,
        "median_s": 1.0,
        "max_s": 2.0,
        "within_lock": True,
    }
    assert figures([2.1], lock_s=2.0)["within_lock"] is False
