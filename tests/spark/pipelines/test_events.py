"""Tests that odd events of a driver change nothing, or raise an ordinary error."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.spark.deployments.driver_endings import error_of, is_end
from penstock.spark.pipelines.driver_control import LEASE_ENDED
from penstock.spark.pipelines.events import RunView, read_event

PROGRESS: dict[str, Any] = {
    "event": "progress", "flow": "clicks", "batch": 3, "at": "now", "rows": 100, "rows_per_s": 52.1,
    "duration_ms": 7, "violations": {"valid": 2},
}  # fmt: skip


@pytest.mark.parametrize(
    "line",
    ["[]", "null", "1", "{}", '{"event": 1}', '{"event": "lag", "lag": NaN}', "x", "[" * 100_000],
)
def test_a_line_that_is_no_event_is_a_value_error(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_event(line)


@pytest.mark.parametrize(
    "event",
    [
        {"event": "phase"},
        {"event": "round", "number": "x"},
        {"event": "flow"},
        {"event": "lag", "flow": "clicks", "lag": None},
        {"event": "position", "flow": "clicks", "topics": 3},
        {"event": "graph", "nodes": 5, "edges": []},
        {"event": "graph", "nodes": [], "edges": ["x"]},
        {"event": "end"},
        {"event": "end", "state": "GONE"},
        {"event": "end", "state": ["STOPPED"]},
        {**PROGRESS, "rows": float("inf")},
        {**PROGRESS, "violations": []},
        {**PROGRESS, "violations": {"valid": "many"}},
        {**PROGRESS, "duration_ms": None},
    ],
)
def test_a_wrong_event_changes_no_count(event: dict[str, Any]) -> None:
    view = RunView("views")
    view.apply(PROGRESS)
    before = view.as_dict()
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError, OverflowError)):
        view.apply(event)
    assert view.as_dict() == before


def test_a_batch_is_added_up() -> None:
    view = RunView("views")
    for _ in range(2):
        view.apply(PROGRESS)
    view.apply({**PROGRESS, "rows": 0, "batch": 9})
    flow = view.flows["clicks"]
    assert (flow.rows, flow.batch, flow.violations) == (200, 3, {"valid": 4})


def test_only_a_whole_event_is_the_end_of_a_driver() -> None:
    assert is_end({"event": "end", "state": "FAILED"}) and is_end({"event": LEASE_ENDED})
    for event in ({"event": "end"}, {"event": "end", "state": 1}, {"event": "round"}):
        assert not is_end(event)


def test_why_a_driver_has_ended() -> None:
    assert "signal 9" in error_of(RunView("views"), -9, {})
    assert "exit code 3" in error_of(RunView("views"), 3, {})
    assert error_of(RunView("views"), -9, {"event": LEASE_ENDED}) == ""
    assert error_of(RunView("views"), 0, {"event": "end", "state": "COMPLETED"}) == ""
    failed = {"event": "end", "state": "FAILED", "error": "no topic"}
    assert error_of(RunView("views"), 0, failed) == "no topic"
