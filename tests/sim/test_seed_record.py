"""The record of seeds that ran: lines are appended, and results add up over several runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.sim.main import main
from penstock.sim.seed_record import (
    APPEND_EVERY,
    Recorder,
    RecordLine,
    format_seeds,
    parse_seeds,
    read_record,
    standing,
)
from penstock.sim.seeds import Report, Summary, progress_line


def recorder(path: Path, source: str = "s1", commit: str = "c1") -> Recorder:
    return Recorder(path, 60.0, source=source, commit=commit)


@pytest.mark.parametrize(
    ("seeds", "text"),
    [([], ""), ([5], "5"), ([0, 1, 2], "0..3"), ([9, 3, 1, 2, 7, 3], "1..4,7,9")],
)
def test_seeds_are_written_as_ranges(seeds: list[int], text: str) -> None:
    """Sorted and without duplicates; reading returns the same seeds."""
    assert format_seeds(seeds) == text
    assert list(parse_seeds(text)) == sorted({*seeds})


def test_a_killed_run_loses_only_its_last_seeds(tmp_path: Path) -> None:
    """A line is appended after every `APPEND_EVERY` seeds, and one when the run ends."""
    path = tmp_path / "deep" / "run.jsonl"
    run = recorder(path)
    for seed in range(APPEND_EVERY + 3):
        run.add(seed, "")
    assert [line.clean for line in read_record(path)] == [tuple(range(APPEND_EVERY))]
    run.flush()
    run.flush()
    assert len(read_record(path)) == 2


def test_results_of_several_runs_add_up(tmp_path: Path) -> None:
    """A seed counts once however often it ran, and not if it ever failed with this source code."""
    path = tmp_path / "run.jsonl"
    for source, commit, seeds, failures in (
        ("s1", "c1", range(10), {}),
        ("s1", "c2", range(5, 20), {15: "I1: lost"}),
        ("s2", "c3", range(100), {}),
    ):
        run = recorder(path, source, commit)
        for seed in seeds:
            run.add(seed, failures.get(seed, ""))
        run.flush()
    found = standing(read_record(path), "s1", 60.0)
    assert (found.clean, found.failed) == (19, {15: "I1: lost"})
    assert found.commits == ("c1", "c2")
    assert found.other_sources == 1
    assert standing(read_record(path), "s1", 61.0).clean == 0
    assert standing(read_record(path), "s1", 60.0, "disks").clean == 0


def test_a_line_survives_a_round_trip_through_json() -> None:
    """JSON has only strings as keys; the seeds of failures are numbers again."""
    line = RecordLine("s", "c+", 60.0, (1, 2, 9), {4: "E14: late"}, "disks")
    assert RecordLine.from_json(line.to_json()) == line


def test_a_run_is_recorded_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--record` appends the seeds of a run, `--results` counts those of the same source code."""
    path = str(tmp_path / "run.jsonl")
    common = ("--virtual-s", "1", "--record", path, "--json")
    assert main(["--seeds", "8", "--jobs", "1", "--twice-every", "0", *common]) == 0
    assert json.loads(capsys.readouterr().out)["seeds"] == 1
    assert main(["--results", *common]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["clean"], found["failed"]) == (1, {})
    assert main(["--results", "--virtual-s", "1", "--record", path]) == 0
    assert "1 distinct seeds ran clean" in capsys.readouterr().out


def test_the_progress_line_shows_rate_failures_and_time_left() -> None:
    """Computed from the seeds that have ended so far."""
    summary = Summary(seeds=30, real_s=60.0, failures=[Report(7, failure="I1")])
    assert progress_line(summary, 120) == "30 of 120 seeds, 1 failed, 30.0 seeds/min, 3.0 min left"
    assert "just begun" in progress_line(Summary(), 120)
