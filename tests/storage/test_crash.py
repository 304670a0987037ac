"""Logs that crash: a smoke part of `make crash`, and proof that a case is nothing but its seed."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from rich.console import Console

from penstock.sim.crash import main, run_cases, show
from penstock.sim.crash_case import run_case

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
