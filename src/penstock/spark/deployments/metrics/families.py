"""Renders the metrics of a worker in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, get_args

from prometheus_client.core import Metric
from prometheus_client.process_collector import ProcessCollector

from penstock.broker.metrics import names as broker_names
from penstock.broker.metrics.exposition import Sample, family, histogram, render
from penstock.spark.deployments.metrics.figures import (
    FLOWS_MAX,
    FlowFigures,
    PipelineSample,
    WorkerSample,
    watermark_delay_s,
)
from penstock.spark.deployments.metrics.names import BY_NAME
from penstock.spark.deployments.metrics.reprocessing import BackfillSample, RecomputeSample
from penstock.spark.deployments.model import State
from penstock.spark.pipelines.events import FlowView

_REFUSED: Final = broker_names.BY_NAME["penstock_metrics_refused_requests_total"]
_STATES: Final[tuple[str, ...]] = get_args(State)
_MS: Final = 1_000
OfFlow = Callable[[FlowView], float | None]
OfFigures = Callable[[FlowFigures], float | None]


def rendered(worker: WorkerSample, refused: int) -> bytes:
    """Returns the text of a scrape. `refused` counts requests that the endpoint has refused."""
    return b"".join(render(each) for each in families(worker, refused))


def families(worker: WorkerSample, refused: int) -> Iterator[Metric]:
    yield from _worker(worker)
    yield from _pipelines(worker.pipelines)
    yield from _flows(worker)
    yield from _counted(worker.pipelines)
    yield from _backfills(worker.pipelines)
    yield from _recomputes(worker.pipelines)
    yield family(_REFUSED, [((), refused)])
    yield from ProcessCollector(registry=None).collect()


def _single(name: str, value: float | None) -> Metric:
    return family(BY_NAME[name], [] if value is None else [((), value)])


def _worker(worker: WorkerSample) -> Iterator[Metric]:
    labels = worker.worker, worker.host, worker.version, worker.spark
    yield family(BY_NAME["penstock_worker_info"], [(labels, 1)])
    yield _single("penstock_worker_pipelines", worker.owned)
    spares = [((state,), count) for state, count in worker.spares.items()]
    yield family(BY_NAME["penstock_worker_spares"], spares)
    yield _single("penstock_worker_memory_bytes", worker.memory_bytes)
    yield _single("penstock_worker_memory_limit_bytes", worker.memory_limit_bytes)
    yield histogram(BY_NAME["penstock_worker_spark_start_seconds"], [((), worker.starts)])
    yield _single("penstock_worker_lease_age_seconds", worker.lease_age_s)
    lineage = [((outcome,), count) for outcome, count in worker.lineage.items()]
    yield family(BY_NAME["penstock_worker_lineage_events_total"], lineage)
    yield _single("penstock_workers", worker.workers)
    yield _single("penstock_unowned_pipelines", worker.unowned)


def _pipelines(pipelines: Iterable[PipelineSample]) -> Iterator[Metric]:
    def of(name: str, value: Callable[[PipelineSample], float | None]) -> Metric:
        found = [((each.name,), value(each)) for each in pipelines]
        return family(BY_NAME[name], [(labels, at) for labels, at in found if at is not None])

    yield of("penstock_pipeline_version", lambda each: each.version)
    states: list[Sample] = [
        ((each.name, state), int(each.state == state)) for each in pipelines for state in _STATES
    ]
    yield family(BY_NAME["penstock_pipeline_state"], states)
    yield of("penstock_pipeline_starts_total", lambda each: each.figures.starts)
    yield of("penstock_pipeline_failures_total", lambda each: each.figures.failures)
    rounds = [((each.name,), each.figures.rounds) for each in pipelines]
    yield histogram(BY_NAME["penstock_pipeline_round_seconds"], rounds)
    yield of("penstock_pipeline_driver_memory_bytes", lambda each: each.memory_bytes)
    yield of("penstock_pipeline_driver_memory_limit_bytes", lambda each: each.memory_limit_bytes)
    yield of("penstock_pipeline_flows", lambda each: len(each.flows))
    yield of("penstock_pipeline_dead_letters_total", lambda each: each.figures.dead_letters)
    previews: list[Sample] = [
        ((each.name, outcome), count)
        for each in pipelines
        for outcome, count in each.figures.previews.items()
    ]
    yield family(BY_NAME["penstock_pipeline_previews_total"], previews)


def _flows(worker: WorkerSample) -> Iterator[Metric]:
    """Yields what is known while a driver runs."""

    def of(name: str, value: OfFlow) -> Metric:
        found = [
            ((each.name, flow.name), value(flow))
            for each in worker.pipelines
            for flow in list(each.flows.values())[:FLOWS_MAX]
        ]
        return family(BY_NAME[name], [(labels, at) for labels, at in found if at is not None])

    yield of("penstock_pipeline_lag_records", lambda flow: flow.lag)
    yield of("penstock_pipeline_lag_seconds", lambda flow: flow.lag_s)
    yield of(
        "penstock_pipeline_batch_seconds",
        lambda flow: None if flow.batch is None else flow.batch_ms / _MS,
    )
    yield of(
        "penstock_pipeline_watermark_delay_seconds",
        lambda flow: watermark_delay_s(flow.watermark, worker.wall_ms),
    )
    yield of("penstock_pipeline_state_rows", lambda flow: _state(flow, flow.state_rows))
    yield of("penstock_pipeline_state_bytes", lambda flow: _state(flow, flow.state_bytes))
    yield of("penstock_pipeline_skew_ratio", lambda flow: flow.skew)
    yield of("penstock_pipeline_task_skew_ratio", lambda flow: flow.task_skew)


def _backfills(pipelines: Iterable[PipelineSample]) -> Iterator[Metric]:
    def of(name: str, value: Callable[[BackfillSample], float]) -> Metric:
        found: list[Sample] = [
            ((each.name, backfill.flow), value(backfill))
            for each in pipelines
            for backfill in each.backfills
        ]
        return family(BY_NAME[name], found)

    yield of("penstock_pipeline_backfill_done_records", lambda each: each.done)
    yield of("penstock_pipeline_backfill_left_records", lambda each: each.left)
    yield of("penstock_pipeline_backfill_idle_seconds", lambda each: each.idle_s)
    yield of("penstock_pipeline_backfill_failed_attempts", lambda each: each.failures)


def _recomputes(pipelines: Iterable[PipelineSample]) -> Iterator[Metric]:
    recomputes = [(each.name, each.recompute) for each in pipelines if each.recompute is not None]

    def of(name: str, value: Callable[[RecomputeSample], float | None]) -> Metric:
        found = [((pipeline,), value(each)) for pipeline, each in recomputes]
        return family(BY_NAME[name], [(labels, at) for labels, at in found if at is not None])

    yield of("penstock_pipeline_recompute_read_rows", lambda each: each.rows)
    yield of("penstock_pipeline_recompute_left_records", lambda each: each.left)
    yield of("penstock_pipeline_recompute_idle_seconds", lambda each: each.idle_s)
    yield of("penstock_pipeline_recompute_failed_attempts", lambda each: each.failures)


def _state(flow: FlowView, value: int) -> int | None:
    """Returns the value if the flow keeps state."""
    return value if flow.state_rows or flow.state_bytes else None


def _counted(pipelines: Iterable[PipelineSample]) -> Iterator[Metric]:
    def of(name: str, value: OfFigures) -> Metric:
        found = [
            ((each.name, flow), value(figures))
            for each in pipelines
            for flow, figures in each.figures.flows.items()
        ]
        return family(BY_NAME[name], [(labels, at) for labels, at in found if at is not None])

    yield of("penstock_pipeline_input_rows_total", lambda flow: flow.input_rows)
    yield of("penstock_pipeline_output_rows_total", lambda flow: flow.output_rows)
    outcomes: list[Sample] = [
        ((each.name, flow, expectation, outcome), count)
        for each in pipelines
        for flow, figures in each.figures.flows.items()
        for expectation, counts in figures.expectations.items()
        for outcome, count in zip(("passed", "violated"), counts, strict=True)
    ]
    yield family(BY_NAME["penstock_pipeline_expectation_rows_total"], outcomes)
