"""A supervisor with a clock that tests set, and what it has decided."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from penstock.spark.deployments.model import Deployment, Schedule, Status, Version
from penstock.spark.deployments.supervisor import Supervisor
from penstock.spark.deployments.supervisor_events import (
    Defined,
    DriverReady,
    Effect,
    Happening,
    Identity,
    LeaseRenewed,
    Now,
    Prepare,
    Prepared,
    Report,
    RoundEnded,
    StartDriver,
    Taken,
    Tick,
)

T = TypeVar("T")
ME = Identity("worker-1", "here", "folder-1")
CONTINUOUS = Schedule(continuous=True, interval_s=1.0)
NOON_MS = 1_800_014_400_000


class Supervised:
    def __init__(self, uniform: float = 0.0) -> None:
        self.machine = Supervisor("views", ME, lambda: uniform)
        self.boot = 1_000.0
        self.wall_ms = NOON_MS
        self.deployment = Deployment("views", 1, 1, schedule=CONTINUOUS)
        self.kind = "project"
        self.effects: list[Effect] = []
        self.status: Status | None = None

    @property
    def now(self) -> Now:
        return Now(self.boot, self.wall_ms)

    def on(self, happening: Happening) -> list[Effect]:
        """Passes it on, and returns the effects of it alone."""
        found = self.machine.handle(happening, self.now)
        self.effects += found
        for effect in found:
            if isinstance(effect, Report):
                self.status = effect.status
        return found

    def wait(self, seconds: float, *, lease: bool = True) -> list[Effect]:
        """Lets time pass. The lease is renewed on the way, unless it is not."""
        self.boot += seconds
        self.wall_ms += round(seconds * 1000)
        found = self.on(LeaseRenewed(self.boot + 9)) if lease else []
        return found + self.on(Tick())

    def define(self, **changes: Any) -> list[Effect]:
        """Makes a new revision of the deployment."""
        self.deployment = replace(self.deployment, revision=self.deployment.revision + 1, **changes)
        return self.tell_definition()

    def tell_definition(self) -> list[Effect]:
        kind: Any = self.kind
        version = Version("views", self.deployment.version, kind, "spark-pipeline.yml", "a" * 64, 1)
        return self.on(Defined(self.deployment, version))

    def own(self, previous: Status | None = None) -> list[Effect]:
        """Gives the pipeline to this worker, with a lease."""
        return [
            *self.tell_definition(),
            *self.on(Taken(previous)),
            *self.on(LeaseRenewed(self.boot + 9)),
        ]

    def ready(self) -> list[Effect]:
        """Answers a Prepare and a StartDriver."""
        self.on(Prepared(self.machine.run))
        return self.on(DriverReady(self.machine.run))

    def running(self) -> None:
        """Brings it into its first round."""
        self.own()
        self.ready()
        assert self.state == "RUNNING"

    def complete_round(self) -> list[Effect]:
        return self.on(RoundEnded(self.machine.run))

    @property
    def state(self) -> str:
        assert self.status is not None
        return self.status.state

    def count(self, kind: type[Effect]) -> int:
        return sum(isinstance(effect, kind) for effect in self.effects)


def only(kind: type[T], effects: list[Effect]) -> T:
    """Returns the one effect of this kind."""
    (found,) = [effect for effect in effects if isinstance(effect, kind)]
    return found


def kinds(effects: list[Effect]) -> list[str]:
    """Returns the names of effects, without reports and records."""
    names = [type(effect).__name__ for effect in effects]
    return [name for name in names if name not in ("Report", "Record")]


def whats(effects: list[Effect]) -> list[str]:
    """Returns what was recorded in the history."""
    return [effect.event.what for effect in effects if type(effect).__name__ == "Record"]  # type: ignore[union-attr]


__all__ = [
    "CONTINUOUS", "ME", "NOON_MS", "Prepare", "StartDriver", "Supervised", "kinds", "only", "whats",
]  # fmt: skip
