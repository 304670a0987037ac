"""Tests when a supervisor returns to the last version that worked, and when it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.spark.deployments.outside_trouble import ClusterSeen
from penstock.spark.deployments.phase import Phase
from penstock.spark.deployments.supervisor_events import (
    Defined,
    DriverEnded,
    DriverReady,
    NotPrepared,
    Prepared,
    Record,
    RollBack,
)
from spark.deployments.supervised import Supervised, kinds, only


@pytest.fixture
def pipeline() -> Supervised:
    return Supervised()


def test_a_version_that_never_worked_is_rolled_back(pipeline: Supervised) -> None:
    pipeline.define(auto_rollback=True)
    pipeline.running()
    pipeline.complete_round()
    pipeline.define(version=2)
    pipeline.on(DriverEnded(pipeline.machine.run))
    for _ in range(3):
        assert not pipeline.count(RollBack)
        pipeline.ready()
        failed = pipeline.on(DriverEnded(pipeline.machine.run, error="no table"))
        pipeline.wait(30)
    assert only(RollBack, failed) == RollBack("views", 2, 1, "no table")
    pipeline.define(version=1)
    pipeline.ready()
    assert pipeline.state == "RUNNING" and pipeline.count(RollBack) == 1


@pytest.mark.parametrize("lasting", [True, False])
def test_a_version_that_cannot_be_prepared_is_rolled_back_at_once(
    pipeline: Supervised, lasting: bool
) -> None:
    pipeline.define(auto_rollback=True)
    pipeline.running()
    pipeline.complete_round()
    pipeline.define(version=2)
    pipeline.on(DriverEnded(pipeline.machine.run))
    failed = pipeline.on(NotPrepared(pipeline.machine.run, "no such package", lasting=lasting))
    assert ("RollBack" in kinds(failed)) == lasting
    assert pipeline.state == "BACKING OFF"


def failing(good: int = 1, version: int = 2) -> Supervised:
    """A pipeline that worked, with a new version that does not run yet."""
    pipeline = Supervised()
    pipeline.define(auto_rollback=True, version=good)
    pipeline.running()
    pipeline.complete_round()
    pipeline.define(version=version)
    pipeline.on(DriverEnded(pipeline.machine.run))
    return pipeline


@pytest.mark.parametrize(
    ("error", "what_to_do"),
    [
        ("write /data/x: No space left on device", "free space on the disk of the worker"),
        ("views: topic a: not allowed on this topic", "penstock acl add"),
        ("TopicAuthorizationException: Not authorized to access topics: [a]", "penstock acl add"),
        ("the driver cannot be run: [Errno 12] Cannot allocate memory", "the log of the worker"),
    ],
)
def test_a_version_is_not_rolled_back_for_what_is_not_its_fault(
    error: str, what_to_do: str
) -> None:
    pipeline = failing()
    for number in range(1, 6):
        pipeline.ready()
        failed = pipeline.on(DriverEnded(pipeline.machine.run, error=error))
        assert pipeline.status is not None and pipeline.state == "BACKING OFF"
        assert (pipeline.status.failures, pipeline.status.version_failures) == (number, 0)
        assert error in pipeline.status.error and what_to_do in pipeline.status.error
        text = next(each.event.text for each in failed if isinstance(each, Record))
        assert "not rolled back from version 2" in text
        pipeline.wait(60)
    assert not pipeline.count(RollBack)
    assert pipeline.machine.phase is not Phase.IDLE, "it is tried again"


@pytest.mark.parametrize("in_round", [True, False])
@pytest.mark.parametrize(
    ("cluster", "rollbacks"),
    [
        (ClusterSeen(frozenset({"one:9092"})), 0),
        (ClusterSeen(frozenset({"two:9092"}), lost_s=2.0), 0),
        (ClusterSeen(frozenset({"two:9092"})), 1),
    ],
    ids=["a broker of the worker", "the worker has lost its cluster", "an unknown broker"],
)
def test_a_broker_outage_is_no_reason_for_a_rollback(
    cluster: ClusterSeen, rollbacks: int, in_round: bool
) -> None:
    pipeline = failing()
    for _ in range(3):
        if in_round:
            pipeline.ready()
        else:
            pipeline.on(Prepared(pipeline.machine.run))
        error = "copy: cannot connect to one:9092: Connection refused"
        pipeline.on(DriverEnded(pipeline.machine.run, error=error, cluster=cluster))
        pipeline.wait(60)
    assert pipeline.count(RollBack) == rollbacks


def test_a_worker_that_cannot_prepare_a_version_does_not_roll_it_back() -> None:
    pipeline = failing()
    for _ in range(5):
        run = pipeline.machine.run
        pipeline.on(NotPrepared(run, "the secret TOKEN is missing", lasting=False, outside=True))
        assert pipeline.state == "BACKING OFF"
        pipeline.wait(60)
    assert not pipeline.count(RollBack)


def late_start(pipeline: Supervised) -> float:
    """Starts a driver whose Spark never starts. Returns how long it was waited for."""
    pipeline.on(Prepared(pipeline.machine.run))
    seconds = 0.0
    while "StopDriver" not in kinds(pipeline.wait(5)):
        seconds += 5
    pipeline.on(DriverEnded(pipeline.machine.run))
    return seconds + 5


def test_a_slow_machine_is_no_reason_for_a_rollback() -> None:
    """The first start that takes too long does not count, and the next one gets more time."""
    pipeline = failing()
    for _ in range(5):
        assert late_start(pipeline) == 300
        assert pipeline.status is not None and pipeline.status.version_failures == 0
        assert "the next start may take 600 s" in pipeline.status.error
        pipeline.wait(60)
        pipeline.on(Prepared(pipeline.machine.run))
        pipeline.wait(590)
        pipeline.on(DriverReady(pipeline.machine.run))
        assert pipeline.state == "RUNNING"
        pipeline.define(restarts=pipeline.deployment.restarts + 1)
        pipeline.on(DriverEnded(pipeline.machine.run))
        assert pipeline.machine.phase is Phase.PREPARING
    assert not pipeline.count(RollBack)


def test_a_version_that_never_starts_is_rolled_back() -> None:
    pipeline = failing()
    times = []
    while not pipeline.count(RollBack):
        times.append(late_start(pipeline))
        pipeline.wait(60)
    assert times == [300, 600, 1200, 1200]
    rollback = only(RollBack, pipeline.effects)
    assert rollback.reason == "Spark did not start within 1200 s"


def test_a_change_begins_a_new_count_of_late_starts() -> None:
    pipeline = failing()
    for memory_mb in range(1024, 1029):
        assert late_start(pipeline) == 300
        pipeline.define(memory_mb=memory_mb + 1)
    assert pipeline.status is not None and pipeline.status.version_failures == 0


def test_a_driver_that_starts_begins_a_new_count_of_late_starts() -> None:
    pipeline = failing()
    assert late_start(pipeline) == 300
    pipeline.wait(60)
    pipeline.ready()
    pipeline.on(DriverEnded(pipeline.machine.run, error="no table"))
    pipeline.wait(60)
    assert late_start(pipeline) == 300
    assert pipeline.status is not None and pipeline.status.version_failures == 1


def test_workers_count_the_failures_of_a_version_together() -> None:
    """A version that ends its workers would otherwise never be rolled back."""
    pipeline = failing()
    for _ in range(2):
        pipeline.ready()
        pipeline.on(DriverEnded(pipeline.machine.run, error="no table"))
        pipeline.wait(30)
    assert pipeline.status is not None and pipeline.status.version_failures == 2
    other = Supervised()
    other.deployment = pipeline.deployment
    other.own(replace(pipeline.status, worker="worker-2"))
    other.wait(60)
    other.ready()
    failed = other.on(DriverEnded(other.machine.run, error="no table"))
    assert only(RollBack, failed) == RollBack("views", 2, 1, "no table")
    assert other.status is not None and other.status.version_failures == 3


@pytest.mark.parametrize("is_taken_again", [False, True])
def test_a_version_of_a_deployment_that_was_deleted_is_not_gone_back_to(
    is_taken_again: bool,
) -> None:
    pipeline = Supervised()
    pipeline.running()
    pipeline.complete_round()
    status = pipeline.status
    assert status is not None and status.good_version == 1
    pipeline.on(Defined(None, None))
    pipeline.on(DriverEnded(pipeline.machine.run))
    if is_taken_again:
        pipeline = Supervised()
    pipeline.deployment = replace(
        pipeline.deployment, revision=2, version=2, first_version=2, auto_rollback=True
    )
    pipeline.own(status) if is_taken_again else pipeline.tell_definition()
    pipeline.wait(0)
    for _ in range(4):
        pipeline.ready()
        pipeline.on(DriverEnded(pipeline.machine.run, error="no table"))
        pipeline.wait(30)
    assert not pipeline.count(RollBack)
    assert pipeline.status is not None and pipeline.status.good_version == 0


def test_a_version_that_worked_is_not_rolled_back(pipeline: Supervised) -> None:
    pipeline.define(auto_rollback=True)
    pipeline.running()
    pipeline.complete_round()
    for _ in range(5):
        pipeline.on(DriverEnded(pipeline.machine.run, error="no table"))
        pipeline.wait(30)
        pipeline.ready()
    assert not pipeline.count(RollBack)


def test_a_version_that_a_person_left_is_not_taken_again(pipeline: Supervised) -> None:
    """The newest version worked, but with wrong results. The older one does not start."""
    pipeline.define(auto_rollback=True, version=3)
    pipeline.running()
    pipeline.complete_round()
    pipeline.define(version=2)
    pipeline.on(DriverEnded(pipeline.machine.run))
    for _ in range(4):
        pipeline.ready()
        pipeline.on(DriverEnded(pipeline.machine.run, error="no broker"))
        pipeline.wait(30)
    assert not pipeline.count(RollBack)
