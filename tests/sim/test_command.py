"""`penstock sim` as a command: its output and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

from penstock.testing.slowness import patient


def penstock(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "sim", *arguments],
        capture_output=True,
        text=True,
        timeout=patient(150),
        check=False,
    )


def test_the_command_runs_seeds_and_prints_a_summary() -> None:
    """The output is one JSON object and nothing else; the exit code is 0 if no rule is broken."""
    ended = penstock("--seeds", "8", "--virtual-s", "1", "--jobs", "1", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["seeds"] == 1
    assert found["failures"] == []
    assert found["reran"] == 1
    assert found["counters"]["committed_batches"] > 0


def test_a_replay_prints_its_whole_configuration() -> None:
    """With a planted bug it prints also which rule broke and where, and the exit code is 1."""
    ended = penstock("--replay", "8", "--virtual-s", "3", "--bug", "ack-on-leader-alone")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    for words in ("seed 8:", "durability=", "faults=", "FAILED: I", "trace "):
        assert words in ended.stdout


def test_a_range_with_the_larger_seed_first_is_refused() -> None:
    """The error says how to write a range."""
    ended = penstock("--seeds", "5..1")
    assert ended.returncode == 2
    assert "smaller number first" in ended.stderr


def test_another_interpreter_can_run_the_seeds() -> None:
    """An interpreter without this environment's packages gets their paths; the run is the same."""
    hashes = []
    bare: str = sys._base_executable  # type: ignore[attr-defined] # the one that this virtual environment is based on
    for chosen in ((), ("--python", bare)):
        ended = penstock("--replay", "8", "--virtual-s", "1", "--json", *chosen)
        assert ended.returncode == 0, ended.stderr
        hashes.append(json.loads(ended.stdout)["trace_hash"])
    assert hashes[0] == hashes[1]
