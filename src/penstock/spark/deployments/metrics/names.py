"""All metrics of a worker: name, kind, labels and help text.

This table is the only list of them; those of brokers are in `penstock.broker.metrics.names`. Every
label has a bounded number of values: pipelines are those that the worker owns, and flows and
expectations are limited (`figures.FLOWS_MAX`, `figures.EXPECTATIONS_MAX`).
"""

from __future__ import annotations

from typing import Final

from penstock.broker.metrics.names import Kind, Metric


def _counter(name: str, about: str, *labels: str) -> Metric:
    return Metric(name, Kind.COUNTER, labels, about)


def _gauge(name: str, about: str, *labels: str) -> Metric:
    return Metric(name, Kind.GAUGE, labels, about)


def _histogram(name: str, about: str, *labels: str) -> Metric:
    return Metric(name, Kind.HISTOGRAM, labels, about)


METRICS: Final = (
    _gauge(
        "penstock_worker_info",
        "Always 1; the labels name the worker.",
        "worker",
        "host",
        "version",
        "spark",
    ),
    _gauge("penstock_worker_pipelines", "Pipelines that this worker owns."),
    _gauge("penstock_worker_spares", "Drivers in reserve, by the state of their Spark.", "state"),
    _gauge("penstock_worker_memory_bytes", "Memory of all drivers of this worker."),
    _gauge(
        "penstock_worker_memory_limit_bytes",
        "The limit for the heaps of all pipelines of this worker (--memory); 0: no limit.",
    ),
    _histogram(
        "penstock_worker_spark_start_seconds",
        "Time from the start of a driver until its Spark was ready.",
    ),
    _gauge(
        "penstock_worker_lease_age_seconds",
        "Time since the lease of this worker was last renewed. Its pipelines are killed when the "
        "lease expires. Not reported before the worker has joined its group.",
    ),
    _counter(
        "penstock_worker_lineage_events_total",
        "OpenLineage events, by outcome: sent or dropped. Not reported without --openlineage.",
        "outcome",
    ),
    _gauge("penstock_workers", "Workers that have reported recently, as this worker sees it."),
    _gauge(
        "penstock_unowned_pipelines",
        "Pipelines that should run but that no worker runs, as this worker sees it.",
    ),
    # Pipelines
    _gauge("penstock_pipeline_version", "The version that runs, or runs next.", "pipeline"),
    _gauge(
        "penstock_pipeline_state",
        "1 for the state that the pipeline is in, 0 for the others.",
        "pipeline",
        "state",
    ),
    _counter("penstock_pipeline_starts_total", "Drivers started for the pipeline.", "pipeline"),
    _counter(
        "penstock_pipeline_failures_total",
        "Attempts to run the pipeline that failed.",
        "pipeline",
    ),
    _histogram("penstock_pipeline_round_seconds", "Rounds that were completed.", "pipeline"),
    _gauge(
        "penstock_pipeline_driver_memory_bytes",
        "Memory of the driver: Python, the JVM and Python workers.",
        "pipeline",
    ),
    _gauge(
        "penstock_pipeline_driver_memory_limit_bytes",
        "A driver that takes more memory is killed.",
        "pipeline",
    ),
    _gauge(
        "penstock_pipeline_flows",
        "Flows of the last run, those without their own series included.",
        "pipeline",
    ),
    _counter("penstock_pipeline_input_rows_total", "Rows read by a flow.", "pipeline", "flow"),
    _counter(
        "penstock_pipeline_output_rows_total",
        "Rows written by a flow. Spark reports them for topics, not for files.",
        "pipeline",
        "flow",
    ),
    _gauge(
        "penstock_pipeline_lag_records",
        "Records in its topics that a flow has not read yet.",
        "pipeline",
        "flow",
    ),
    _gauge(
        "penstock_pipeline_lag_seconds",
        "The age of the oldest record that a flow has not read yet.",
        "pipeline",
        "flow",
    ),
    _gauge(
        "penstock_pipeline_batch_seconds",
        "How long the last batch with rows took.",
        "pipeline",
        "flow",
    ),
    _gauge(
        "penstock_pipeline_watermark_delay_seconds",
        "How far the watermark of a flow is behind the clock.",
        "pipeline",
        "flow",
    ),
    _gauge(
        "penstock_pipeline_state_rows",
        "Rows that a flow keeps for aggregations and joins.",
        "pipeline",
        "flow",
    ),
    _gauge(
        "penstock_pipeline_state_bytes",
        "Memory of the rows that a flow keeps.",
        "pipeline",
        "flow",
    ),
    _gauge(
        "penstock_pipeline_skew_ratio",
        "Rows of the largest topic partition in the last batch, divided by those of the median "
        "one. 1: all are equal.",
        "pipeline",
        "flow",
    ),
    _gauge(
        "penstock_pipeline_task_skew_ratio",
        "Duration of the longest task in a stage of the last batch that took a second or more, "
        "divided by that of the median one. 1: all are equal.",
        "pipeline",
        "flow",
    ),
    _counter(
        "penstock_pipeline_expectation_rows_total",
        "Rows that passed or violated an expectation of a flow.",
        "pipeline",
        "flow",
        "expectation",
        "outcome",
    ),
    _counter(
        "penstock_pipeline_dead_letters_total",
        "Records added to the dead-letter topics of the flows while they ran.",
        "pipeline",
    ),
    _gauge(
        "penstock_pipeline_backfill_done_records",
        "Records that a backfill has read. Not reported when it has ended.",
        "pipeline",
        "flow",
    ),
    _gauge(
        "penstock_pipeline_backfill_left_records",
        "Records that a backfill has not read yet.",
        "pipeline",
        "flow",
    ),
    _gauge(
        "penstock_pipeline_backfill_idle_seconds",
        "Time since a backfill last read records. It does not grow while the pipeline is stopped "
        "or waits for its next round.",
        "pipeline",
        "flow",
    ),
    _gauge(
        "penstock_pipeline_backfill_failed_attempts",
        "Attempts to run the pipeline that failed since a backfill last read records.",
        "pipeline",
        "flow",
    ),
    _gauge(
        "penstock_pipeline_recompute_read_rows",
        "Rows that a recompute has read on this worker. Not reported without a recompute.",
        "pipeline",
    ),
    _gauge(
        "penstock_pipeline_recompute_left_records",
        "Records in the topics of a recompute that it has not read yet. Not reported while its "
        "driver has not reported them.",
        "pipeline",
    ),
    _gauge(
        "penstock_pipeline_recompute_idle_seconds",
        "Time since a recompute last read rows, computed a view or completed a round. It does not "
        "grow while the pipeline is stopped.",
        "pipeline",
    ),
    _gauge(
        "penstock_pipeline_recompute_failed_attempts",
        "Attempts to run the driver of a recompute that failed since it last completed a round.",
        "pipeline",
    ),
    _counter(
        "penstock_pipeline_previews_total",
        "Requests for rows of tables that were answered, by outcome.",
        "pipeline",
        "outcome",
    ),
)

BY_NAME: Final = {metric.name: metric for metric in METRICS}
