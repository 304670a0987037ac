"""Tests when a supervisor begins the rounds of a schedule, also after its worker has changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.spark.deployments.model import Schedule, Status
from penstock.spark.deployments.supervisor_events import (
    DriverEnded,
    GivenUp,
    StopDriver,
)
from spark.deployments.supervised import NOON_MS, Supervised, kinds, only, whats


@pytest.fixture
def pipeline() -> Supervised:
    return Supervised()


def test_a_round_follows_the_last_one_after_the_interval(pipeline: Supervised) -> None:
    pipeline.running()
    assert kinds(pipeline.complete_round()) == []
    assert pipeline.state == "RUNNING" and pipeline.machine.wake_at == pipeline.boot + 1
    assert kinds(pipeline.wait(0.5)) == []
    assert kinds(pipeline.wait(0.5)) == ["BeginRound"]


def test_a_scheduled_pipeline_waits_for_its_time_with_a_warm_driver(pipeline: Supervised) -> None:
    pipeline.define(schedule=Schedule(every_s=600))
    pipeline.running()
    pipeline.complete_round()
    assert pipeline.state == "WAITING FOR ITS TIME"
    assert pipeline.status is not None and pipeline.status.next_ms == NOON_MS + 600_000
    assert pipeline.status.good_version == 1
    assert kinds(pipeline.wait(599)) == []
    assert kinds(pipeline.wait(1)) == ["BeginRound"]


def test_a_driver_ends_if_the_next_round_is_far_away(pipeline: Supervised) -> None:
    pipeline.define(schedule=Schedule(every_s=3600))
    pipeline.running()
    stop = only(StopDriver, pipeline.complete_round())
    assert not stop.at_once
    pipeline.on(DriverEnded(stop.run))
    assert pipeline.state == "WAITING FOR ITS TIME"
    # It looks at the clock now and then, because the clock may jump.
    assert pipeline.machine.wake_at == pipeline.boot + 60
    assert kinds(pipeline.wait(3599)) == []
    assert kinds(pipeline.wait(1)) == ["Prepare"]


def test_cron_waits_for_its_first_time_and_a_restart_does_not(pipeline: Supervised) -> None:
    pipeline.define(schedule=Schedule(cron="0 3 * * *"))
    assert kinds(pipeline.own()) == [] and pipeline.state == "WAITING FOR ITS TIME"
    assert kinds(pipeline.define(restarts=1)) == ["Prepare"]


def test_a_worker_that_takes_over_keeps_the_time_of_the_next_round(pipeline: Supervised) -> None:
    pipeline.define(schedule=Schedule(every_s=3600))
    due_ms = NOON_MS + 100_000
    previous = Status(
        "views", "WAITING FOR ITS TIME", 2, 1, worker="other", host="there", next_ms=due_ms
    )
    assert kinds(pipeline.own(previous)) == []
    assert whats(pipeline.effects) == ["moved"]
    assert pipeline.status is not None and pipeline.status.next_ms == due_ms
    assert kinds(pipeline.wait(100)) == ["Prepare"]


def _begin_cron(pipeline: Supervised) -> None:
    """Waits until a round by cron is due, and begins it. It is noon."""
    pipeline.define(schedule=Schedule(cron="0 13 * * *"))
    pipeline.own()
    pipeline.wait(3600)
    pipeline.ready()
    assert pipeline.state == "RUNNING"


def _waiting(pipeline: Supervised) -> None:
    pipeline.define(schedule=Schedule(cron="0 13 * * *"))
    pipeline.own()
    pipeline.wait(3590)


def _failed(pipeline: Supervised) -> None:
    _begin_cron(pipeline)
    pipeline.on(DriverEnded(pipeline.machine.run, error="no table"))
    assert pipeline.state == "BACKING OFF"


def _given_up_before(pipeline: Supervised) -> None:
    _waiting(pipeline)
    pipeline.on(GivenUp())
    assert pipeline.state == "WAITING FOR A WORKER"


def _given_up_during_a_round(pipeline: Supervised) -> None:
    _begin_cron(pipeline)
    pipeline.on(GivenUp())
    pipeline.wait(31)
    pipeline.on(DriverEnded(pipeline.machine.run))
    assert pipeline.state == "WAITING FOR A WORKER"


@pytest.mark.parametrize(
    "leave", [_waiting, _given_up_before, _begin_cron, _given_up_during_a_round, _failed]
)
def test_a_round_by_cron_is_not_lost_when_the_worker_changes(
    pipeline: Supervised, leave: Callable[[Supervised], None]
) -> None:
    """Whenever the first worker ends, the next one begins the round that was not completed."""
    leave(pipeline)
    other = Supervised()
    other.deployment = pipeline.deployment
    other.wall_ms = pipeline.wall_ms + 20_000
    assert kinds(other.own(pipeline.status)) == ["Prepare"]


def test_no_round_is_added_when_the_worker_changes(pipeline: Supervised) -> None:
    pipeline.define(schedule=Schedule(every_s=6 * 3600))
    pipeline.running()
    pipeline.complete_round()
    pipeline.on(DriverEnded(pipeline.machine.run))
    pipeline.on(GivenUp())
    other = Supervised()
    other.deployment = pipeline.deployment
    assert kinds(other.own(pipeline.status)) == []
    assert kinds(other.wait(6 * 3600)) == ["Prepare"]
