"""How far the backfills and the recompute of a pipeline are, and how long they made no progress.

The worker looks at them every second and at each scrape. Progress is what lasts: records that a
backfill has passed in its checkpoint, rows that the recompute driver has read in batches that were
completed, views that it has computed for the first time since its last round, and rounds that it
has completed. Time in which nothing is to run does not count: a stopped pipeline, and the pause
until the next scheduled round. Everything else counts: a driver that hangs, one that fails again
and again, and a recompute that waits for memory.

A worker that takes a pipeline over begins to measure at zero. Pure: `now` is a monotonic time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from penstock.spark.deployments.backfill_plan import OPEN_STATES
from penstock.spark.deployments.backfill_requests import listed
from penstock.spark.deployments.model import Deployment, State, Status

RESTING: Final[frozenset[State]] = frozenset(
    {"WAITING FOR ITS TIME", "STOPPING", "STOPPED", "COMPLETED"}
)
"""The states of a pipeline in which it is not expected to make progress."""


@dataclass(frozen=True, slots=True)
class BackfillSample:
    """A backfill that was requested and has not ended."""

    flow: str
    done: int
    left: int
    idle_s: float
    failures: int


@dataclass(frozen=True, slots=True)
class RecomputeSample:
    rows: int
    """Rows that its drivers have read on this worker."""
    left: int | None
    """Records that it has not read; None if unknown."""
    idle_s: float
    failures: int


class IdleTime:
    def __init__(self, now: float) -> None:
        self.seconds = 0.0
        self._seen = now

    def look(self, now: float, *, progressed: bool, counts: bool) -> None:
        """`counts`: whether progress was to be expected since the last call."""
        if progressed:
            self.seconds = 0.0
        elif counts:
            self.seconds += max(0.0, now - self._seen)
        self._seen = now


class _Watched:
    """A backfill."""

    def __init__(self, done: int, failures: int, now: float) -> None:
        self.done = done
        self.failures = failures
        """How often the pipeline had failed when the backfill last made progress."""
        self.idle = IdleTime(now)


class BackfillWatch:
    """Watches the backfills of a pipeline."""

    def __init__(self) -> None:
        self._watched: dict[int, _Watched] = {}
        """By the id of the backfill."""

    def look(
        self, deployment: Deployment, status: Status | None, failures: int, now: float
    ) -> list[BackfillSample]:
        """Returns how far they are. `failures` counts the failed attempts to run the pipeline."""
        counts = status is None or status.state not in RESTING
        before, self._watched = self._watched, {}
        samples = []
        for each in listed(deployment, status):
            if each["state"] not in OPEN_STATES:
                continue
            flow, done, total = str(each["flow"]), int(each["done"]), int(each["total"])
            mine = before.get(each["id"]) or _Watched(done, failures, now)
            progressed = done > mine.done
            if progressed:
                mine.done, mine.failures = done, failures
            mine.idle.look(now, progressed=progressed, counts=counts)
            self._watched[each["id"]] = mine
            left = max(0, total - done)
            samples.append(
                BackfillSample(flow, done, left, mine.idle.seconds, failures - mine.failures)
            )
        return samples


@dataclass(frozen=True, slots=True)
class RecomputeSeen:
    """What is known of a recompute and its driver."""

    generation: int
    state: str
    """The state of its driver, or WAITING FOR MEMORY."""
    rounds: int
    """The number of the last round that was completed."""
    rows: int
    """Rows that were read on this worker, also by drivers of earlier recomputes."""
    computed: Collection[str]
    """The flows that were completed in the round that runs."""
    left: int | None
    failures: int


class RecomputeWatch:
    """Watches the recompute of a pipeline."""

    def __init__(self) -> None:
        self._generation = 0
        self._first_row = 0
        self._rounds = 0
        self._rows = 0
        self._computed: set[str] = set()
        """The flows that were completed since a round was completed."""
        self._idle = IdleTime(0.0)

    def look(self, seen: RecomputeSeen | None, now: float) -> RecomputeSample | None:
        if seen is None:
            self._generation = 0
            return None
        if seen.generation != self._generation:
            self._generation, self._idle = seen.generation, IdleTime(now)
            self._first_row = self._rows = seen.rows
            self._rounds, self._computed = seen.rounds, set()
        has_ended_round = seen.rounds != self._rounds
        progressed = has_ended_round or seen.rows > self._rows
        if has_ended_round:
            self._computed = set()
        elif not self._computed.issuperset(seen.computed):
            self._computed.update(seen.computed)
            progressed = True
        self._rounds, self._rows = seen.rounds, seen.rows
        self._idle.look(now, progressed=progressed, counts=seen.state not in RESTING)
        rows = seen.rows - self._first_row
        return RecomputeSample(rows, seen.left, self._idle.seconds, seen.failures)
