"""The watch on the state of replicas notices every change."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.partition.follower import Follower, FollowerRules
from penstock.sim.checkers.invariants import Invariants
from penstock.sim.checkers.state_watch import StateWatch
from penstock.sim.seeds import Task, run_task


def state_of(invariants: Invariants) -> list[tuple[Any, ...]]:
    """Returns everything about every replica that the invariants compare."""
    return [
        (
            node.id,
            broker,
            hosted,
            hosted.log.state.end_offset,
            hosted.log.state.recovery_point,
            hosted.log.state.failure,
            hosted.leadership,
            hosted.high_watermark,
        )
        for node in invariants._nodes()
        if (broker := node.broker) is not None
        for hosted in broker.replicas._hosted.values()
    ]


def test_every_change_of_a_replica_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checked after every step of a run with faults: no report means no change."""
    check, last, quiet = Invariants.check, [[]], [0]  # type: ignore[var-annotated]

    def compared(self: Invariants) -> None:
        assert self._watch is not None
        state = state_of(self)
        known = {entry[1] for entry in last[0]} == {entry[1] for entry in state}
        if not self._watch.touched and known and len(last[0]) == len(state):
            quiet[0] += 1
            assert state == last[0]
        last[0] = state
        check(self)

    monkeypatch.setattr(Invariants, "check", compared)
    report = run_task(Task(8, virtual_s=4.0))
    assert report.failure == ""
    assert 0 < quiet[0] < report.counters["checks"]


def test_assignments_are_noted_while_the_watch_is_on() -> None:
    """Only the watched attributes count, and only while the watch is on."""
    watch = StateWatch()
    follower = Follower(0, 1, high_watermark=3, rules=FollowerRules())

    def is_noted(name: str, value: int) -> bool:
        watch.touched = False
        setattr(follower, name, value)
        assert getattr(follower, name) == value
        return watch.touched

    with watch.on():
        assert not is_noted("epoch", 2)
        assert is_noted("high_watermark", 4)
    assert not is_noted("high_watermark", 5)
