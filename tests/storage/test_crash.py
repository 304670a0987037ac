"""Logs that crash: a small part of `make crash`, and proof that a case depends only on its seed."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest
from rich.console import Console

from penstock.sim.crash.case import Case, run_case
from penstock.sim.crash.log_calls import LogCalls
from penstock.sim.crash.log_process import LogProcess
from penstock.sim.crash.runner import main, run_cases, show


class PowerCuts(Case):
    """A log that is only written to and loses power. Records count as acknowledged after a
    flush."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.config = replace(
            self.config, power_share=1.0, fault_chance=0.0, crash_chance=0.0, compact=False
        )
        self.process = LogProcess(self.config, self.disk, self.draws, Random(seed))
        self.calls = LogCalls(self.process)

    def run(self) -> None:
        draws = self.draws
        self.process.create()
        while self.process.counters.get("power losses", 0) < 100:
            self.process.arm(draws.randrange(0, 40))
            before = self.process.counters.get("power losses", 0)
            while self.process.counters.get("power losses", 0) == before:
                self.name = ("append", "append", "append", "flush", "roll", "note")[
                    draws.randrange(0, 6)
                ]
                getattr(self, f"_{self.name}")()
            self.process.disarm()
            self.process.check()


CASES = 400
CHUNK = 100


@pytest.mark.parametrize("first_seed", range(1, CASES, CHUNK))
def test_no_crash_loses_acknowledged_batches(first_seed: int) -> None:
    """With any crash or fault, no acknowledged batch is lost, no bad byte is read, nothing is read
    twice."""
    summary = run_cases(range(first_seed, first_seed + CHUNK))
    output = io.StringIO()
    show(Console(file=output, width=200), summary)
    assert not summary.failures, output.getvalue()
    for happened in ("kills", "power losses", "tails cut", "recovered", "opened cleanly"):
        assert summary.counters[happened] > 0, f"{happened}: never in {CHUNK} cases"


@pytest.mark.parametrize("seed", [1, 2])
def test_a_hundred_power_cuts_in_a_row_lose_nothing_synced(seed: int) -> None:
    """Each cuts an operation short, and everything that a flush confirmed is there each time. If
    all brokers of a cluster lose power, this happens to each of their logs with
    `durability=fsync`."""
    case = PowerCuts(seed)
    case.run()
    assert case.process.counters["power losses"] >= 100
    assert case.process.model.end > 100


def test_a_case_depends_only_on_its_seed() -> None:
    """The same seed gives the same trace, other seeds give other traces."""
    hashes = [run_case(seed).trace_hash for seed in (7, 8, 9)]
    assert [run_case(seed).trace_hash for seed in (7, 8, 9)] == hashes
    assert len(set(hashes)) == 3


def test_a_seed_means_the_same_in_every_process() -> None:
    """Neither the hash seed nor earlier cases affect a case."""
    script = "from penstock.sim.crash.case import run_case; print(run_case(7).trace_hash)"
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


def test_the_steps_option_prints_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    """For one seed, it prints the settings and every step."""
    assert main(["--seed", "7", "--steps"]) == 0
    told = capsys.readouterr().out
    assert "segment_bytes=" in told
    assert "created" in told
