"""Random events around a recompute: what never happens, whatever happens in whatever order.

The world has a topic, generations with the offset up to which each has read, two drivers, and
workers that crash. A transaction may be committed long after it was decided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.spark.deployments.generations import (
    RecomputeOrder,
    begun,
    cancelled,
    dead_generations,
    expired,
    has_sound_generations,
    live_generations,
    swap_asked,
    swapped,
    swapped_back,
)
from penstock.spark.deployments.model import Deployment
from penstock.spark.deployments.recompute import Recomputation, Seen, Stage, Step
from penstock.spark.pipelines.errors import PipelineError

KEEP_MS = 60_000


@dataclass
class Driver:
    generation: int
    target: int | None = None
    """The end of the topic when its round began; None between two rounds."""


class Walk(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.deployment = Deployment("views", 1, 1)
        self.end = 0
        self.read: dict[int, int] = {0: 0}
        self.main: Driver | None = None
        self.second: Driver | None = None
        self.dead: set[int] = set()
        self.swaps = 0
        self.pending: list[tuple[Recomputation, int]] = []
        """Transactions that were begun, by which worker, for which generation."""
        self.restart_worker()

    # -- the worker -----------------------------------------------------------------------------

    def restart_worker(self) -> None:
        self.machine = Recomputation()
        self.main = self.second = None
        self.begun = self.ended = self.failures = 0
        self.round_s = 0.0
        self.step = Step()
        self.look()

    def look(self) -> None:
        main = self.main
        seen = Seen(
            self.deployment,
            owned=True,
            is_quiet=main is None or main.target is None,
            driver_generation=None if self.second is None else self.second.generation,
            begun=self.begun,
            ended=self.ended,
            round_s=self.round_s,
            failures=self.failures,
        )
        self.step = self.machine.look(seen, self.now)

    def change(self, change: Callable[[Deployment], Deployment]) -> None:
        try:
            new = change(self.deployment)
        except PipelineError:
            return
        if new != self.deployment:
            self.deployment = replace(new, revision=self.deployment.revision + 1)
        assert has_sound_generations(self.deployment)
        self.look()

    # -- drivers --------------------------------------------------------------------------------

    @rule()
    def served_tables_go_on(self) -> None:
        """Their driver starts, begins a round, or completes it."""
        wanted = self.deployment.wanted == "RUNNING"
        if self.main is None:
            if wanted and not self.step.hold:
                self.main = Driver(self.deployment.generation)
                self.check_drivers()
        elif self.main.target is not None:
            self.read[self.main.generation] = self.main.target
            self.main.target = None
        elif self.main.generation != self.deployment.generation or not wanted:
            self.main = None
        elif not self.step.hold:
            self.main.target = self.end
        self.look()

    @rule(seconds=st.sampled_from([0.5, 20.0, 50.0, 500.0]))
    def recompute_goes_on(self, seconds: float) -> None:
        recompute = self.deployment.recompute
        wanted = recompute is not None and self.deployment.wanted == "RUNNING"
        if self.second is None:
            if recompute is not None and wanted and not self.step.hold_recompute:
                self.second = Driver(recompute.generation)
                self.read.setdefault(recompute.generation, 0)
                self.check_drivers()
        elif self.second.target is not None:
            self.now += seconds
            self.read[self.second.generation] = self.second.target
            self.second.target = None
            self.ended, self.round_s, self.failures = self.begun, seconds, 0
        elif recompute is None or recompute.generation != self.second.generation or not wanted:
            self.second = None
        elif not self.step.hold_recompute:
            self.second.target = self.end
            self.begun += 1
        self.look()

    def check_drivers(self) -> None:
        main, second = self.main, self.second
        if main is not None and second is not None:
            assert main.generation != second.generation, "two drivers in one storage"
        for driver in (main, second):
            assert driver is None or driver.generation not in self.dead

    @precondition(lambda self: self.step.swap)
    @rule()
    def swap_is_begun(self) -> None:
        recompute = self.deployment.recompute
        assert recompute is not None
        assert self.main is None or self.main.target is None
        assert self.second is None or self.second.target is None
        served = self.read[self.deployment.generation]
        assert self.read[recompute.generation] >= served, "the new tables have less"
        self.pending.append((self.machine, recompute.generation))

    @precondition(lambda self: bool(self.pending))
    @rule()
    def swap_is_committed(self) -> None:
        machine, generation = self.pending.pop(0)
        if machine is self.machine and machine.stage is not Stage.SWAPPING:
            return  # The worker looks again before it commits.
        before = self.deployment
        self.change(lambda old: swapped(old, generation, round(self.now * 1000)))
        self.swaps += self.deployment.generation != before.generation

    # -- people ---------------------------------------------------------------------------------

    @rule(swap=st.sampled_from(["manual", "when-caught-up"]))
    def recompute_is_begun(self, swap: Any) -> None:
        order = RecomputeOrder(("copied",), swap, KEEP_MS)
        self.change(lambda old: begun(old, old.version + 1, order, round(self.now * 1000)))

    @rule(really=st.sampled_from([False, False, True]))
    def recompute_is_cancelled(self, really: bool) -> None:
        if really:
            self.change(cancelled)

    @rule()
    def swap_is_asked_for(self) -> None:
        self.change(swap_asked)

    @rule(really=st.booleans())
    def tables_are_swapped_back(self, really: bool) -> None:
        if really:
            self.change(lambda old: swapped_back(old, round(self.now * 1000)))

    @rule(wanted=st.sampled_from(["RUNNING", "RUNNING", "STOPPED"]))
    def pipeline_is_started_or_stopped(self, wanted: Any) -> None:
        self.change(lambda old: replace(old, wanted=wanted))

    # -- the rest of the world ------------------------------------------------------------------

    @rule(count=st.integers(1, 100))
    def records_arrive(self, count: int) -> None:
        self.end += count

    @rule(seconds=st.sampled_from([1.0, 61.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.change(lambda old: expired(old, round(self.now * 1000)))
        self.look()

    @rule(which=st.sampled_from(["main", "second", "worker"]))
    def something_is_killed(self, which: str) -> None:
        if which == "worker":
            self.restart_worker()
        elif which == "main":
            self.main = None
        elif self.second is not None:
            self.second = None
            self.failures += 1
        self.look()

    @rule()
    def dead_generations_are_deleted(self) -> None:
        busy = {each.generation for each in (self.main, self.second) if each is not None}
        for number in dead_generations(self.deployment, list(self.read)):
            if number not in busy:
                self.dead.add(number)

    # -- what always holds ----------------------------------------------------------------------

    @invariant()
    def what_is_deleted_is_not_needed(self) -> None:
        needed = {self.deployment.generation}
        for other in (self.deployment.recompute, self.deployment.kept):
            if other is not None:
                needed.add(other.generation)
        assert not needed & self.dead
        assert live_generations(self.deployment) == needed

    @invariant()
    def drivers_have_storages_of_their_own(self) -> None:
        self.check_drivers()

    def teardown(self) -> None:
        """If all goes well, a recompute ends with a swap, and the tables have everything."""
        self.pending.clear()
        self.change(lambda old: replace(old, wanted="RUNNING"))
        self.change(swap_asked)
        for _ in range(60):
            self.served_tables_go_on()
            self.recompute_goes_on(0.5)
            if self.step.swap and not self.pending:
                self.swap_is_begun()
                self.swap_is_committed()
        assert self.deployment.recompute is None
        assert self.second is None
        assert self.read[self.deployment.generation] == self.end


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
