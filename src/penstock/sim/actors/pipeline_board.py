"""The deployed pipelines of a run and their drivers, as they really are.

A driver is a process of its own. It runs from its start until it is stopped or killed, or until the
deadline that its worker told it last. So it goes on while its worker is frozen, cut off or dead.
Times are virtual seconds.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.sim.history import OK, DriverRun, Entry


@dataclass(slots=True)
class Driver:
    pipeline: str
    worker: str
    begun_s: float
    deadline_s: float
    stopped_s: float = math.inf

    @property
    def ends_s(self) -> float:
        """When it ends, as far as is known. Its watchdog kills it at its deadline."""
        return min(self.stopped_s, self.deadline_s)

    def runs(self, now_s: float) -> bool:
        return now_s < self.ends_s

    def stop(self, at_s: float) -> None:
        self.stopped_s = min(self.stopped_s, at_s)


@dataclass(slots=True)
class PipelineBoard:
    now_s: Callable[[], float]
    existing: frozenset[str] = frozenset()
    """The deployments that exist. Workers learn of changes later."""
    drivers: list[Driver] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when workers must end."""

    def start(self, pipeline: str, worker: str, deadline_s: float) -> Driver:
        driver = Driver(pipeline, worker, self.now_s(), deadline_s)
        self.drivers.append(driver)
        return driver

    def running(self, pipeline: str) -> list[Driver]:
        now_s = self.now_s()
        return [each for each in self.drivers if each.pipeline == pipeline and each.runs(now_s)]

    def entries(self) -> list[Entry]:
        """Returns the history of all drivers."""
        now_s = self.now_s()
        return [
            DriverRun(
                process=each.worker,
                status=OK,
                begun_ms=each.begun_s * 1000,
                ended_ms=min(each.ends_s, now_s) * 1000,
                pipeline=each.pipeline,
                lease_ms=each.deadline_s * 1000,
            )
            for each in self.drivers
        ]
