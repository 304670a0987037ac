"""Tests what a supervisor decides for one pipeline, step by step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.spark.deployments.model import Schedule
from penstock.spark.deployments.supervisor_events import (
    BeginRound,
    Defined,
    DriverEnded,
    DriverReady,
    GivenUp,
    Held,
    Limits,
    Lost,
    NotPrepared,
    Prepare,
    Prepared,
    Report,
    RoundEnded,
    StartDriver,
    StopDriver,
    Taken,
    Tick,
)
from spark.deployments.supervised import ME, Supervised, kinds, only, whats


@pytest.fixture
def pipeline() -> Supervised:
    return Supervised()


def test_a_pipeline_is_prepared_started_and_run(pipeline: Supervised) -> None:
    pipeline.tell_definition()
    assert pipeline.on(Taken(None)) == []
    prepare = only(Prepare, pipeline.wait(0))
    assert pipeline.state == "PREPARING"
    started = pipeline.on(Prepared(prepare.run))
    # The report comes first: it says in whose folder the tables are.
    assert isinstance(started[0], Report) and started[0].status.storage_id == ME.storage_id
    assert only(StartDriver, started).run == prepare.run and pipeline.state == "STARTING"
    begun = pipeline.on(DriverReady(prepare.run))
    assert kinds(begun) == ["BeginRound"] and whats(begun) == ["started"]
    assert pipeline.state == "RUNNING"


def test_nothing_is_started_without_a_lease(pipeline: Supervised) -> None:
    pipeline.tell_definition()
    pipeline.on(Taken(None))
    assert kinds(pipeline.wait(100, lease=False)) == []
    assert kinds(pipeline.wait(0)) == ["Prepare"]
    # The lease ends before the files are there.
    pipeline.wait(50, lease=False)
    assert kinds(pipeline.on(Prepared(pipeline.machine.run))) == []
    assert kinds(pipeline.wait(0)) == ["Prepare"]


def test_a_driver_is_killed_when_the_lease_ends_and_started_again_with_a_new_one(
    pipeline: Supervised,
) -> None:
    pipeline.running()
    assert pipeline.machine.wake_at == pipeline.boot + 9
    stop = only(StopDriver, pipeline.wait(9, lease=False))
    assert stop.at_once
    assert kinds(pipeline.on(DriverEnded(stop.run))) == []
    assert kinds(pipeline.wait(1)) == ["Prepare"]
    assert pipeline.status is not None and pipeline.status.failures == 0


@pytest.mark.parametrize("uniform", [0.0, 0.99])
def test_a_pipeline_that_fails_backs_off_longer_and_longer(uniform: float) -> None:
    pipeline = Supervised(uniform)
    pipeline.own()
    pauses = []
    for number in range(1, 15):
        pipeline.ready()
        assert kinds(pipeline.on(DriverEnded(pipeline.machine.run, error="no table"))) == []
        assert pipeline.state == "BACKING OFF" and pipeline.status is not None
        assert (pipeline.status.failures, pipeline.status.error) == (number, "no table")
        assert pipeline.machine.wake_at is not None
        pauses.append(round(pipeline.machine.wake_at - pipeline.boot, 6))
        assert pipeline.status.next_ms == pipeline.wall_ms + round(pauses[-1] * 1000)
        assert kinds(pipeline.wait(pauses[-1] * 0.99)) == []
        assert kinds(pipeline.wait(pauses[-1] * 0.02)) == ["Prepare"]
    assert pauses == sorted(pauses) and pauses[-1] <= 300 and pauses[0] <= 1 < pauses[1] <= 2
    assert "restarted" in whats(pipeline.effects)
    # A round that is completed makes the next pause short.
    pipeline.ready()
    pipeline.complete_round()
    assert pipeline.status is not None
    assert (pipeline.status.failures, pipeline.status.error) == (0, "")
    pipeline.on(DriverEnded(pipeline.machine.run, error="no table"))
    assert pipeline.machine.wake_at is not None and pipeline.machine.wake_at <= pipeline.boot + 1


def test_a_round_that_ran_for_long_makes_the_next_pause_short(pipeline: Supervised) -> None:
    pipeline.own()
    for _ in range(5):
        pipeline.ready()
        pipeline.on(DriverEnded(pipeline.machine.run, error="no table"))
        pipeline.wait(20)
    pipeline.ready()
    pipeline.wait(200)
    pipeline.on(DriverEnded(pipeline.machine.run, error="no table"))
    assert pipeline.status is not None and pipeline.status.failures == 1


def test_a_driver_that_does_not_start_is_killed_and_counts_as_failed(pipeline: Supervised) -> None:
    pipeline.own()
    pipeline.on(Prepared(pipeline.machine.run))
    assert kinds(pipeline.wait(299)) == []
    stop = only(StopDriver, pipeline.wait(1))
    assert stop.at_once
    pipeline.on(DriverEnded(stop.run))
    assert pipeline.state == "BACKING OFF" and pipeline.status is not None
    assert pipeline.status.error.startswith("Spark did not start within 300 s: ")
    assert pipeline.status.failures == 1


def test_a_stop_waits_for_the_round(pipeline: Supervised) -> None:
    pipeline.running()
    stop = only(StopDriver, pipeline.define(wanted="STOPPED"))
    assert not stop.at_once and pipeline.state == "STOPPING"
    pipeline.complete_round()
    assert whats(pipeline.on(DriverEnded(stop.run))) == ["stopped"]
    assert pipeline.state == "STOPPED" and pipeline.status is not None
    assert pipeline.status.good_version == 1
    assert kinds(pipeline.wait(1000)) == [] and pipeline.machine.wake_at is None
    assert kinds(pipeline.define(wanted="RUNNING")) == ["Prepare"]


def test_a_round_that_does_not_end_after_a_stop_is_killed(pipeline: Supervised) -> None:
    pipeline.running()
    pipeline.define(wanted="STOPPED")
    assert kinds(pipeline.wait(29)) == []
    assert only(StopDriver, pipeline.wait(1)).at_once
    assert kinds(pipeline.wait(100)) == []
    pipeline.on(DriverEnded(pipeline.machine.run))
    assert pipeline.state == "STOPPED"


def test_a_stop_while_it_prepares_or_starts_or_backs_off(pipeline: Supervised) -> None:
    pipeline.own()
    late = pipeline.machine.run
    assert kinds(pipeline.define(wanted="STOPPED")) == [] and pipeline.state == "STOPPED"
    assert kinds(pipeline.on(Prepared(late))) == []
    pipeline.define(wanted="RUNNING")
    pipeline.on(Prepared(pipeline.machine.run))
    assert only(StopDriver, pipeline.define(wanted="STOPPED")).at_once
    pipeline.on(DriverEnded(pipeline.machine.run))
    assert pipeline.state == "STOPPED"
    pipeline.define(wanted="RUNNING")
    pipeline.ready()
    pipeline.on(DriverEnded(pipeline.machine.run, error="no table"))
    pipeline.define(wanted="STOPPED")
    assert pipeline.state == "STOPPED"


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"restarts": 1},
        {"master": "spark://x:7077"},
        {"memory_mb": 2048},
        {"settings": {"spark.x": "1"}},
        {"secrets": ["token"]},
        # The streams of a continuous pipeline run with its interval, and only if it is continuous.
        {"schedule": Schedule(continuous=True, interval_s=5)},
        {"schedule": Schedule(every_s=60)},
    ],
)
def test_a_change_starts_a_new_driver(pipeline: Supervised, change: dict[str, object]) -> None:
    pipeline.running()
    assert kinds(pipeline.define(**change)) == ["StopDriver"]
    assert kinds(pipeline.on(DriverEnded(pipeline.machine.run))) == ["Prepare"]


def test_other_times_of_a_schedule_need_no_new_driver(pipeline: Supervised) -> None:
    pipeline.define(schedule=Schedule(every_s=60))
    pipeline.running()
    pipeline.complete_round()
    assert kinds(pipeline.define(schedule=Schedule(every_s=5))) == ["BeginRound"]
    pipeline.complete_round()
    assert kinds(pipeline.wait(4)) == [] and kinds(pipeline.wait(1)) == ["BeginRound"]


def test_a_driver_that_ends_with_its_lease_is_no_failure(pipeline: Supervised) -> None:
    """A starved driver may not have read in time that the lease was renewed. It starts again."""
    pipeline.running()
    effects = pipeline.on(DriverEnded(pipeline.machine.run, lease_ended=True))
    assert "Prepare" in kinds(effects)
    assert whats(effects) == ["interrupted"]
    assert pipeline.status is not None
    assert pipeline.status.failures == 0


def test_a_change_ends_the_pause_after_a_failure(pipeline: Supervised) -> None:
    pipeline.running()
    pipeline.on(DriverEnded(pipeline.machine.run, error="no table"))
    assert kinds(pipeline.define(version=2)) == ["Prepare"]


def test_a_definition_that_is_read_late_is_ignored(pipeline: Supervised) -> None:
    pipeline.running()
    old = Defined(pipeline.deployment, None)
    pipeline.define(wanted="STOPPED")
    assert pipeline.on(old) == [] and pipeline.state == "STOPPING"


def test_a_pipeline_that_is_given_up_stops_first(pipeline: Supervised) -> None:
    pipeline.running()
    assert kinds(pipeline.on(GivenUp())) == ["StopDriver"]
    released = pipeline.on(DriverEnded(pipeline.machine.run))
    assert kinds(released) == ["Released"] and pipeline.state == "WAITING FOR A WORKER"
    assert kinds(pipeline.wait(100)) == []
    pipeline.on(Taken(pipeline.status))
    assert kinds(pipeline.wait(0)) == ["Prepare"]


def test_a_pipeline_without_a_driver_is_given_up_at_once(pipeline: Supervised) -> None:
    pipeline.deployment = Supervised().deployment
    pipeline.own()
    assert kinds(pipeline.on(GivenUp())) == ["Released"]
    assert kinds(pipeline.on(GivenUp())) == ["Released"]


def test_a_pipeline_that_is_lost_is_killed_and_not_reported(pipeline: Supervised) -> None:
    pipeline.running()
    lost = pipeline.on(Lost())
    assert kinds(lost) == ["StopDriver"] and only(StopDriver, lost).at_once
    after = pipeline.on(DriverEnded(pipeline.machine.run))
    assert not [effect for effect in lost + after if isinstance(effect, Report)]
    assert kinds(pipeline.wait(100)) == []


@pytest.mark.parametrize("taken_by_another", [False, True])
def test_the_history_says_that_a_driver_was_killed_because_the_lease_ended(
    pipeline: Supervised, taken_by_another: bool
) -> None:
    """It does so if the same worker goes on. Otherwise it says that the pipeline was moved."""
    pipeline.running()
    status = pipeline.status
    assert status is not None
    pipeline.wait(10, lease=False)
    pipeline.on(Lost())
    pipeline.on(DriverEnded(pipeline.machine.run))
    again = pipeline.own(replace(status, worker="worker-2") if taken_by_another else status)
    assert kinds(again) == ["Prepare"]
    assert whats(again) == ["moved" if taken_by_another else "interrupted"]
    assert whats(pipeline.ready()) == ["started"], "it is said once"


def test_a_pipeline_that_is_lost_and_taken_again_waits_for_the_end_of_the_old_driver(
    pipeline: Supervised,
) -> None:
    pipeline.running()
    pipeline.on(Lost())
    assert kinds(pipeline.on(Taken(pipeline.status)) + pipeline.wait(0)) == []
    assert kinds(pipeline.on(DriverEnded(pipeline.machine.run))) == ["Prepare"]


def test_a_pipeline_that_is_deleted_stops_and_is_not_reported_again(pipeline: Supervised) -> None:
    pipeline.running()
    assert kinds(pipeline.on(Defined(None, None))) == ["StopDriver"]
    ended = pipeline.on(DriverEnded(pipeline.machine.run))
    released = pipeline.on(GivenUp())
    assert kinds(released) == ["Released"]
    assert not [effect for effect in ended + released if isinstance(effect, Report)]


def test_a_script_that_returns_is_completed_and_not_run_again(pipeline: Supervised) -> None:
    pipeline.kind = "script"
    pipeline.running()
    ended = pipeline.on(DriverEnded(pipeline.machine.run, completed=True))
    assert whats(ended) == ["completed"] and pipeline.state == "COMPLETED"
    assert pipeline.status is not None and pipeline.status.good_version == 1
    assert kinds(pipeline.wait(1000)) == []
    # Another worker knows it, too.
    other = Supervised()
    other.kind = "script"
    assert kinds(other.own(pipeline.status)) == [] and other.state == "COMPLETED"
    assert kinds(other.define(restarts=1)) == ["Prepare"]


def test_a_script_with_a_schedule_is_run_at_each_of_its_times(pipeline: Supervised) -> None:
    pipeline.kind = "script"
    pipeline.define(schedule=Schedule(every_s=60))
    pipeline.running()
    pipeline.on(DriverEnded(pipeline.machine.run, completed=True))
    assert pipeline.state == "WAITING FOR ITS TIME"
    assert kinds(pipeline.wait(60)) == ["Prepare"]


def test_a_script_that_runs_for_two_minutes_has_worked(pipeline: Supervised) -> None:
    pipeline.kind = "script"
    pipeline.running()
    assert pipeline.status is not None and pipeline.status.good_version == 0
    pipeline.wait(120)
    assert pipeline.status.good_version == 1


def test_flows_of_a_script_begin_again_once_for_a_revision(pipeline: Supervised) -> None:
    pipeline.kind = "script"
    pipeline.define(version=2, reset_flows=["views"], reset_revision=2)
    pipeline.own()
    start = only(StartDriver, pipeline.on(Prepared(pipeline.machine.run)))
    assert start.reset_flows == ("views",)
    ready = pipeline.on(DriverReady(start.run))
    # The report comes before the round: a worker that takes over must not reset them again.
    order = [type(effect) for effect in ready]
    assert order.index(Report) < order.index(BeginRound)
    assert pipeline.status is not None and pipeline.status.reset_revision == 2
    pipeline.on(DriverEnded(start.run, error="no table"))
    pipeline.wait(1)
    assert only(StartDriver, pipeline.on(Prepared(pipeline.machine.run))).reset_flows == ()


def test_flows_of_a_project_begin_again_until_a_round_has_completed(pipeline: Supervised) -> None:
    """Their tables are emptied in the first round. If it fails, they may be filled only in
    part."""
    pipeline.define(version=2, reset_flows=["views"], reset_revision=2)
    pipeline.own()
    start = only(StartDriver, pipeline.on(Prepared(pipeline.machine.run)))
    pipeline.on(DriverReady(start.run))
    pipeline.on(DriverEnded(start.run, error="no table"))
    pipeline.wait(1)
    start = only(StartDriver, pipeline.on(Prepared(pipeline.machine.run)))
    assert start.reset_flows == ("views",)
    pipeline.on(DriverReady(start.run))
    pipeline.on(RoundEnded(start.run))
    assert pipeline.status is not None and pipeline.status.reset_revision == 2
    pipeline.on(DriverEnded(start.run, error="no table"))
    pipeline.wait(1)
    assert only(StartDriver, pipeline.on(Prepared(pipeline.machine.run))).reset_flows == ()


def test_a_deployment_that_cannot_be_run_fails_until_it_is_changed(pipeline: Supervised) -> None:
    pipeline.define(schedule=Schedule(cron="never"))
    pipeline.own()
    assert pipeline.state == "FAILED" and pipeline.status is not None
    assert "is not a cron schedule" in pipeline.status.error
    assert whats(pipeline.wait(1000)) == [] and pipeline.machine.wake_at is None
    pipeline.define(schedule=Schedule(continuous=True))
    assert pipeline.state == "PREPARING"


def test_a_version_that_does_not_exist_fails(pipeline: Supervised) -> None:
    pipeline.on(Defined(pipeline.deployment, None))
    pipeline.on(Taken(None))
    pipeline.wait(0)
    assert pipeline.state == "FAILED" and pipeline.status is not None
    assert "version 1 does not exist" in pipeline.status.error


def test_answers_to_an_older_attempt_are_ignored(pipeline: Supervised) -> None:
    pipeline.running()
    old = pipeline.machine.run
    pipeline.on(DriverEnded(old, error="no table"))
    pipeline.wait(1)
    assert pipeline.on(DriverEnded(old, error="late")) == []
    assert pipeline.on(NotPrepared(old, "late", lasting=True)) == []
    assert pipeline.on(Tick()) == []


def test_a_driver_that_is_held_begins_no_round() -> None:
    world = Supervised()
    world.running()
    assert kinds(world.on(Held(True))) == [], "the round goes on"
    world.complete_round()
    assert kinds(world.wait(60)) == []
    assert world.state == "RUNNING"
    assert kinds(world.on(Held(False))) == ["BeginRound"]


def test_no_driver_is_started_while_it_is_held() -> None:
    world = Supervised()
    world.on(Held(True))
    assert kinds(world.own()) == []
    assert kinds(world.on(Held(False))) == ["Prepare"]
    world.on(Held(True))
    assert kinds(world.on(Prepared(world.machine.run))) == []
    assert kinds(world.on(Held(False))) == ["Prepare"]


def test_a_driver_that_stops_for_a_swap_may_end_its_round(pipeline: Supervised) -> None:
    """A materialized view may be empty in the middle of a round. If the swap is put off, the limit
    of other stops counts."""
    pipeline.running()
    assert kinds(pipeline.on(Held(True, stops_streams=True))) == ["StopDriver"]
    assert kinds(pipeline.wait(10 * Limits().stop_s)) == []
    assert kinds(pipeline.on(Held(False))) == ["StopDriver"]
