"""`penstock sim`, as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys


def penstock(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "sim", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_seeds_are_run_and_summed_up() -> None:
    """One JSON object, nothing else, and 0 when all is well."""
    ended = penstock("--seeds", "8", "--virtual-s", "1", "--jobs", "1", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["seeds"] == 1
    assert found["failures"] == []
    assert found["reran"] == 1
    assert found["counters"]["committed_batches"] > 0


def test_a_replay_tells_its_whole_configuration() -> None:
    """And with a bug planted, what broke where, and 1."""
    ended = penstock("--replay", "8", "--virtual-s", "3", "--bug", "ack-on-leader-alone")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    for words in ("seed 8:", "durability=", "faults=", "FAILED: I", "trace "):
        assert words in ended.stdout


def test_a_wrong_range_is_refused() -> None:
    """With a line that says how to write it."""
    ended = penstock("--seeds", "5..1")
    assert ended.returncode == 2
    assert "smaller number first" in ended.stderr


def test_another_interpreter_can_run_the_seeds() -> None:
    """One without the packages of this environment is given their places; the run is the same."""
    hashes = []
    bare: str = sys._base_executable  # type: ignore[attr-defined] # of which this one is made
    for chosen in ((), ("--python", bare)):
        ended = penstock("--replay", "8", "--virtual-s", "1", "--json", *chosen)
        assert ended.returncode == 0, ended.stderr
        hashes.append(json.loads(ended.stdout)["trace_hash"])
    assert hashes[0] == hashes[1]
