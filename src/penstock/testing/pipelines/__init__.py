"""Tests of pipelines: rows in, rows out, on a Spark that the whole test run shares.

    def test_long_views_are_sent(penstock_pipeline):
        penstock_pipeline.given("views", [{"user": "ann", "page": "/", "seconds": 30}])
        penstock_pipeline.run()
        penstock_pipeline.table("page_counts").expect([{"page": "/", "views": 1}])
        penstock_pipeline.sent("long-views").expect([{"key": "ann", "value": {"page": "/"}}])

A test runs the project's own definitions, without a broker. In pytest the fixtures
`penstock_pipeline` and `penstock_spark` are available without an import.
"""

from __future__ import annotations

from penstock.testing.pipelines.failures import PipelineTestFailed
from penstock.testing.pipelines.pipeline_test import PipelineTest
from penstock.testing.pipelines.records import GivenRecord, record
from penstock.testing.pipelines.rows import Rows

__all__ = ["GivenRecord", "PipelineTest", "PipelineTestFailed", "Rows", "record"]
