"""Tests the progress of streaming queries over time."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from penstock.console.history import QUERIES, History
from penstock.console.pipelines import Pipelines
from penstock.console.progress import Progress
from penstock.console.queries import Queries
from penstock.runtime import SystemClock
from penstock.testing.slowness import patient

T = TypeVar("T")


class AtOnce:
    """An executor without threads, whose first work fails."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self._fails = True

    async def run(self, work: Callable[[], T]) -> T:
        if self._fails:
            self._fails = False
            raise PermissionError("a project may not be read")
        self.done.set()
        return work()


def drawn(history: History, figure: str, now_ms: int) -> list[Any]:
    found = history.read(QUERIES, now_ms, 300)["figures"]
    return list(found.get(figure, {"lines": {}})["lines"].get("q", []))


def report(progress: Progress, at_ms: int, rows: int, run: str = "r", **more: Any) -> None:
    values = {"lag": None, "batch_ms": None, **more}
    progress.add("q", run, at_ms, more.pop("now_ms", at_ms), rows=rows, **values)


def test_rows_per_second_are_what_was_read_between_two_reports() -> None:
    """An idle query reads none, whatever its last batch was."""
    history = History()
    progress = Progress(history)
    report(progress, 2_000, 100, lag=7, batch_ms=1_500)
    report(progress, 6_000, 300, lag=3, batch_ms=900)
    report(progress, 8_000, 300, lag=0, batch_ms=900)
    assert drawn(history, "rows", 8_000)[-4:] == [None, 50.0, 50.0, 0.0]
    assert drawn(history, "lag", 8_000)[-4:] == [7, 3, 3, 0]
    assert drawn(history, "batch_ms", 8_000)[-4:] == [1_500, 900, 900, 900]


def test_a_restart_or_a_long_silence_is_a_gap() -> None:
    """Rows are counted from 0 in each run."""
    history = History()
    progress = Progress(history)
    report(progress, 0, 0)
    report(progress, 2_000, 20)
    report(progress, 4_000, 1, "other run")
    report(progress, 6_000, 5, "other run")
    report(progress, 80_000, 9, "other run")
    assert drawn(history, "rows", 6_000)[-4:] == [None, 10.0, None, 2.0]
    assert set(drawn(history, "rows", 80_000)[-30:]) == {None}


def test_reports_of_any_client_do_no_harm() -> None:
    """Times in the future, old reports that are read again, and huge numbers."""
    history = History()
    progress = Progress(history)
    progress.add("q", "r", 10**18, 4_000, rows=10**400, lag=10**400, batch_ms=None)
    report(progress, 2_000, 5, lag=5)
    assert drawn(history, "lag", 4_000)[-1] == 2**62
    for number in range(1_100):
        progress.add(f"q{number}", "r", 6_000, 6_000, rows=0, lag=None, batch_ms=None)
    assert len(progress._last) == 1_000


def test_flows_of_running_pipelines_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the files that their runs write. A run that has ended records nothing. After an error
    the files are read again."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "penstock").mkdir()
    flow = {"name": "clicks", "rows": 5, "streaming": True, "lag": 17, "batch": 3, "batch_ms": 1500}
    table = {"name": "totals", "rows": 0, "streaming": False, "lag": None, "batch": None}
    projects = []
    for name, state in (("views", "RUNNING"), ("old", "COMPLETED")):
        project = tmp_path / name
        (project / ".penstock").mkdir(parents=True)
        (project / "spark-pipeline.yml").write_text(f"name: {name}\n")
        run = {
            "name": name, "state": state, "round": 1, "pid": os.getpid(), "started_ms": 1,
            "updated_ms": SystemClock().wall_ms(), "flows": [flow, table],
        }  # fmt: skip
        (project / ".penstock" / "last-run.json").write_text(json.dumps(run))
        projects.append(str(project))
    (tmp_path / "penstock" / "pipelines.json").write_text(json.dumps({"projects": projects}))
    history = History()

    async def watch() -> None:
        clock = SystemClock()
        queries = cast("Queries", None)  # `run` does not use them
        executor = AtOnce()
        pipelines = Pipelines(executor, queries, Progress(history), clock, with_files=True)
        running = asyncio.ensure_future(pipelines.run())
        async with asyncio.timeout(patient(60)):
            await executor.done.wait()
        running.cancel()

    asyncio.run(watch())
    figures = history.read(QUERIES, SystemClock().wall_ms(), 300)["figures"]
    assert {name: list(found["lines"]) for name, found in figures.items()} == {
        "lag": ["views: clicks"],
        "batch_ms": ["views: clicks"],
    }
