"""Tests the progress of streaming queries over time."""

from __future__ import annotations

from typing import Any

from penstock.console.history import QUERIES, History
from penstock.console.progress import Progress


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
