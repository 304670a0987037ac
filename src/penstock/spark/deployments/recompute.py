"""Computes the tables of a pipeline again, and puts them in the place of the old ones. Pure.

A recompute is a second driver of the same pipeline, beside the one that goes on updating the
tables that are served. Both belong to the same worker and end with the same lease. The second
driver, the *recompute driver*, has the new code and a storage of its own (`generations`): its own
tables, checkpoints and metastore. It begins at the `startingOffsets` of the sources and runs one
round after the other. A round reads all that is in the topics when it begins.

    COMPUTING --- a round was short enough ---> CAUGHT UP --- wanted ---> DRAINING
        ^                                                                    |
        |                                            the other driver is between two rounds
        |                                                                    v
        +------ the last round failed, or took too long ----------------- LAST ROUND
                                                                             |
                                        a round that began after that has ended
                                                                             v
                          deployment changed in one transaction <--------- SWAPPING

- From DRAINING on, the driver of the served tables begins no round (it is *held*). A round that
  runs is not interrupted, because a materialized view may be empty in the middle of it. If its
  streams run between rounds, it ends after the round.
- LAST ROUND: a round of the recompute driver that begins while the other one rests reads at least
  what that one has read. So the new tables have no less than the old ones. The offsets in the
  checkpoints are compared as well, where they can be read.
- SWAPPING: both drivers rest. The record of the deployment now names the new generation and the new
  version. Both drivers end, and a driver of the new generation starts when nothing of the recompute
  driver runs any more: a storage never has two drivers. It continues with the checkpoints of the
  recompute driver, so nothing is read twice and nothing is left out.

Nothing of this is stored but the record of the deployment. A worker that takes the pipeline over
begins in COMPUTING, with the checkpoints that are there, and comes to the same end. A swap that was
decided by a worker that has lost its lease is harmless: the new tables may then lag by a round, and
continue from their own checkpoints.

CAUGHT UP means that a swap holds up the updates only shortly: the last round took at most
`caught_up_s`, or at least half as long as the one before, so further rounds would not be much
shorter. `docs/PIPELINES.md` says what a crash does at each point.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from penstock.spark.deployments.model import Deployment, Recompute
from penstock.spark.deployments.phase import Phase

QUIET: Final = frozenset({Phase.IDLE, Phase.PREPARING, Phase.STARTING, Phase.READY})
"""The phases of a driver in which it writes nothing to tables and checkpoints."""


class Stage(Enum):
    NONE = "none"
    COMPUTING = "computing"
    CAUGHT_UP = "caught up"
    DRAINING = "waiting for the running round"
    LAST_ROUND = "last round"
    SWAPPING = "swapping"


@dataclass(frozen=True, slots=True)
class RecomputeLimits:
    caught_up_s: float = 30.0
    """A round this short shows that the new tables have caught up."""
    steady_ratio: float = 0.5
    """So does one that takes at least this part of the time of the round before."""
    last_round_s: float = 120.0
    """How long the served tables may be held up by a swap, at least."""
    last_round_ratio: float = 4.0
    """The same, as a multiple of the last round."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a deployment and its two drivers."""

    deployment: Deployment | None
    owned: bool
    """Whether this worker owns the pipeline and has a lease."""
    is_quiet: bool
    """Whether the driver of the served tables is between two rounds, or there is none."""
    driver_generation: int | None
    """The generation of the recompute driver; None if nothing of it runs."""
    begun: int = 0
    """How many rounds the recompute driver has begun."""
    ended: int = 0
    """The number of the last of them that was completed."""
    round_s: float = 0.0
    """How long that one took."""
    failures: int = 0
    """How often the recompute driver has failed since a round was last completed."""


@dataclass(frozen=True, slots=True)
class Step:
    """What follows from it."""

    hold: bool = False
    """Whether the driver of the served tables begins no round."""
    hold_recompute: bool = False
    swap: bool = False
    """Whether the deployment is to be changed now."""
    events: list[tuple[str, str]] = field(default_factory=list)
    """Entries for the history: one word, and a sentence."""


