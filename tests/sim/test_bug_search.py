"""Hunting for planted bugs: each runs with a focus that can find it, and the result is reported."""

from __future__ import annotations

import pytest
from rich.console import Console

from penstock.sim.bug_search import HUNTS, SMOKE, SMOKE_VIRTUAL_S, hunt_one, tasks_for
from penstock.sim.bugs.replication import BUGS
from penstock.sim.focus import FOCUSES, ORDINARY, drawn_focus, focused
from penstock.sim.main import main, parser
from penstock.sim.scenario import draw
from penstock.sim.seeds import Task, run_task


def test_every_hunt_names_an_existing_bug_and_focus() -> None:
    """A bug that is renamed must not lose its focus."""
    assert {*HUNTS} <= {*BUGS}
    assert {hunt.focus for hunt in HUNTS.values()} <= {*FOCUSES}
    assert {*SMOKE} <= {*BUGS}


def test_a_focus_keeps_the_times_and_sizes_that_a_seed_has_drawn() -> None:
    """A focus replaces only clients and faults."""
    plain = draw(5)
    for name in FOCUSES:
        scenario = focused(plain, name)
        assert (scenario.seed, scenario.delay_ms) == (plain.seed, plain.delay_ms)
        factor = {"acks_one": 1, "replaced_move": 2}.get(name, 3)
        assert scenario.topics[0].replication_factor == factor


def test_some_ordinary_seeds_have_a_focus() -> None:
    """Every ordinary focus occurs, and most seeds have none."""
    drawn = [drawn_focus(seed) for seed in range(200)]
    assert {*drawn} == {"", *ORDINARY}
    assert drawn.count("") > 100


def test_a_hunt_tries_as_many_seeds_as_it_is_allowed() -> None:
    """`--seeds` overrides the number."""
    chosen = parser().parse_args(["--bug", "all"])
    assert len(tasks_for("one-round-truncation", chosen)) == 40
    chosen = parser().parse_args(["--bug", "all", "--seeds", "3..5"])
    tasks = tasks_for("one-round-truncation", chosen)
    assert [task.seed for task in tasks] == [3, 4]
    assert {task.focus for task in tasks} == {"double_failover"}


@pytest.mark.parametrize(("name", "rules"), SMOKE.items())
def test_a_planted_bug_is_found_within_eight_seeds(name: str, rules: tuple[str, ...]) -> None:
    """It is found by a rule that it breaks; `make sim-bugs` looks for all bugs."""
    failures: list[str] = []
    for seed in range(8):
        task = Task(seed, SMOKE_VIRTUAL_S, bug=name, focus=HUNTS[name].focus)
        failures.append(run_task(task).failure)
        if failures[-1].startswith(rules):
            return
    pytest.fail(f"{name} was not found by {rules}: {failures}")


def test_a_hunt_ends_with_the_first_seed_that_passes_without_the_bug() -> None:
    """A seed that fails without the bug too proves nothing."""
    chosen = parser().parse_args(["--bug", "empty-disk-trusted", "--seeds", "0..8", "--jobs", "1"])
    chosen.virtual_s = SMOKE_VIRTUAL_S
    found = hunt_one("empty-disk-trusted", chosen, Console(quiet=True))
    assert found["seed"] is not None, found
    assert found["failure"].startswith(SMOKE["empty-disk-trusted"])


def test_power_cuts_are_counted_and_lose_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """The run ends when all brokers have lost power as often as requested, or once more."""
    assert main(["--power-cuts", "1", "--virtual-s", "15"]) == 0
    told = capsys.readouterr().out
    assert "power cuts of all brokers in" in told
    assert "0 seeds failed" in told
