"""The checks of deployed pipelines: each rule detects a history that breaks it."""

from __future__ import annotations

import math

from penstock.sim.actors.pipeline_board import PipelineBoard
from penstock.sim.checkers.history_checks import check_history
from penstock.sim.history import OK, DriverRun, Entry, History, LeaseRenewal
from penstock.sim.history_file import read_history


def run(begun_ms: float, ended_ms: float, worker: str = "w0", lease_ms: float = 1e9) -> DriverRun:
    return DriverRun(
        process=worker,
        status=OK,
        begun_ms=begun_ms,
        ended_ms=ended_ms,
        pipeline="views",
        lease_ms=lease_ms,
    )


def rules(*entries: Entry) -> list[str]:
    return [each.rule for each in check_history(History([*entries]), [])]


def test_a_pipeline_has_one_driver_at_a_time() -> None:
    """E28: also if one run spans several others."""
    assert rules(run(0, 10), run(10, 20, "w1"), run(25, 30)) == []
    assert rules(run(0, 10), run(9.9, 20, "w1")) == ["E28"]
    assert rules(run(0, 100), run(10, 20, "w1"), run(30, 40, "w2")) == ["E28", "E28"]


def test_a_driver_ends_before_the_lease_of_its_worker() -> None:
    """E29"""
    assert rules(run(0, 10, lease_ms=10)) == []
    assert rules(run(0, 11, lease_ms=10)) == ["E29"]


def test_a_lease_ends_before_the_group_may_remove_the_worker() -> None:
    """E30"""

    def renewal(lease_ms: float, removal_ms: float) -> LeaseRenewal:
        return LeaseRenewal(
            process="w0",
            status=OK,
            begun_ms=0,
            ended_ms=0,
            lease_ms=lease_ms,
            removal_ms=removal_ms,
        )

    assert rules(renewal(9, 10), renewal(9, math.inf)) == []
    assert rules(renewal(11, 10)) == ["E30"]
    assert rules(renewal(9, 0)) == ["E30"]


def test_a_driver_runs_until_it_is_stopped_or_its_deadline_passes() -> None:
    """Its worker need not live that long."""
    now = 0.0
    board = PipelineBoard(lambda: now, frozenset(("views", "clicks")))
    one, two = board.start("views", "w0", 5.0), board.start("clicks", "w0", 5.0)
    now = 4.0
    assert board.running("views") == [one]
    two.stop(now)
    one.deadline_s = 9.0
    now = 6.0
    assert board.running("views") == [one]
    assert board.running("clicks") == []
    now = 9.0
    assert board.running("views") == []
    ends = [(each.begun_ms, each.ended_ms) for each in board.entries()]
    assert ends == [(0, 9_000), (0, 4_000)]
    assert not math.isinf(one.ends_s)


def test_a_history_with_drivers_can_be_written_and_read() -> None:
    history = History([run(0, 10)])
    assert read_history(history.lines()).entries == history.entries
