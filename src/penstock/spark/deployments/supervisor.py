"""Supervises one pipeline: decides when its driver is started, told to run a round, and stopped.

Pure: what happens goes in, what is to be done comes out, and `now` is an argument. After each event
`_settle` compares what is wanted with what is there, and takes the next step.

    IDLE -> PREPARING -> STARTING -> READY <-> ROUND
                             |         |         |
                             +---------+----> STOPPING -> KILLING -> IDLE

Every attempt to run has a number. Answers to an older attempt are ignored. Invariants:

- There is at most one driver: only IDLE leads to a new one, and a driver that was asked for leads
  back to IDLE only by `DriverEnded`.
- A driver is started only while the pipeline is owned and its lease has not ended; when the lease
  ends, the driver is killed.
- A status says RUNNING only in READY and ROUND.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from penstock.spark.deployments.backoff import Backoff
from penstock.spark.deployments.deployment_check import known_good, why_not_runnable
from penstock.spark.deployments.model import Deployment, Event, State, Status, Version
from penstock.spark.deployments.outside_trouble import Failure, judged
from penstock.spark.deployments.phase import WITH_DRIVER, Phase, state_of
from penstock.spark.deployments.round_times import RoundTimes
from penstock.spark.deployments.start_limit import StartLimit
from penstock.spark.deployments.supervisor_events import (
    BeginRound,
    Defined,
    DriverEnded,
    DriverReady,
    Effect,
    GivenUp,
    Happening,
    Held,
    Identity,
    LeaseRenewed,
    Limits,
    Lost,
    NotPrepared,
    Now,
    Prepare,
    Prepared,
    Record,
    Released,
    Report,
    RollBack,
    RoundEnded,
    StartDriver,
    StopDriver,
    Taken,
    Tick,
    recipe,
)

_MS: Final = 1_000
_NO_LEASE: Final = float("-inf")


class Supervisor:
    def __init__(
        self,
        name: str,
        identity: Identity,
        uniform: Callable[[], float],
        limits: Limits | None = None,
    ) -> None:
        self.name = name
        self.phase = Phase.IDLE
        self.owned = False
        self.run = 0
        self.wake_at: float | None = None
        """When a `Tick` is needed, in boot time."""
        self._identity = identity
        self._limits = limits or Limits()
        self._deployment: Deployment | None = None
        self._version: Version | None = None
        self._releasing = self._is_held = self._stops_streams = False
        self._lease_until = _NO_LEASE
        self._started_with: tuple[object, ...] = ()
        self._resets = 0
        """The `reset_revision` whose flows are reset before this driver starts."""
        self._phase_since = 0.0
        self._rounds = RoundTimes()
        self._backoff = Backoff(self._limits, uniform)
        self._start_limit = StartLimit(self._limits)
        self._killed_for: Failure | None = None
        """Why the driver is killed; None if it did not fail."""
        self._interrupted = False
        """Whether the last driver was killed because the lease ended."""
        self._held: tuple[int, State] | None = None
        """A revision that is not started again, and the state that says why."""
        self._good_version = 0
        self._reset_revision = 0
        self._uses_storage = False
        self._since: tuple[State, int] | None = None
        self._reported: Status | None = None
        self._was_stopped = True
        self._out: list[Effect] = []

    def handle(self, happening: Happening, now: Now) -> list[Effect]:
        """Returns what is to be done, in this order."""
        self._out = []
        match happening:
            case Defined():
                self._on_defined(happening, now)
            case Taken(previous):
                self._on_taken(previous, now)
            case GivenUp():
                self._releasing = True
            case Lost():
                self.owned = False
                self._lease_until = _NO_LEASE
            case LeaseRenewed(until):
                self._lease_until = max(self._lease_until, until)
            case Held(held, stops_streams):
                self._is_held, self._stops_streams = held, held and stops_streams
            case Tick():
                pass
            case _ if happening.run == self.run:
                self._on_attempt(happening, now)
        self._settle(now)
        self._report(now)
        self.wake_at = self._next_wake(now)
        return self._out

    # -- what happened --------------------------------------------------------------------------

    def _on_defined(self, happening: Defined, now: Now) -> None:
        before, after = self._deployment, happening.deployment
        if before is not None and after is not None and after.revision < before.revision:
            return  # Read late: a newer one is known.
        self._deployment, self._version = after, happening.version
        if after is None or (before is not None and after.revision == before.revision):
            return
        if before is None:
            self._backoff.worked()  # Failures of a deployment that is gone do not count.
            self._good_version = known_good(self._good_version, after)
        if before is None or recipe(before) != recipe(after) or before.wanted != after.wanted:
            # Someone changed it: what failed before may work now.
            self._backoff.retry_now()
        if before is not None and before.schedule != after.schedule:
            self._rounds.forget()
        if before is not None and before.wanted == "STOPPED" and after.wanted == "RUNNING":
            self._backoff.worked()
            self._rounds.forget()
        self._rounds.decide_first(after, now.wall_ms)

    def _on_taken(self, previous: Status | None, now: Now) -> None:
        self.owned, self._releasing = True, False
        self._lease_until = _NO_LEASE  # The worker tells the current one.
        self._reported = self._since = None
        self._uses_storage = False
        if previous is None:
            return
        self._good_version = previous.good_version
        self._reset_revision = max(self._reset_revision, previous.reset_revision)
        self._uses_storage = previous.storage_id == self._identity.storage_id
        deployment = self._deployment
        if deployment is not None:
            self._good_version = known_good(self._good_version, deployment)
        if deployment is not None and previous.revision == deployment.revision:
            self._backoff.resume(
                previous.version, previous.version_failures, previous.failures, previous.error
            )
            if previous.state in ("FAILED", "COMPLETED"):
                self._held = deployment.revision, previous.state
            self._rounds.resume(deployment, previous)
        if previous.worker and previous.worker != self._identity.worker:
            self._interrupted = False
            self._record(now, "moved", f"taken over from {previous.worker} on {previous.host}")

    def _on_attempt(
        self,
        happening: Prepared | NotPrepared | DriverReady | RoundEnded | DriverEnded,
        now: Now,
    ) -> None:
        match happening:
            case Prepared() if self.phase is Phase.PREPARING:
                self._start(now)
            case NotPrepared() if self.phase is Phase.PREPARING:
                self._enter(Phase.IDLE, now)
                outside, lasting = happening.outside, happening.lasting
                self._fail(judged(happening.error, outside=outside, lasting=lasting), now)
            case DriverReady() if self.phase is Phase.STARTING:
                self._on_ready(now)
            case RoundEnded() if self.phase in (Phase.ROUND, Phase.STOPPING):
                self._on_round_ended(now)
            case DriverEnded():
                self._on_ended(happening, now)

    def _on_ready(self, now: Now) -> None:
        self._enter(Phase.READY, now)
        self._start_limit.started()
        if self._is_script():
            self._reset_revision = max(self._reset_revision, self._resets)
        what = "restarted" if self._backoff.failures else "started"
        self._record(now, what, f"{what} on {self._identity.host}")
        self._report(now)

    def _on_round_ended(self, now: Now) -> None:
        # A project's flows begin again in its first round. If that fails, they do so again.
        self._reset_revision = max(self._reset_revision, self._resets)
        self._worked(now)
        if self.phase is Phase.ROUND:
            self._enter(Phase.READY, now)

    def _on_ended(self, happening: DriverEnded, now: Now) -> None:
        phase, lasted = self.phase, now.boot - self._phase_since
        if phase not in WITH_DRIVER:
            return
        self._enter(Phase.IDLE, now)
        if phase in (Phase.STOPPING, Phase.KILLING):
            failed, self._killed_for = self._killed_for, None
            if failed is not None:
                self._fail(failed, now)
            return
        if happening.lease_ended:
            # A starved driver may not have read in time that the lease was renewed.
            self._interrupted = True
            return
        if happening.completed and phase is Phase.ROUND:
            self._worked(now)
            if self._deployment is not None and self._deployment.schedule.continuous:
                self._held = self._deployment.revision, "COMPLETED"
                self._record(now, "completed", "the script returned")
            return
        if phase is Phase.ROUND and lasted >= self._limits.steady_s:
            self._backoff.failures = 0
        error = happening.error or "the driver ended without an error message"
        self._fail(judged(error, happening.cluster), now)

    def _worked(self, now: Now) -> None:
        """A round was completed, or a script has run for long enough."""
        self._backoff.worked()
        self._good_version = self._started_version()
        if self._deployment is not None:
            self._rounds.end(self._deployment, now.wall_ms)

    def _fail(self, failure: Failure, now: Now) -> None:
        version, outside = self._started_version(), failure.outside
        pause_s = self._backoff.fail(version, failure.error, now, outside=outside)
        deployment = self._deployment
        if deployment is None:
            return
        error = self._backoff.error
        # A good version that is newer was left by a person, who had a reason.
        can_go_back = deployment.auto_rollback and 0 < self._good_version < version
        why = f"; not rolled back from version {version}, because the cause may lie outside it"
        text = f"{error}; the next attempt is in {pause_s:.0f} s"
        self._record(now, "failed", text + why * (outside and can_go_back))
        if can_go_back and not outside and (failure.lasting or self._backoff.is_hopeless):
            self._out.append(RollBack(self.name, version, self._good_version, error))

    # -- what is to be done ---------------------------------------------------------------------

    def _settle(self, now: Now) -> None:
        """Takes steps until nothing is left to be done now."""
        if self.phase in WITH_DRIVER:
            self._settle_driver(now)
        elif self.phase is Phase.PREPARING and not self._goes_on():
            self.run += 1  # Its answer is ignored.
            self._enter(Phase.IDLE, now)
        if self.phase is Phase.IDLE:
            self._settle_idle(now)

    def _settle_idle(self, now: Now) -> None:
        if self._releasing:
            self._releasing = False
            self._report(now, "WAITING FOR A WORKER" if self._is_wanted() else None)
            self.owned = False
            self._out.append(Released())
            return
        deployment = self._deployment
        if not self._is_wanted() or deployment is None:
            stopped = deployment is not None and deployment.wanted == "STOPPED"
            if stopped and self.owned and not self._was_stopped:
                self._was_stopped = True
                self._record(now, "stopped", f"stopped on {self._identity.host}")
            return
        if self._is_held or not self._check(deployment, now) or now.boot < self._backoff.retry_at:
            return
        self._rounds.decide_first(deployment, now.wall_ms)
        if self._rounds.due(deployment, now.wall_ms) > now.wall_ms or not self._has_lease(now):
            return
        assert self._version is not None
        if self._interrupted:
            self._interrupted = False
            self._record(now, "interrupted", "the lease ended, so the driver was killed")
        self.run += 1
        self._started_with = recipe(deployment)
        self._enter(Phase.PREPARING, now)
        self._out.append(Prepare(self.run, deployment, self._version))

    def _check(self, deployment: Deployment, now: Now) -> bool:
        """Holds a deployment that cannot be run. Returns whether it can."""
        error = why_not_runnable(deployment, self._version)
        if error:
            self._held = deployment.revision, "FAILED"
            self._backoff.error = error
            self._record(now, "failed", error)
        return not error

    def _settle_driver(self, now: Now) -> None:
        if self.phase is not Phase.KILLING and not (self.owned and self._has_lease(now)):
            self._interrupted = True
            self._stop(now, at_once=True)
            return
        lasted = now.boot - self._phase_since
        match self.phase:
            case Phase.STARTING if not self._goes_on():
                self._stop(now, at_once=True)
            case Phase.STARTING if lasted >= self._start_limit.seconds(self._started_with):
                self._killed_for = self._start_limit.exceeded(self._started_with)
                self._stop(now, at_once=True)
            case Phase.READY | Phase.ROUND if not self._goes_on() or self._stops_streams:
                self._stop(now, at_once=False)
            case Phase.READY:
                rest_s = self._until_due(now)
                if rest_s <= 0 and not self._is_held:
                    self._rounds.begin(now.wall_ms)
                    self._enter(Phase.ROUND, now)
                    self._out.append(BeginRound(self.run))
                elif rest_s > self._limits.warm_s:
                    self._stop(now, at_once=False)
            case Phase.ROUND if lasted >= self._limits.steady_s and self._is_script():
                if self._backoff.failures or self._good_version != self._started_version():
                    self._worked(now)
            case Phase.STOPPING if lasted >= self._limits.stop_s and not self._is_only_held():
                self._stop(now, at_once=True)

    def _start(self, now: Now) -> None:
        deployment, version = self._deployment, self._version
        may_start = self._goes_on() and self._has_lease(now) and not self._is_held
        if not may_start or deployment is None or version is None:
            self._enter(Phase.IDLE, now)
            return
        resets = deployment.reset_flows and self._reset_revision < deployment.reset_revision
        self._resets = deployment.reset_revision if resets else 0
        self._uses_storage = self._uses_storage or not deployment.storage
        self._was_stopped = False
        self._enter(Phase.STARTING, now)
        # Reported first: from now on the tables are in this worker's folder.
        self._report(now)
        flows = tuple(deployment.reset_flows) if resets else ()
        self._out.append(StartDriver(self.run, deployment, version, flows))

    def _stop(self, now: Now, *, at_once: bool) -> None:
        self._enter(Phase.KILLING if at_once else Phase.STOPPING, now)
        self._out.append(StopDriver(self.run, at_once))

    def _enter(self, phase: Phase, now: Now) -> None:
        self.phase, self._phase_since = phase, now.boot

    # -- what is so -----------------------------------------------------------------------------

    def _is_wanted(self) -> bool:
        deployment = self._deployment
        if deployment is None or not self.owned or self._releasing:
            return False
        held = self._held is not None and self._held[0] == deployment.revision
        return deployment.wanted == "RUNNING" and not held

    def _goes_on(self) -> bool:
        """Whether what was begun is still what is wanted."""
        deployment = self._deployment
        return (
            self._is_wanted()
            and deployment is not None
            and self._started_with == recipe(deployment)
        )

    def _is_only_held(self) -> bool:
        """Whether a driver stops only for a swap: then its round has the time that it needs."""
        return self._stops_streams and self._goes_on()

    def _has_lease(self, now: Now) -> bool:
        return now.boot < self._lease_until

    def _is_script(self) -> bool:
        return self._version is not None and self._version.kind == "script"

    def _started_version(self) -> int:
        version = self._started_with[0] if self._started_with else 0
        assert isinstance(version, int)
        return version

    def _current_version(self, deployment: Deployment) -> int:
        """Returns the version of the driver, or the one of the next driver."""
        return deployment.version if self.phase is Phase.IDLE else self._started_version()

    # -- time -----------------------------------------------------------------------------------

    def _next_wake(self, now: Now) -> float | None:
        limits = self._limits
        found: list[float] = []
        if self.phase in WITH_DRIVER and self.phase is not Phase.KILLING:
            found.append(self._lease_until)
        match self.phase:
            case Phase.STARTING:
                found.append(self._phase_since + self._start_limit.seconds(self._started_with))
            case Phase.STOPPING:
                found.append(self._phase_since + limits.stop_s)
            case Phase.ROUND if self._is_script():
                found.append(self._phase_since + limits.steady_s)
            case Phase.READY:
                found.append(now.boot + min(self._until_due(now), limits.look_s))
            case Phase.IDLE if self._is_wanted():
                found.append(self._backoff.retry_at)
                found.append(now.boot + min(self._until_due(now), limits.look_s))
        later = [at for at in found if at > now.boot]
        return min(later) if later else None

    def _until_due(self, now: Now) -> float:
        assert self._deployment is not None
        return (self._rounds.due(self._deployment, now.wall_ms) - now.wall_ms) / _MS

    # -- reports --------------------------------------------------------------------------------

    def state(self, now: Now) -> State:
        deployment = self._deployment
        continuous = deployment is not None and deployment.schedule.continuous
        if (found := state_of(self.phase, continuous=continuous)) is not None:
            return found
        if deployment is None or deployment.wanted == "STOPPED":
            return "STOPPED"
        if self._held is not None and self._held[0] == deployment.revision:
            return self._held[1]
        if now.boot < self._backoff.retry_at:
            return "BACKING OFF"
        if self._rounds.is_decided and self._until_due(now) > 0:
            return "WAITING FOR ITS TIME"
        return "WAITING FOR A WORKER"

    def status(self, now: Now, state: State | None = None) -> Status | None:
        """Returns what is reported, without the view of the run; None if there is no deployment."""
        deployment = self._deployment
        if deployment is None:
            return None
        state = state or self.state(now)
        if self._since is None or self._since[0] != state:
            self._since = state, now.wall_ms
        next_ms = 0
        if state == "BACKING OFF":
            next_ms = self._backoff.retry_ms
        elif state == "WAITING FOR ITS TIME":
            next_ms = self._rounds.due_ms
        return Status(
            name=self.name,
            state=state,
            revision=deployment.revision,
            version=self._current_version(deployment),
            worker=self._identity.worker,
            host=self._identity.host,
            storage_id=self._identity.storage_id if self._uses_storage else "",
            since_ms=self._since[1],
            updated_ms=now.wall_ms,
            failures=self._backoff.failures,
            version_failures=self._backoff.version_failures(self._current_version(deployment)),
            next_ms=next_ms,
            due_ms=self._rounds.reported(deployment),
            error=self._backoff.error,
            good_version=self._good_version,
            reset_revision=self._reset_revision,
            generation=deployment.generation,
            generations=deployment.generations,
        )

    def reports(self, now: Now) -> bool:
        """Whether this worker may report on it: otherwise another one may."""
        return self.owned and self._has_lease(now)

    def _report(self, now: Now, state: State | None = None) -> None:
        if not self.reports(now):
            return
        status = self.status(now, state)
        if status is None:
            return
        known = self._reported
        if known is None or replace(status, updated_ms=known.updated_ms) != known:
            self._reported = status
            self._out.append(Report(status))

    def _record(self, now: Now, what: str, text: str) -> None:
        deployment = self._deployment
        version = 0 if deployment is None else self._current_version(deployment)
        event = Event(self.name, now.wall_ms, what, text, version, self._identity.worker)
        self._out.append(Record(event))
