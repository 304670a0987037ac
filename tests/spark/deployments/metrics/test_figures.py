"""Tests what a worker counts for a pipeline."""

from __future__ import annotations

from penstock.spark.deployments.metrics.figures import (
    EXPECTATIONS_MAX,
    FLOWS_MAX,
    PipelineFigures,
    watermark_delay_s,
)
from spark.deployments.metrics.samples import NOW_MS, PROGRESS


def test_counters_go_on_when_a_new_driver_begins_at_zero() -> None:
    figures = PipelineFigures()
    for _ in range(2):
        figures.apply(PROGRESS, 0.0)
        figures.apply({"event": "end", "state": "FAILED"}, 0.0)
    flow = figures.flows["clicks"]
    assert (flow.input_rows, flow.output_rows) == (200, 192)
    assert flow.expectations == {"known": (192, 8)}


def test_written_rows_are_unknown_unless_spark_reports_them() -> None:
    figures = PipelineFigures()
    figures.apply({**PROGRESS, "output_rows": None}, 0.0)
    assert figures.flows["clicks"].output_rows is None


def test_only_completed_rounds_are_timed() -> None:
    figures = PipelineFigures()
    figures.apply({"event": "round", "number": 1}, 10.0)
    figures.apply({"event": "waiting"}, 14.0)
    figures.apply({"event": "round", "number": 2}, 20.0)
    figures.apply({"event": "end", "state": "FAILED"}, 29.0)
    figures.apply({"event": "round", "number": 1}, 40.0)
    figures.apply({"event": "end", "state": "COMPLETED"}, 41.0)
    assert (sum(figures.rounds.counts), figures.rounds.sum_s) == (2, 5.0)


def test_dead_letters_are_added_up() -> None:
    figures = PipelineFigures()
    for _ in range(2):
        figures.apply({"event": "dead letters", "topic": "dead", "records": 3}, 0.0)
    assert figures.dead_letters == 6


def test_flows_and_expectations_are_limited() -> None:
    """A script may start any number of queries without a name."""
    figures = PipelineFigures()
    for number in range(FLOWS_MAX + 5):
        figures.apply({**PROGRESS, "flow": f"query-{number}"}, 0.0)
    assert len(figures.flows) == FLOWS_MAX
    many = {f"rule_{number}": 1 for number in range(EXPECTATIONS_MAX + 5)}
    figures.apply({**PROGRESS, "flow": "query-0", "violations": many}, 0.0)
    assert len(figures.flows["query-0"].expectations) == EXPECTATIONS_MAX


def test_the_delay_of_a_watermark() -> None:
    """Before the first rows, Spark reports the beginning of 1970."""
    assert watermark_delay_s("2026-01-01T10:00:00.000Z", NOW_MS) == 100.0
    assert watermark_delay_s("2027-01-01T10:00:00.000Z", NOW_MS) == 0.0
    assert watermark_delay_s("1970-01-01T00:00:00.000Z", NOW_MS) is None
    assert watermark_delay_s("", NOW_MS) is None
