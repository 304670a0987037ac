"""Logs that crash: a smoke part of `make crash`, and proof that a case is nothing but its seed."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from penstock.sim.crash import main, run_cases, show
from penstock.sim.crash_case import Case, run_case
from penstock.sim.log_rig import LogRig


class PowerCuts(Case):
    """A life of nothing but work and power cuts; whoever acknowledges waits for a flush."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.config = replace(
            self.config, power_share=1.0, fault_chance=0.0, crash_chance=0.0, compact=False
        )
        self.rig = LogRig(self.config, self.disk, self.draws)

    def run(self) -> None:
        rig, draws = self.rig, self.draws
        rig.create()
        while rig.counters.get("power losses", 0) < 100:
            rig.arm(draws.randrange(0, 40))
            before = rig.counters.get("power losses", 0)
            while rig.counters.get("power losses", 0) == before:
                self.name = ("append", "append", "append", "flush", "roll", "note")[
                    draws.randrange(0, 6)
                ]
                getattr(self, f"_{self.name}")()
            rig.disarm()
            rig.check()


CASES = 400
CHUNK = 100


@pytest.mark.parametrize("first_seed", range(1, CASES, CHUNK))
def test_no_crash_loses_what_was_acknowledged(first_seed: int) -> None:
    """Whatever the crash or fault: no acknowledged batch lost, no bad byte read, nothing twice."""
    summary = run_cases(range(first_seed, first_seed + CHUNK))
    output = io.StringIO()
    show(Console(file=output, width=200), summary)
    assert not summary.failures, output.getvalue()
    for happened in ("kills", "power losses", "tails cut", "recovered", "opened cleanly"):
        assert summary.counters[happened] > 0, f"{happened}: never in {CHUNK} cases"


@pytest.mark.parametrize("seed", [1, 2])
def test_a_hundred_power_cuts_in_a_row_lose_nothing_synced(seed: int) -> None:
    """Each in the middle of something: whatever a flush has confirmed is there every time. A power
    loss of all brokers of a cluster is this for each of their logs, with `durability=fsync`."""
    case = PowerCuts(seed)
    case.run()
    assert case.rig.counters["power losses"] >= 100
    assert case.rig.model.end > 100


def test_a_case_is_its_seed() -> None:
    """The same seed leaves the same trace again, and another seed another."""
    hashes = [run_case(seed).trace_hash for seed in (7, 8, 9)]
    assert [run_case(seed).trace_hash for seed in (7, 8, 9)] == hashes
    assert len(set(hashes)) == 3


def test_a_seed_means_the_same_in_every_process() -> None:
    """No hash seed and no earlier case leaks into a case."""
    script = "from penstock.sim.crash_case import run_case; print(run_case(7).trace_hash)"
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    assert found == {run_case(7).trace_hash}


def test_the_command_line_tells_a_story(capsys: pytest.CaptureFixture[str]) -> None:
    """One seed on the command line prints its circumstances and every step."""
    assert main(["--seed", "7", "--story"]) == 0
    told = capsys.readouterr().out
    assert "segment_bytes=" in told
    assert "created" in told
