"""Tests what metrics say about the progress of backfills and recomputes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.spark.deployments.metrics.reprocessing import (
    BackfillSample,
    BackfillWatch,
    RecomputeSample,
    RecomputeSeen,
    RecomputeWatch,
)
from penstock.spark.deployments.model import BackfillStatus, Deployment, State, Status
from penstock.spark.stream_position import BackfillRequest

REQUEST = BackfillRequest(7, "clicks", {"clicks": {"0": [[0, 60]], "1": [[10, 50]]}})


def deployment(*requests: BackfillRequest) -> Deployment:
    return Deployment("views", 7, 1, backfills=list(requests))


def status(*backfills: BackfillStatus, state: State = "RUNNING") -> Status:
    return Status("views", state, 7, 1, backfills=list(backfills))


def running(done: int, **more: Any) -> BackfillStatus:
    return BackfillStatus("clicks", 7, "RUNNING", done, 100, **more)


class Watched:
    """The backfill of one pipeline, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 50.0
        self._watch = BackfillWatch()

    def after(
        self, seconds: float, known: Status, failures: int = 0, request: BackfillRequest = REQUEST
    ) -> BackfillSample | None:
        self.now += seconds
        found = self._watch.look(deployment(request), known, failures, self.now)
        assert len(found) <= 1
        return found[0] if found else None


def test_a_backfill_that_has_not_begun_is_as_large_as_its_request() -> None:
    """Its time counts from the request, so one that no driver begins is noticed."""
    watched = Watched()
    assert watched.after(0, status()) == BackfillSample("clicks", 0, 100, 0.0, 0)
    assert watched.after(30, status()) == BackfillSample("clicks", 0, 100, 30.0, 0)


def test_the_idle_time_ends_with_the_next_record() -> None:
    watched = Watched()
    watched.after(0, status(running(10)))
    assert watched.after(8, status(running(10))) == BackfillSample("clicks", 10, 90, 8.0, 0)
    assert watched.after(1, status(running(30))) == BackfillSample("clicks", 30, 70, 0.0, 0)
    assert watched.after(2, status(running(30))) == BackfillSample("clicks", 30, 70, 2.0, 0)


def test_failures_count_since_the_last_record() -> None:
    watched = Watched()
    watched.after(0, status(running(10)), failures=4)
    found = watched.after(5, status(running(10), state="BACKING OFF"), failures=6)
    assert found == BackfillSample("clicks", 10, 90, 5.0, 2)
    assert watched.after(1, status(running(11)), failures=7) == BackfillSample(
        "clicks", 11, 89, 0.0, 0
    )


@pytest.mark.parametrize("state", ["WAITING FOR ITS TIME", "STOPPING", "STOPPED", "COMPLETED"])
def test_time_in_which_nothing_is_to_run_does_not_count(state: State) -> None:
    """A backfill of a pipeline with a round a day is not stuck until the next round."""
    watched = Watched()
    watched.after(0, status(running(10)))
    watched.after(3, status(running(10)))
    found = watched.after(80_000, status(running(10), state=state))
    assert found is not None and found.idle_s == 3.0
    found = watched.after(4, status(running(10)))
    assert found is not None and found.idle_s == 7.0


@pytest.mark.parametrize("state", ["STARTING", "BACKING OFF", "FAILED", "PREPARING"])
def test_time_in_which_the_pipeline_does_not_get_to_run_counts(state: State) -> None:
    watched = Watched()
    watched.after(0, status(running(10)))
    found = watched.after(600, status(running(10), state=state))
    assert found is not None and found.idle_s == 600.0


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED"])
def test_a_backfill_that_has_ended_is_not_reported(state: Any) -> None:
    watched = Watched()
    watched.after(0, status(running(99)))
    assert watched.after(1, status(replace(running(100), state=state))) is None


def test_a_backfill_that_is_being_cancelled_is_reported_until_it_ends() -> None:
    watched = Watched()
    request = replace(REQUEST, cancelled=True)
    assert watched.after(1, status(running(10)), request=request) is not None
    assert watched.after(1, status(), request=request) is None


def test_the_next_backfill_of_a_flow_begins_at_zero() -> None:
    watched = Watched()
    watched.after(0, status(running(10)), failures=1)
    watched.after(90, status(running(10)), failures=3)
    found = watched.after(1, status(), failures=3, request=replace(REQUEST, id=9))
    assert found == BackfillSample("clicks", 0, 100, 0.0, 0)


# -- recompute -------------------------------------------------------------------------------------


class Recomputed:
    def __init__(self) -> None:
        self.now = 50.0
        self.seen = RecomputeSeen(2, "RUNNING", 0, 0, (), None, 0)
        self._watch = RecomputeWatch()

    def after(self, seconds: float, **changes: Any) -> RecomputeSample:
        self.now += seconds
        self.seen = replace(self.seen, **changes)
        found = self._watch.look(self.seen, self.now)
        assert found is not None
        return found

    def ends(self) -> None:
        assert self._watch.look(None, self.now) is None


def test_a_recompute_reports_what_it_has_read_and_what_is_left() -> None:
    recomputed = Recomputed()
    recomputed.after(0, left=100)
    assert recomputed.after(1, rows=40, left=60) == RecomputeSample(40, 60, 0.0, 0)
    assert recomputed.after(5, failures=3) == RecomputeSample(40, 60, 5.0, 3)


@pytest.mark.parametrize("progress", [{"rows": 1}, {"rounds": 1}, {"computed": ["totals"]}])
def test_rows_rounds_and_views_are_progress(progress: dict[str, Any]) -> None:
    recomputed = Recomputed()
    recomputed.after(0)
    assert recomputed.after(9).idle_s == 9.0
    assert recomputed.after(1, **progress).idle_s == 0.0
    assert recomputed.after(2).idle_s == 2.0


def test_a_view_that_every_attempt_computes_again_is_progress_only_once() -> None:
    """Otherwise a round that fails at its second view again and again would look alive."""
    recomputed = Recomputed()
    recomputed.after(0, computed=["first"])
    for _ in range(3):
        recomputed.after(10, computed=[], state="BACKING OFF")
        recomputed.after(10, computed=["first"], state="RUNNING")
    assert recomputed.after(0).idle_s == 60.0
    recomputed.after(1, rounds=1)
    recomputed.after(5, computed=[])
    assert recomputed.after(5, computed=["first"]).idle_s == 0.0


def test_waiting_for_memory_counts_and_a_stop_does_not() -> None:
    recomputed = Recomputed()
    recomputed.after(0)
    assert recomputed.after(600, state="WAITING FOR MEMORY").idle_s == 600.0
    assert recomputed.after(600, state="STOPPED").idle_s == 600.0


def test_the_next_recompute_begins_at_zero() -> None:
    recomputed = Recomputed()
    recomputed.after(0)
    recomputed.after(100, rows=40)
    recomputed.after(100)
    recomputed.ends()
    assert recomputed.after(50, generation=3) == RecomputeSample(0, None, 0.0, 0)
    assert recomputed.after(1, rows=45).rows == 5
