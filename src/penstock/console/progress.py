"""Records the progress of streaming queries and of flows of pipelines for the charts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.console.history import QUERIES, History, Scope

_GAP_MS: Final = 60_000
"""Without a report for this long, the chart has a gap. An idle query reports every ten seconds."""
_LINES_MAX: Final = 1_000
_NUMBER_MAX: Final = 2**62
"""Any client may send reports, with any number."""


class _Report(NamedTuple):
    run: str
    at_ms: int
    rows: int


class Progress:
    def __init__(self, history: History) -> None:
        self._history = history
        self._last: dict[tuple[Scope, str], _Report] = {}

    def add(
        self,
        line: str,
        run: str,
        at_ms: int,
        now_ms: int,
        *,
        rows: int,
        lag: int | None,
        batch_ms: int | None,
        more: Mapping[str, float | None] | None = None,
        scope: Scope = QUERIES,
    ) -> float | None:
        """Records a report of a running query. Returns the rows per second since its last report;
        None if they are not known.

        Args:
            line: the id of the query.
            run: the id of this run, which counts its rows from 0.
            at_ms: when the query reported.
            now_ms: the time by the clock of the console.
            rows: how many rows this run has read.
            lag: how many records it has yet to read, or None.
            batch_ms: how long its last batch took, or None.
            more: further figures, None if they are not known.
            scope: what the charts are about.
        """
        at_ms = min(at_ms, now_ms)
        rows = min(rows, _NUMBER_MAX)
        key = scope, line
        before = self._last.pop(key, None)
        if before is not None and before.at_ms >= at_ms:
            self._last[key] = before
            return None
        self._last[key] = _Report(run, at_ms, rows)
        if len(self._last) > _LINES_MAX:
            del self._last[next(iter(self._last))]
        values: dict[str, dict[str, float]] = {}
        since_ms = at_ms
        rate: float | None = None
        if before is not None and before.run == run and at_ms - before.at_ms <= _GAP_MS:
            since_ms = before.at_ms
            read = max(0, rows - before.rows)
            rate = read * 1000 / (at_ms - since_ms)
            values["rows"] = {line: rate}
        for figure, value in {"lag": lag, "batch_ms": batch_ms, **(more or {})}.items():
            if value is not None:
                values[figure] = {line: min(value, _NUMBER_MAX)}
        self._history.record(scope, since_ms, at_ms, values)
        return rate
