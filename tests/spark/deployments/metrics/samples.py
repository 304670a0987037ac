"""A worker with one pipeline, as metrics see it."""

from __future__ import annotations

from typing import Any

from penstock.broker.counters import Histogram
from penstock.spark.deployments.metrics.figures import (
    START_BOUNDS_S,
    PipelineFigures,
    PipelineSample,
    WorkerSample,
)
from penstock.spark.deployments.metrics.reprocessing import BackfillSample, RecomputeSample
from penstock.spark.pipelines.events import RunView

NOW_MS = 1_767_261_700_000
"""2026-01-01T10:01:40Z."""
PROGRESS: dict[str, Any] = {
    "event": "progress",
    "flow": "clicks",
    "batch": 3,
    "at": "2026-01-01T10:01:39Z",
    "rows": 100,
    "rows_per_s": 50.0,
    "duration_ms": 1_500,
    "watermark": "2026-01-01T10:00:00.000Z",
    "state_rows": 40,
    "state_bytes": 2_048,
    "violations": {"known": 4},
    "checked": 100,
    "output_rows": 96,
    "skew": 3.5,
    "task_skew": 4.5,
}
EVENTS: list[dict[str, Any]] = [
    {"event": "round", "number": 1},
    PROGRESS,
    {"event": "lag", "flow": "clicks", "lag": 12, "lag_s": 0.8},
    {"event": "dead letters", "topic": "dead", "records": 3},
    {"event": "waiting"},
]


def pipeline(**more: Any) -> PipelineSample:
    figures, view = PipelineFigures(), RunView("views")
    for at, event in enumerate(EVENTS):
        figures.apply(event, float(at))
        view.apply(event)
    figures.starts, figures.failures = 2, 1
    given: dict[str, Any] = {
        "flows": view.flows,
        "memory_bytes": 700,
        "memory_limit_bytes": 900,
        "backfills": [BackfillSample("clicks", done=30, left=70, idle_s=4.0, failures=2)],
        "recompute": RecomputeSample(rows=500, left=12, idle_s=6.0, failures=1),
    }
    return PipelineSample("views", "RUNNING", 5, figures, **(given | more))


def worker(*pipelines: PipelineSample, **more: Any) -> WorkerSample:
    starts = Histogram(START_BOUNDS_S)
    starts.observe(7.0)
    given: dict[str, Any] = {
        "worker": "w1",
        "host": "box",
        "version": "1.0",
        "spark": "4.3.0",
        "wall_ms": NOW_MS,
        "pipelines": list(pipelines),
        "owned": len(pipelines),
        "spares": {"starting": 0, "warm": 1},
        "memory_bytes": 1_000,
        "memory_limit_bytes": 4_000,
        "starts": starts,
        "lease_age_s": 0.5,
        "lineage": {"sent": 9, "dropped": 1},
        "workers": 2,
        "unowned": 1,
    }
    return WorkerSample(**(given | more))
