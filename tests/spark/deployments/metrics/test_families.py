"""Tests the metrics of a worker: names, samples, limits and documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from penstock.broker.metrics import names as broker_names
from penstock.broker.metrics.names import Kind
from penstock.spark.deployments.metrics.families import rendered
from penstock.spark.deployments.metrics.figures import FLOWS_MAX, PipelineFigures
from penstock.spark.deployments.metrics.names import BY_NAME, METRICS
from penstock.spark.deployments.metrics.reprocessing import RecomputeSample
from penstock.spark.pipelines.events import FlowView
from spark.deployments.metrics.samples import pipeline, worker

DOCS = Path(__file__).parents[4] / "docs" / "PIPELINES.md"


def scraped(text: bytes) -> dict[tuple[str, tuple[str, ...]], float]:
    """Returns the samples by name and label values."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            about = BY_NAME.get(re.sub("_(bucket|sum|count)$", "", sample.name))
            labels = sorted(sample.labels) if about is None else about.labels
            found[sample.name, tuple(sample.labels[each] for each in labels)] = sample.value
    return found


def test_a_scrape_has_every_metric() -> None:
    found = {name for name, _ in scraped(rendered(worker(pipeline()), refused=0))}
    for metric in METRICS:
        name = f"{metric.name}_count" if metric.kind is Kind.HISTOGRAM else metric.name
        assert name in found
    assert "process_resident_memory_bytes" in found


def test_the_figures_of_a_pipeline() -> None:
    found = scraped(rendered(worker(pipeline()), refused=4))
    flow = ("views", "clicks")
    expected: dict[tuple[str, tuple[str, ...]], Any] = {
        ("penstock_pipeline_state", ("views", "RUNNING")): 1,
        ("penstock_pipeline_state", ("views", "FAILED")): 0,
        ("penstock_pipeline_version", ("views",)): 5,
        ("penstock_pipeline_starts_total", ("views",)): 2,
        ("penstock_pipeline_failures_total", ("views",)): 1,
        ("penstock_pipeline_round_seconds_count", ("views",)): 1,
        ("penstock_pipeline_round_seconds_sum", ("views",)): 4,
        ("penstock_pipeline_input_rows_total", flow): 100,
        ("penstock_pipeline_output_rows_total", flow): 96,
        ("penstock_pipeline_lag_records", flow): 12,
        ("penstock_pipeline_lag_seconds", flow): 0.8,
        ("penstock_pipeline_batch_seconds", flow): 1.5,
        ("penstock_pipeline_watermark_delay_seconds", flow): 100,
        ("penstock_pipeline_state_rows", flow): 40,
        ("penstock_pipeline_state_bytes", flow): 2_048,
        ("penstock_pipeline_skew_ratio", flow): 3.5,
        ("penstock_pipeline_task_skew_ratio", flow): 4.5,
        ("penstock_pipeline_expectation_rows_total", (*flow, "known", "passed")): 96,
        ("penstock_pipeline_expectation_rows_total", (*flow, "known", "violated")): 4,
        ("penstock_pipeline_dead_letters_total", ("views",)): 3,
        ("penstock_pipeline_driver_memory_bytes", ("views",)): 700,
        ("penstock_pipeline_backfill_done_records", flow): 30,
        ("penstock_pipeline_backfill_left_records", flow): 70,
        ("penstock_pipeline_backfill_idle_seconds", flow): 4,
        ("penstock_pipeline_backfill_failed_attempts", flow): 2,
        ("penstock_pipeline_recompute_read_rows", ("views",)): 500,
        ("penstock_pipeline_recompute_left_records", ("views",)): 12,
        ("penstock_pipeline_recompute_idle_seconds", ("views",)): 6,
        ("penstock_pipeline_recompute_failed_attempts", ("views",)): 1,
        ("penstock_worker_info", ("w1", "box", "1.0", "4.3.0")): 1,
        ("penstock_worker_pipelines", ()): 1,
        ("penstock_worker_spares", ("warm",)): 1,
        ("penstock_worker_spark_start_seconds_sum", ()): 7,
        ("penstock_worker_lease_age_seconds", ()): 0.5,
        ("penstock_workers", ()): 2,
        ("penstock_unowned_pipelines", ()): 1,
        ("penstock_metrics_refused_requests_total", ()): 4,
    }
    assert {key: found[key] for key in expected} == expected


def test_a_pipeline_without_a_driver_has_no_lag() -> None:
    """The last lag is not the current one. Counters stay."""
    stopped = pipeline(flows={}, memory_bytes=None)
    found = scraped(rendered(worker(stopped, lease_age_s=None), refused=0))
    names = {name for name, _ in found}
    gone = {"penstock_pipeline_lag_seconds", "penstock_pipeline_driver_memory_bytes"}
    assert not names & {*gone, "penstock_worker_lease_age_seconds"}
    assert found["penstock_pipeline_input_rows_total", ("views", "clicks")] == 100


def test_without_a_backfill_and_a_recompute_there_are_no_figures_of_them() -> None:
    """An alert for one that makes no progress ends with it."""
    found = scraped(rendered(worker(pipeline(backfills=(), recompute=None)), refused=0))
    assert not [name for name, _ in found if "_backfill_" in name or "_recompute_" in name]


def test_records_that_a_recompute_has_not_read_may_be_unknown() -> None:
    begins = RecomputeSample(rows=0, left=None, idle_s=1.0, failures=0)
    found = {name for name, _ in scraped(rendered(worker(pipeline(recompute=begins)), refused=0))}
    assert "penstock_pipeline_recompute_left_records" not in found
    assert "penstock_pipeline_recompute_idle_seconds" in found


def test_the_number_of_flows_with_series_is_limited() -> None:
    flows = {str(each): FlowView(str(each), lag=1) for each in range(FLOWS_MAX + 9)}
    many = pipeline(flows=flows)
    found = scraped(rendered(worker(many), refused=0))
    assert sum(name == "penstock_pipeline_lag_records" for name, _ in found) == FLOWS_MAX
    assert found["penstock_pipeline_flows", ("views",)] == FLOWS_MAX + 9
    assert PipelineFigures().flows == {}


def test_names_follow_the_conventions_and_differ_from_those_of_brokers() -> None:
    assert len(BY_NAME) == len(METRICS)
    assert not BY_NAME.keys() & broker_names.BY_NAME.keys()
    for metric in METRICS:
        assert metric.name.startswith("penstock_")
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        assert metric.about.endswith("."), metric.name
        if metric.kind is Kind.HISTOGRAM:
            assert metric.name.endswith("_seconds")


def test_the_documentation_lists_exactly_the_metrics() -> None:
    table = re.findall(r"^\| `(penstock_[a-z_]+)` \|", DOCS.read_text("utf-8"), re.MULTILINE)
    assert sorted(table) == sorted(metric.name for metric in METRICS)
