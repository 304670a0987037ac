"""Tests that `make spark-long` finds the tests that others leave out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from penstock.testing.slowness import patient

ROOT = Path(__file__).parents[2]


def test_tests_that_are_skipped_without_a_variable_are_marked() -> None:
    command = ["-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-m", "long"]
    file = "tests/spark/deployments/test_worker.py"
    listed = subprocess.run(
        [sys.executable, *command, file],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patient(120),
        check=True,
    ).stdout
    assert "test_another_worker_takes_over_when_one_is_killed" in listed
    assert "test_a_worker_ends_although_the_brokers_are_gone" not in listed


def test_the_target_runs_them() -> None:
    text = (ROOT / "Makefile").read_text("utf-8")
    _, _, target = text.partition("\nspark-long:")
    assert "PENSTOCK_LONG=1" in target.splitlines()[1] and "-m long" in target.splitlines()[1]
