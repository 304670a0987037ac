"""Seeds: short runs of whole clusters, repeatability, and the output of the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from penstock.sim.main import main, parser
from penstock.sim.seeds import Task, replay_command, run_task
from penstock.testing.slowness import patient

SMOKE_VIRTUAL_S = 6.0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the driver in its own process, as users do."""
    return subprocess.run(
        [sys.executable, "-m", "penstock.sim.main", *arguments],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=patient(300),
        check=False,
    )


@pytest.mark.parametrize("block", range(3))
def test_nothing_is_lost_under_faults(block: int) -> None:
    """Two dozen short seeds with real brokers, clients and faults; every promise is checked."""
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


def test_nothing_gets_through_after_a_revocation() -> None:
    """Short seeds in which clients log in and rights change under faults. One runs twice."""
    ended = run(
        *("--focus", "access", "--seeds", "0..3", "--virtual-s", "8"),
        *("--jobs", "1", "--twice-every", "3", "--json"),
    )
    found: dict[str, Any] = json.loads(ended.stdout)
    failures = [f"{each['failure']}\n  {each['replay']}" for each in found["failures"]]
    assert not failures, "\n".join(failures)
    assert found["reran"] == 1
    counters = found["counters"]
    for right in ("write", "read", "group"):
        assert counters[f"guest_{right}_ok"] and counters[f"guest_{right}_fail"], counters
    assert counters["rights_revoked"] >= 9
    assert counters["logins_ok"] and counters["logins_fail"]


def test_the_same_seed_gives_the_same_run_in_another_process() -> None:
    """The hash covers every step."""
    arguments = ("--replay", "3", "--virtual-s", "4", "--json")
    hashes = {json.loads(run(*arguments).stdout)["trace_hash"] for _ in range(2)}
    assert len(hashes) == 1


def test_a_planted_bug_is_found_and_counted() -> None:
    ended = run(*("--seeds", "0..8", "--bug", "ack-on-leader-alone", "--jobs", "1"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 of 1 planted bugs were found" in ended.stdout


def test_the_replay_command_has_every_option_that_differs_from_the_default() -> None:
    """The command includes the planted bug and the length of the run."""
    assert replay_command(Task(7)) == "penstock sim --replay 7"
    told = replay_command(Task(7, 6.0, "elects-anybody"))
    assert told == "penstock sim --replay 7 --bug elects-anybody --virtual-s 6"


@pytest.mark.parametrize("wrong", [["--seeds", "9..3"], ["--seeds", "x"], ["--bug", "none-such"]])
def test_wrong_arguments_are_reported(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the wrong argument."""
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2
    assert wrong[1] in capsys.readouterr().err


def test_a_range_does_not_include_its_end() -> None:
    """Like Python's `range`."""
    assert list(parser().parse_args(["--seeds", "3..5"]).seeds) == [3, 4]
    assert list(parser().parse_args(["--seeds", "3"]).seeds) == [3]


def test_running_a_seed_twice_gives_the_same_trace() -> None:
    """The first run in a process leaves nothing behind that changes the second."""
    report = run_task(Task(5, 2.0, twice=True))
    assert report.reran
    assert "different traces" not in report.failure