class Recomputation:
    """Decides about one pipeline. `look` is called whenever something may have changed."""

    def __init__(self, limits: RecomputeLimits | None = None) -> None:
        self.stage = Stage.NONE
        self._limits = limits or RecomputeLimits()
        self._generation = 0
        self._ended = 0
        self._round_s = 0.0
        self._rounds = 0
        self._last_after = 0
        """The number of rounds that had begun when the other driver came to rest."""
        self._since = 0.0
        self._failures = 0
        self._events: list[tuple[str, str]] = []

    @property
    def has_caught_up(self) -> bool:
        return self.stage not in (Stage.NONE, Stage.COMPUTING)

    def look(self, seen: Seen, now: float) -> Step:
        """Returns what is to be done. `now` is boot time."""
        self._events = []
        deployment = seen.deployment
        recompute = None if deployment is None else deployment.recompute
        if deployment is None or recompute is None or not seen.owned:
            self.stage = Stage.NONE
            is_shared = deployment is not None and seen.driver_generation == deployment.generation
            return Step(hold=is_shared, hold_recompute=is_shared)
        if self.stage is Stage.NONE or recompute.generation != self._generation:
            self._begin(recompute, seen)
        self._note_round(seen, recompute, deployment.name)
        if seen.failures > self._failures:
            self._on_failure()
        self._failures = seen.failures
        self._advance(deployment, recompute, seen, now)
        return Step(
            hold=self.stage in (Stage.DRAINING, Stage.LAST_ROUND, Stage.SWAPPING),
            hold_recompute=self.stage is Stage.SWAPPING,
            swap=self.stage is Stage.SWAPPING,
            events=self._events,
        )

    def put_off(self, reason: str) -> list[tuple[str, str]]:
        """The swap cannot be made now. Returns the entries for the history."""
        if self.stage in (Stage.DRAINING, Stage.LAST_ROUND, Stage.SWAPPING):
            self.stage = Stage.COMPUTING
            return [("swap-put-off", f"{reason}; the old tables remain in use")]
        return []

    def _begin(self, recompute: Recompute, seen: Seen) -> None:
        self.stage = Stage.COMPUTING
        self._generation = recompute.generation
        self._ended, self._failures = seen.begun, seen.failures
        self._rounds, self._round_s = 0, 0.0

    def _note_round(self, seen: Seen, recompute: Recompute, name: str) -> None:
        if seen.ended <= self._ended:
            return
        before, self._round_s = self._round_s, seen.round_s
        self._ended = seen.ended
        self._rounds += 1
        if self.stage is not Stage.COMPUTING:
            return
        limits = self._limits
        is_steady = self._rounds > 1 and seen.round_s >= limits.steady_ratio * before
        if seen.round_s <= limits.caught_up_s or is_steady:
            self.stage = Stage.CAUGHT_UP
            rest = f": to put them in use: penstock pipeline swap {name}"
            rest = "" if self._is_wanted(recompute) else rest
            text = f"the new tables have caught up after {self._rounds} rounds{rest}"
            self._events.append(("caught-up", text))

    def _on_failure(self) -> None:
        self._events += self.put_off("the driver of the new tables failed")
        self.stage = Stage.COMPUTING

    def _advance(
        self, deployment: Deployment, recompute: Recompute, seen: Seen, now: float
    ) -> None:
        is_running = deployment.wanted == "RUNNING"
        if self.stage is Stage.CAUGHT_UP and is_running and self._is_wanted(recompute):
            self.stage = Stage.DRAINING
        if self.stage in (Stage.DRAINING, Stage.LAST_ROUND, Stage.SWAPPING) and not is_running:
            self._events += self.put_off("the pipeline was stopped")
        if self.stage in (Stage.LAST_ROUND, Stage.SWAPPING) and not seen.is_quiet:
            self.stage = Stage.DRAINING
        if self.stage is Stage.DRAINING and seen.is_quiet:
            self.stage = Stage.LAST_ROUND
            self._last_after, self._since = seen.begun, now
        if self.stage is Stage.LAST_ROUND and seen.ended > self._last_after:
            self.stage = Stage.SWAPPING
        longest_s = max(self._limits.last_round_s, self._limits.last_round_ratio * self._round_s)
        is_late = now - self._since > longest_s
        if self.stage in (Stage.LAST_ROUND, Stage.SWAPPING) and is_late:
            self._events += self.put_off(f"it was not done within {longest_s:.0f} s")

    @staticmethod
    def _is_wanted(recompute: Recompute) -> bool:
        return recompute.asked or recompute.swap == "when-caught-up"
