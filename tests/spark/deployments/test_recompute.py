"""Tests when new tables take the place of the old ones: what is decided, step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.spark.deployments.generations import (
    RecomputeOrder,
    begun,
    cancelled,
    swap_asked,
    swapped,
)
from penstock.spark.deployments.model import Deployment
from penstock.spark.deployments.recompute import (
    Recomputation,
    RecomputeLimits,
    Seen,
    Stage,
    Step,
)

AT_MS = 1_794_976_340_000
LIMITS = RecomputeLimits()


class Looked:
    """A recompute whose drivers the test moves."""

    def __init__(self, swap: Any = "when-caught-up") -> None:
        self.machine = Recomputation()
        order = RecomputeOrder(("copied",), swap, 1000)
        self.deployment = begun(Deployment("views", 1, 1), 2, order, AT_MS)
        assert self.deployment.recompute is not None
        generation = self.deployment.recompute.generation
        self.seen = Seen(self.deployment, True, False, generation)
        self.now = 100.0
        self.events: list[str] = []

    def look(self, **changes: Any) -> Step:
        self.seen = replace(self.seen, deployment=self.deployment, **changes)
        step = self.machine.look(self.seen, self.now)
        self.events += [what for what, _ in step.events]
        return step

    def round(self, seconds: float) -> Step:
        """Lets the recompute driver begin and complete a round."""
        number = self.seen.begun + 1
        self.look(begun=number)
        self.now += seconds
        return self.look(ended=number, round_s=seconds)


def test_rounds_that_get_shorter_have_not_caught_up() -> None:
    looked = Looked()
    assert looked.look() == Step()
    for seconds in (3600.0, 900.0, 100.0, 40.0):
        assert looked.round(seconds) == Step()
        assert looked.machine.stage is Stage.COMPUTING
    assert looked.round(20.0).hold, "a short round shows that little is left"
    assert looked.events == ["caught-up"]


def test_the_command_for_the_swap_names_the_pipeline() -> None:
    looked = Looked("manual")
    looked.look()
    looked.look(begun=1)
    step = looked.look(ended=1, round_s=1.0)
    ((what, text),) = step.events
    assert what == "caught-up"
    assert text.endswith(": to put them in use: penstock pipeline swap views")


def test_rounds_that_do_not_get_shorter_have_caught_up() -> None:
    """A pipeline whose rounds are long would otherwise never be swapped."""
    looked = Looked()
    looked.look()
    looked.round(1000.0)
    assert looked.machine.stage is Stage.COMPUTING
    looked.round(600.0)
    assert looked.machine.has_caught_up


def test_the_last_round_begins_after_the_other_driver_rests() -> None:
    looked = Looked()
    looked.look()
    looked.round(1.0)
    looked.look(begun=2)
    step = looked.look(is_quiet=True)
    assert (step.hold, step.swap, looked.machine.stage) == (True, False, Stage.LAST_ROUND)
    step = looked.look(ended=2, round_s=1.0)
    assert not step.swap, "this round began before the other driver came to rest"
    step = looked.round(1.0)
    assert step == Step(hold=True, hold_recompute=True, swap=True)
    assert looked.look() == step, "until the deployment is changed"


def test_a_person_says_when_to_swap() -> None:
    looked = Looked("manual")
    looked.look(is_quiet=True)
    for _ in range(5):
        assert looked.round(1.0).hold is False
    assert looked.machine.stage is Stage.CAUGHT_UP
    looked.deployment = swap_asked(looked.deployment)
    assert looked.look().hold
    assert looked.round(1.0).swap


def test_after_the_swap_no_driver_starts_while_the_other_is_in_its_storage() -> None:
    looked = Looked()
    looked.look(is_quiet=True)
    looked.round(1.0)
    assert looked.round(1.0).swap
    assert looked.deployment.recompute is not None
    generation = looked.deployment.recompute.generation
    looked.deployment = swapped(looked.deployment, generation, AT_MS)
    assert looked.look().hold, "the recompute driver still runs"
    assert looked.look(driver_generation=None) == Step()


def test_a_failure_lets_the_old_tables_go_on() -> None:
    looked = Looked()
    looked.look(is_quiet=True)
    assert looked.round(1.0).hold
    step = looked.look(failures=1)
    assert (step.hold, looked.machine.stage) == (False, Stage.COMPUTING)
    assert looked.events == ["caught-up", "swap-put-off"]
    looked.look(failures=0)
    assert looked.round(1.0).hold, "it is tried again after another round"
    looked.look(failures=1)
    assert looked.events.count("swap-put-off") == 2, "a second failure counts, too"


@pytest.mark.parametrize("stage", [Stage.LAST_ROUND, Stage.SWAPPING])
def test_a_swap_that_takes_too_long_is_put_off(stage: Stage) -> None:
    looked = Looked()
    looked.look(is_quiet=True)
    looked.round(1.0)
    if stage is Stage.SWAPPING:
        looked.round(1.0)
    assert looked.machine.stage is stage
    looked.now += LIMITS.last_round_s + 1
    assert not looked.look().hold
    assert looked.events[-1] == "swap-put-off"


def test_a_round_of_the_served_tables_may_take_as_long_as_it_needs() -> None:
    looked = Looked()
    looked.look()
    looked.round(1.0)
    looked.now += 100_000
    assert looked.look().hold
    assert looked.machine.stage is Stage.DRAINING


def test_a_pipeline_that_is_stopped_is_not_swapped() -> None:
    looked = Looked()
    looked.look(is_quiet=True)
    looked.round(1.0)
    assert looked.round(1.0).swap
    looked.deployment = replace(looked.deployment, wanted="STOPPED")
    assert looked.look() == Step(events=[("swap-put-off", looked_text("the pipeline was stopped"))])
    assert not looked.look().swap


def looked_text(reason: str) -> str:
    return f"{reason}; the old tables remain in use"


def test_a_worker_without_a_lease_decides_nothing() -> None:
    looked = Looked()
    looked.look(is_quiet=True)
    looked.round(1.0)
    assert looked.round(1.0).swap
    assert looked.look(owned=False) == Step()
    looked.look(owned=True)
    assert looked.machine.stage is Stage.COMPUTING, "rounds before do not count any more"


def test_rounds_of_a_recompute_that_was_cancelled_do_not_count_for_the_next() -> None:
    looked = Looked()
    looked.look(is_quiet=True, begun=1)
    order = RecomputeOrder(("copied",), "when-caught-up", 1000)
    looked.deployment = begun(cancelled(looked.deployment), 3, order, AT_MS + 60_000)
    looked.look(ended=1, round_s=1.0)
    assert looked.machine.stage is Stage.COMPUTING
