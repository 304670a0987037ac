"""Seeds: short runs of whole clusters, the same run twice, and the driver's own words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from penstock.sim.seeds import Task, main, parser, replay_command, run_task

SMOKE_VIRTUAL_S = 6.0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The driver in a process of its own, as users start it."""
    return subprocess.run(
        [sys.executable, "-m", "penstock.sim.seeds", *arguments],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("block", range(3))
def test_nothing_is_lost_under_faults(block: int) -> None:
    """Two dozen short seeds: clusters of real brokers, clients and faults, every promise kept."""
    ended = run(
        *("--seeds", f"{block * 8}..{block * 8 + 8}", "--virtual-s", f"{SMOKE_VIRTUAL_S}"),
        *("--jobs", "1", "--twice-every", "0", "--json"),
    )
    found: dict[str, Any] = json.loads(ended.stdout)
    failures = [f"{each['failure']}\n  {each['replay']}" for each in found["failures"]]
    assert not failures, "\n".join(failures)
    assert found["seeds"] == 8
    assert found["counters"]["sends_ok"] > 100
    assert found["counters"]["txns_ok"] > 5
    assert found["counters"]["records_read"] > 100


def test_the_same_seed_is_the_same_run_in_another_process() -> None:
    """Step by step: the hash is over all of them."""
    arguments = ("--replay", "3", "--virtual-s", "4", "--json")
    hashes = {json.loads(run(*arguments).stdout)["trace_hash"] for _ in range(2)}
    assert len(hashes) == 1


def test_a_planted_bug_is_found_and_told() -> None:
    """The verdict names the rule, the place, and how to see it again."""
    ended = run(*("--seeds", "0..8", "--bug", "ack-on-leader-alone", "--jobs", "1"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 of 1 planted bugs were found" in ended.stdout


def test_the_replay_line_says_all_that_differs() -> None:
    """A seed is replayed with its bug and its length."""
    assert replay_command(Task(7)) == "penstock sim --replay 7"
    told = replay_command(Task(7, 6.0, "elects-anybody"))
    assert told == "penstock sim --replay 7 --bug elects-anybody --virtual-s 6"


@pytest.mark.parametrize("wrong", [["--seeds", "9..3"], ["--seeds", "x"], ["--bug", "none-such"]])
def test_wrong_arguments_are_told(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """In a line that says what is right."""
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2
    assert wrong[1] in capsys.readouterr().err


def test_a_range_does_not_include_its_end() -> None:
    """As in Python."""
    assert list(parser().parse_args(["--seeds", "3..5"]).seeds) == [3, 4]
    assert list(parser().parse_args(["--seeds", "3"]).seeds) == [3]


def test_a_run_twice_leaves_the_same_trace() -> None:
    """In one process as well, where nothing is left over from the first."""
    report = run_task(Task(5, 2.0, twice=True))
    assert report.reran
    assert "different traces" not in report.failure
