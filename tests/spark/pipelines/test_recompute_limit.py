"""Tests when a recompute limits the micro-batches of sources: never if a flow has a watermark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("grpc", reason='pipelines need PySpark: pip install "penstock[spark]"')

from pyspark.sql import SparkSession

from penstock.spark.pipelines import driver
from penstock.spark.pipelines.project import RECOMPUTE_LIMIT_SETTING
from penstock.spark.pipelines.recompute_scope import PipelineParts, batch_limit, has_watermark


class Definitions:
    def check(self) -> None:
        pass

    def check_places(self, _storage: str) -> None:
        pass

    def check_logs(self, _storage: str) -> None:
        pass


class Recomputing(driver.Pipeline):
    """Notes the limit of each graph that is defined, and runs none."""

    limits: list[str]

    @contextmanager
    def _defined(self, limit: str = "") -> Iterator[Any]:
        self.limits.append(limit)
        yield "graph", Definitions()

    def _started(self, *_given: Any, **_more: Any) -> Iterator[Any]:
        return iter(())


def limits_of_two_rounds(
    monkeypatch: pytest.MonkeyPatch, watermarks: list[str], settings: dict[str, str]
) -> list[str]:
    parts = PipelineParts(["sums"], [], [], watermarks=watermarks)
    monkeypatch.setattr(driver, "pipeline_parts", lambda *_: parts)
    monkeypatch.setattr(driver, "table_identifiers", lambda *_: ["sums"])
    spark: Any = SimpleNamespace(classic=object(), session=object())
    spec: Any = SimpleNamespace(configuration=settings, catalog=None, storage="/s")
    events: Any = SimpleNamespace(write=print)
    pipeline = Recomputing(Path("spark-pipeline.yml"), spec, spark, events)
    pipeline.limits = []
    for _ in range(2):
        pipeline.recompute(["sums"], ["sums"])
    return pipeline.limits


def test_sources_are_limited_after_the_plan_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits_of_two_rounds(monkeypatch, [], {}) == ["", "256m", "256m"]


@pytest.mark.parametrize("settings", [{}, {RECOMPUTE_LIMIT_SETTING: "1m"}])
def test_no_source_is_limited_if_any_flow_has_a_watermark(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    """Batches are divided by offsets, so rows of a partition that is read slowly would be late."""
    assert limits_of_two_rounds(monkeypatch, ["sums"], settings) == ["", "", ""]


def test_the_limit_of_the_project_applies() -> None:
    assert batch_limit(PipelineParts([], [], []), "1m") == "1m"
    assert batch_limit(PipelineParts([], [], [], watermarks=["sums"]), "1m") == ""


def test_spark_shows_a_watermark_in_the_plan(spark: SparkSession) -> None:
    """Also one that a view has, or that is below other operators."""
    spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute").selectExpr(
        "value AS number", "timestamp"
    ).createOrReplaceTempView("recompute_limit_view")
    plain = spark.readStream.format("rate").load().groupBy("value").count()
    marked = spark.sql("SELECT number, count(*) FROM recompute_limit_view GROUP BY number")
    plans = [each._jdf.queryExecution().analyzed().toString() for each in (plain, marked)]
    assert [has_watermark(str(plan)) for plan in plans] == [False, True]
