"""Tests which pipelines count as starting: nothing else takes processor time from them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.spark.deployments.model import State, Status
from penstock.spark.deployments.starting import (
    BURST_MS,
    PATIENCE_MS,
    ROUND_MAX_MS,
    START_MAX_MS,
    Patience,
    is_in_round,
    is_starting,
)
from penstock.spark.pipelines.events import RunView

READY_MS = 1_000_000


def view(*events: dict[str, Any]) -> dict[str, Any]:
    found = RunView("views")
    for event in events:
        found.apply(event)
    return found.as_dict()


def status(state: State, run: dict[str, Any]) -> Status:
    return Status("views", state, 1, 1, since_ms=READY_MS, run=run)


ROUND = {"event": "round", "number": 1}
WAITING = {"event": "waiting"}
RUNNING = {"event": "flow", "flow": "clicks", "status": "RUNNING"}
VIEW_QUEUED = {"event": "flow", "flow": "counts", "status": "QUEUED"}
VIEW_DONE = {"event": "flow", "flow": "counts", "status": "COMPLETED"}
BATCH = {
    "event": "progress", "flow": "clicks", "batch": 0, "rows": 3, "rows_per_s": 1.0,
    "at": "", "duration_ms": 1, "violations": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("state", "events", "expected"),
    [
        ("PREPARING", [], True),
        ("STARTING", [], True),
        ("RUNNING", [], True),
        ("RUNNING", [ROUND], True),
        ("RUNNING", [ROUND, RUNNING], True),
        ("RUNNING", [ROUND, RUNNING, BATCH], False),
        ("RUNNING", [ROUND, RUNNING, VIEW_QUEUED, BATCH], True),
        ("RUNNING", [ROUND, RUNNING, BATCH, VIEW_DONE], False),
        ("RUNNING", [ROUND, RUNNING, WAITING], False),
        ("RUNNING", [ROUND, WAITING, {"event": "round", "number": 2}], False),
        ("WAITING FOR ITS TIME", [ROUND, WAITING], False),
        ("BACKING OFF", [ROUND], False),
        ("STOPPED", [], False),
    ],
)
def test_a_start_ends_with_the_first_results(
    state: State, events: list[dict[str, Any]], expected: bool
) -> None:
    assert is_starting(status(state, view(*events)), READY_MS + 5_000) is expected


def test_a_start_without_results_ends_after_a_time() -> None:
    first_round = status("RUNNING", view(ROUND, RUNNING))
    assert is_starting(first_round, READY_MS + START_MAX_MS - 1)
    assert not is_starting(first_round, READY_MS + START_MAX_MS)


def test_a_status_from_a_clock_that_is_ahead_is_no_start() -> None:
    assert not is_starting(status("RUNNING", view(ROUND)), READY_MS - 60_000)


@pytest.mark.parametrize(
    ("state", "due_in_ms", "since_ms", "expected"),
    [
        ("RUNNING", -1_000, -1_000, True),
        ("RUNNING", -ROUND_MAX_MS, -ROUND_MAX_MS, False),
        ("WAITING FOR ITS TIME", 2_000, -1_000, True),
        ("WAITING FOR ITS TIME", 60_000, -1_000, False),
        # Its worker has ended, and nobody else has it yet.
        ("WAITING FOR ITS TIME", -60_000, -90_000, False),
        ("STOPPED", 2_000, -1_000, False),
    ],
)
def test_a_round_of_a_schedule_needs_the_processors_while_it_is_short(
    state: State, due_in_ms: int, since_ms: int, expected: bool
) -> None:
    found = Status("views", state, 1, 1, since_ms=READY_MS + since_ms, due_ms=READY_MS + due_in_ms)
    assert is_in_round(found, READY_MS) is expected


def test_a_continuous_pipeline_has_no_rounds_to_wait_for() -> None:
    assert not is_in_round(Status("views", "RUNNING", 1, 1, since_ms=READY_MS), READY_MS)


def test_work_that_can_wait_begins_when_it_is_quiet_or_has_waited_for_long() -> None:
    patience = Patience()
    assert patience.may_begin(is_quiet=True, now_ms=0)
    began = [
        now_ms
        for now_ms in range(1_000, 3 * (PATIENCE_MS + BURST_MS), 1_000)
        if patience.may_begin(is_quiet=False, now_ms=now_ms)
    ]
    # Two bursts: it waits again after each.
    first, second = began[: BURST_MS // 1_000], began[BURST_MS // 1_000 :][: BURST_MS // 1_000]
    assert first[0] == 1_000 + PATIENCE_MS and first[-1] - first[0] < BURST_MS
    assert second[0] - first[-1] >= PATIENCE_MS
    assert patience.may_begin(is_quiet=True, now_ms=5 * PATIENCE_MS)
    assert not patience.may_begin(is_quiet=False, now_ms=5 * PATIENCE_MS + 1_000)
