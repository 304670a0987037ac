"""Random events: what a supervisor never does, whatever happens in whatever order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.spark.deployments.model import Deployment, Schedule, Status, Version
from penstock.spark.deployments.phase import Phase
from penstock.spark.deployments.supervisor import Supervisor
from penstock.spark.deployments.supervisor_events import (
    BeginRound,
    Defined,
    DriverEnded,
    DriverReady,
    GivenUp,
    Happening,
    Held,
    LeaseRenewed,
    Limits,
    Lost,
    NotPrepared,
    Now,
    Prepare,
    Prepared,
    Released,
    Report,
    RollBack,
    RoundEnded,
    StartDriver,
    StopDriver,
    Taken,
    Tick,
)
from spark.deployments.supervised import ME, NOON_MS

SCHEDULES = [
    Schedule(continuous=True),
    Schedule(every_s=60),
    Schedule(every_s=7200),
    Schedule(cron="*/10 * * * *"),
    Schedule(cron="wrong"),
]
LIMITS = Limits()


class Walk(RuleBasedStateMachine):
    """The world around a supervisor: it starts and ends drivers when the supervisor says so."""

    def __init__(self) -> None:
        super().__init__()
        self.fraction = 0.0
        self.machine = Supervisor("views", ME, lambda: self.fraction)
        self.boot, self.wall_ms = 500.0, NOON_MS
        self.deployment: Deployment | None = Deployment("views", 1, 1)
        self.owned = self.releasing = self.held = False
        self.lease = 0.0
        self.preparing: set[int] = set()
        self.driver: int | None = None
        self.driver_version = 0
        self.is_ready = self.in_round = False
        self.kill_asked = self.stop_asked = False
        self.good: set[int] = set()
        self.status: Status | None = None
        self.on(Defined(self.deployment, self.version()))

    def version(self) -> Version | None:
        if self.deployment is None or self.deployment.version == 9:
            return None
        kind: Any = "script" if self.deployment.version == 3 else "project"
        return Version("views", self.deployment.version, kind, "entry", "a" * 64, 1)

    def on(self, happening: Happening) -> None:
        for effect in self.machine.handle(happening, Now(self.boot, self.wall_ms)):
            match effect:
                case Prepare():
                    assert self.owned and self.boot < self.lease
                    assert effect.deployment.wanted == "RUNNING"
                    self.preparing.add(effect.run)
                case StartDriver():
                    self.check_start(effect)
                case BeginRound():
                    assert self.driver == effect.run and self.is_ready and not self.in_round
                    assert self.deployment is not None and self.deployment.wanted == "RUNNING"
                    assert self.owned and self.boot < self.lease and not self.stop_asked
                    assert not self.held
                    self.in_round = True
                case StopDriver():
                    assert self.driver == effect.run
                    self.stop_asked = True
                    self.kill_asked = self.kill_asked or effect.at_once
                case Report():
                    assert self.owned and self.boot < self.lease
                    self.status = effect.status
                    if effect.status.state == "RUNNING":
                        assert self.driver is not None and self.is_ready
                case RollBack():
                    assert effect.version in self.good and effect.version != effect.failed
                case Released():
                    assert self.driver is None and self.releasing
                    self.releasing = self.owned = False

    def check_start(self, effect: StartDriver) -> None:
        assert self.driver is None, "two drivers"
        assert not self.held
        assert self.owned and not self.releasing and self.boot < self.lease
        assert self.deployment is not None and self.deployment.wanted == "RUNNING"
        assert effect.version.number == self.deployment.version
        self.driver, self.driver_version = effect.run, effect.version.number
        self.is_ready = self.in_round = self.kill_asked = self.stop_asked = False

    @rule(steps=st.integers(1, 12), seconds=st.sampled_from([0.1, 1.0, 30.0, 130.0]))
    def all_goes_well(self, steps: int, seconds: float) -> None:
        """Random events alone hardly ever reach a second round."""
        if not self.owned:
            self.pipeline_is_taken()
        for _ in range(steps):
            self.boot += seconds
            self.wall_ms += round(seconds * 1000)
            self.lease_is_renewed(9.0)
            if self.driver is not None and self.kill_asked:
                self.driver_ends(completed=False)
            elif self.driver is not None and not self.is_ready:
                self.driver_gets_ready()
            elif self.in_round:
                self.round_ends()
            elif self.machine.run in self.preparing:
                self.preparing.discard(self.machine.run)
                self.on(Prepared(self.machine.run))
            else:
                self.on(Tick())
            self.wakes_are_in_the_future()

    @precondition(lambda self: self.in_round)
    @rule(times=st.integers(1, 6))
    def version_fails_again_and_again(self, times: int) -> None:
        for _ in range(times):
            if self.driver is not None:
                self.driver_ends(completed=False)
            self.boot += 310
            self.wall_ms += 310_000
            for _ in range(3):
                self.all_goes_well(1, 0.1)

    # -- what may happen ------------------------------------------------------------------------

    @rule(
        seconds=st.sampled_from([0.0, 0.01, 0.5, 1.0, 5.0, 40.0, 400.0, 4000.0]),
        jump_s=st.sampled_from([0, 0, 0, 0, 86_400, -86_400]),
        fraction=st.floats(0, 0.999),
    )
    def time_passes(self, seconds: float, jump_s: int, fraction: float) -> None:
        self.fraction = fraction
        self.boot += seconds
        self.wall_ms += round(seconds * 1000) + jump_s * 1000
        self.on(Tick())

    @rule(until_s=st.sampled_from([9.0, 9.0, 5_000.0]))
    def lease_is_renewed(self, until_s: float) -> None:
        self.lease = max(self.lease, self.boot + until_s)
        self.on(LeaseRenewed(self.lease))

    @precondition(lambda self: not self.owned)
    @rule()
    def pipeline_is_taken(self) -> None:
        self.owned, self.releasing = True, False
        self.lease = 0.0
        self.on(Taken(self.status))
        self.lease_is_renewed(9.0)

    @precondition(lambda self: self.owned and not self.releasing)
    @rule(really=st.sampled_from([False, False, True]))
    def pipeline_is_given_up(self, really: bool) -> None:
        if not really:
            return
        self.releasing = True
        self.on(GivenUp())

    @precondition(lambda self: self.owned)
    @rule(really=st.sampled_from([False, False, True]))
    def pipeline_is_lost(self, really: bool) -> None:
        if not really:
            return
        self.owned, self.lease = False, 0.0
        self.on(Lost())
        assert self.driver is None or self.kill_asked

    @rule(
        version=st.sampled_from([1, 1, 1, 2, 2, 3, 9]),
        schedule=st.sampled_from(SCHEDULES),
        wanted=st.sampled_from(["RUNNING", "RUNNING", "STOPPED"]),
        restarts=st.integers(0, 2),
        rollback=st.booleans(),
    )
    def deployment_changes(
        self, version: int, schedule: Schedule, wanted: Any, restarts: int, rollback: bool
    ) -> None:
        known = self.deployment or Deployment("views", 1, 1)
        self.deployment = replace(
            known,
            revision=known.revision + 1,
            version=version,
            schedule=schedule,
            wanted=wanted,
            restarts=restarts,
            auto_rollback=rollback,
        )
        self.on(Defined(self.deployment, self.version()))

    @rule(held=st.sampled_from([False, False, True]))
    def pipeline_is_held(self, held: bool) -> None:
        self.held = held
        self.on(Held(held))

    @precondition(lambda self: bool(self.preparing))
    @rule(data=st.data(), fine=st.booleans(), lasting=st.booleans())
    def preparation_ends(self, data: st.DataObject, fine: bool, lasting: bool) -> None:
        run = data.draw(st.sampled_from(sorted(self.preparing)))
        self.preparing.discard(run)
        self.on(Prepared(run) if fine else NotPrepared(run, "no such package", lasting=lasting))

    @precondition(lambda self: self.driver is not None and not self.is_ready)
    @rule()
    def driver_gets_ready(self) -> None:
        assert self.driver is not None
        self.is_ready = True
        self.on(DriverReady(self.driver))

    @precondition(lambda self: self.in_round)
    @rule()
    def round_ends(self) -> None:
        assert self.driver is not None
        self.in_round = False
        self.good.add(self.driver_version)
        self.on(RoundEnded(self.driver))

    @precondition(lambda self: self.driver is not None)
    @rule(completed=st.booleans())
    def driver_ends(self, completed: bool) -> None:
        assert self.driver is not None
        run, self.driver = self.driver, None
        completed = completed and self.in_round
        if completed:
            self.good.add(self.driver_version)
        self.is_ready = self.in_round = False
        before = self.machine.wake_at
        self.on(DriverEnded(run, completed, "" if completed else "no table"))
        assert before is None or before != self.machine.wake_at or before > self.boot

    # -- what always holds ----------------------------------------------------------------------

    @invariant()
    def script_that_ran_for_long_is_good(self) -> None:
        """It may be what is rolled back to."""
        if self.driver_version == 3 and self.in_round:
            self.good.add(3)

    @invariant()
    def wakes_are_in_the_future(self) -> None:
        assert self.machine.wake_at is None or self.machine.wake_at > self.boot

    @invariant()
    def driver_is_known(self) -> None:
        with_driver = self.machine.phase not in (Phase.IDLE, Phase.PREPARING)
        assert with_driver == (self.driver is not None)

    @invariant()
    def pauses_are_bounded(self) -> None:
        retry_at = self.machine._backoff.retry_at
        assert retry_at <= self.boot + LIMITS.backoff_max_s

    @invariant()
    def nothing_waits_for_ever(self) -> None:
        """Something is under way, or a time is known at which something is to be done, or nothing
        is wanted."""
        wanted = (
            self.owned
            and self.boot < self.lease
            and self.deployment is not None
            and self.deployment.wanted == "RUNNING"
        )
        ended = self.status is not None and self.status.state in ("FAILED", "COMPLETED")
        if wanted and not ended and not self.held and self.machine.phase is Phase.IDLE:
            assert self.machine.wake_at is not None

    def teardown(self) -> None:
        """A stop is followed by STOPPED, from wherever it comes."""
        if self.deployment is None:
            return
        if not self.owned or self.releasing:
            if self.driver is not None:
                self.driver_ends(completed=False)
            self.owned, self.releasing = True, False
            self.on(Taken(self.status))
        self.lease_is_renewed(5_000.0)
        self.deployment = replace(
            self.deployment, revision=self.deployment.revision + 1, wanted="STOPPED"
        )
        self.on(Defined(self.deployment, self.version()))
        if self.driver is not None:
            assert self.stop_asked
            self.boot += 100
            self.on(Tick())
            assert self.kill_asked
            self.driver_ends(completed=False)
        assert self.status is not None and self.status.state == "STOPPED"


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
