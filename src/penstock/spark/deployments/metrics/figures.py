"""What a worker counts for each pipeline, over all of its drivers. Pure.

Drivers report events; those of a new driver begin at zero. A counter must not fall, so the worker
adds them up here. What only has a current value is read from the view of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from penstock.broker.counters import Histogram
from penstock.spark.deployments.metrics.reprocessing import BackfillSample, RecomputeSample
from penstock.spark.deployments.model import State
from penstock.spark.pipelines.events import FlowView

FLOWS_MAX: Final = 200
"""Flows of a pipeline with their own series. A script may start any number of queries."""
EXPECTATIONS_MAX: Final = 50
"""Expectations of a flow with their own series."""
ROUND_BOUNDS_S: Final = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
START_BOUNDS_S: Final = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_MS: Final = 1_000


@dataclass(slots=True)
class FlowFigures:
    input_rows: int = 0
    output_rows: int | None = None
    """None if Spark does not report them."""
    expectations: dict[str, tuple[int, int]] = field(default_factory=dict)
    """How many rows passed and violated each expectation."""


class PipelineFigures:
    def __init__(self) -> None:
        self.starts = 0
        self.failures = 0
        self.dead_letters = 0
        self.previews: dict[str, int] = {"rows": 0, "error": 0}
        """Requests for rows of tables, by outcome."""
        self.rounds = Histogram(ROUND_BOUNDS_S)
        self.flows: dict[str, FlowFigures] = {}
        self._round_began: float | None = None

    def apply(self, event: Mapping[str, Any], now: float) -> None:
        """Adds an event of a driver. `now` is a monotonic time."""
        match event.get("event"):
            case "round":
                self._round_began = now
            case "waiting":
                self._end_round(now)
            case "end":
                if event.get("state") == "COMPLETED":
                    self._end_round(now)
                self._round_began = None
            case "progress":
                self._on_progress(event)
            case "dead letters":
                self.dead_letters += int(event["records"])

    def _end_round(self, now: float) -> None:
        if self._round_began is not None:
            self.rounds.observe(now - self._round_began)
            self._round_began = None

    def _on_progress(self, event: Mapping[str, Any]) -> None:
        name = str(event["flow"])
        flow = self.flows.get(name)
        if flow is None:
            if len(self.flows) >= FLOWS_MAX:
                return
            flow = self.flows[name] = FlowFigures()
        flow.input_rows += int(event["rows"])
        if (written := event.get("output_rows")) is not None:
            flow.output_rows = (flow.output_rows or 0) + int(written)
        checked = int(event.get("checked") or 0)
        for expectation, violated in event["violations"].items():
            known = flow.expectations.get(expectation)
            if known is None and len(flow.expectations) >= EXPECTATIONS_MAX:
                continue
            passed_before, violated_before = known or (0, 0)
            flow.expectations[expectation] = (
                passed_before + max(checked - violated, 0),
                violated_before + violated,
            )


@dataclass(frozen=True, slots=True)
class PipelineSample:
    """A pipeline at the time of a scrape."""

    name: str
    state: State
    version: int
    figures: PipelineFigures
    flows: Mapping[str, FlowView] = field(default_factory=dict)
    """The flows of the driver that runs; empty if none runs."""
    memory_bytes: int | None = None
    memory_limit_bytes: int = 0
    backfills: Sequence[BackfillSample] = ()
    """Those that have not ended."""
    recompute: RecomputeSample | None = None


@dataclass(frozen=True, slots=True)
class WorkerSample:
    """A worker at the time of a scrape."""

    worker: str
    host: str
    version: str
    spark: str
    wall_ms: int
    pipelines: list[PipelineSample]
    owned: int
    spares: Mapping[str, int]
    memory_bytes: int
    memory_limit_bytes: int
    starts: Histogram
    lease_age_s: float | None
    lineage: Mapping[str, int]
    """OpenLineage events by outcome; empty if they are off."""
    workers: int
    unowned: int


def watermark_delay_s(watermark: str, wall_ms: int) -> float | None:
    """Returns how far a watermark is behind the clock; None if there is none yet. Spark reports the
    beginning of 1970 for a flow that has read no rows."""
    try:
        at = datetime.fromisoformat(watermark)
    except ValueError:
        return None
    if at.tzinfo is None or at.timestamp() <= 0:
        return None
    return max(0.0, wall_ms / _MS - at.timestamp())
