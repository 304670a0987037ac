"""Tests what docs/PIPELINES.md says about schema changes and records that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing.pipelines import PipelineTest
from spark.pipelines.test_pipeline_test import make


@pytest.fixture
def penstock_pipeline_project(tmp_path: Path) -> Path:
    project = make(
        tmp_path,
        orders_py="""
SCHEMA = {"startingOffsets": "earliest", "valueFormat": "json",
          "valueSchema": "id BIGINT, price DOUBLE"}


@dp.table
def orders():
    kept = stream("orders", badRecords="deadletter", deadLetterTopic="orders-dead", **SCHEMA)
    return kept.select("value.*")


@dp.table
def checked():
    return stream("strict", **SCHEMA).select("value.*")
""",
    )
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("clicks:3, alerts:1", "orders:1, strict:1"))
    return project


def test_a_schema_change_in_mid_stream_loses_no_record(penstock_pipeline: PipelineTest) -> None:
    """A field that is new is left out, a field that is gone is null, and a record whose field has
    another type is a dead letter. The stream goes on."""
    pipeline = penstock_pipeline
    pipeline.given("orders", [{"id": 1, "price": 2.5}]).run()
    pipeline.given("orders", [{"id": 2, "price": 3.5, "currency": "EUR"}, {"id": 3}])
    pipeline.given("orders", [{"id": 4, "price": {"amount": 1, "currency": "EUR"}}])
    pipeline.given("orders", [{"id": 5, "price": 4}]).run()
    pipeline.table("orders").expect(
        [
            {"id": 1, "price": 2.5},
            {"id": 2, "price": 3.5},
            {"id": 3, "price": None},
            {"id": 5, "price": 4.0},
        ]
    )
    (dead,) = pipeline.sent("orders-dead").select("value")
    assert dead["value"] == {"id": 4, "price": {"amount": 1, "currency": "EUR"}}


def test_a_record_that_cannot_be_read_stops_the_stream_by_default(
    penstock_pipeline: PipelineTest,
) -> None:
    """The error names the record, so that it can be looked at. Nothing after it is skipped."""
    pipeline = penstock_pipeline
    pipeline.given("strict", [{"id": 1, "price": 1.0}]).run()
    pipeline.given("strict", ["no JSON at all", {"id": 2, "price": 2.0}])
    with pytest.raises(Exception, match=r"offset 1\b"):
        pipeline.run()
    pipeline.table("checked").expect([{"id": 1, "price": 1.0}])
