"""Tests the project templates: each project's own tests on the shared Spark, and a real run."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock import Admin
from penstock.spark.options import parse_sink
from penstock.spark.pipelines.project import find_project
from penstock.spark.pipelines.scaffold import make_project
from penstock.spark.pipelines.templates import TEMPLATES
from penstock.testing import Broker
from penstock.testing.pipelines import PipelineTest
from penstock.testing.slowness import patient

pytestmark = pytest.mark.timeout(1_500)
RUN_S = 900
FILLED = {
    "clickstream": ["page_views", "page_counts"],
    "change-data": ["customer_changes", "customers"],
    "sessions": ["sessions"],
    "enrichment": ["products", "priced_orders"],
    "alerts": ["minutes"],
    "features": ["purchases", "customer_features"],
}
"""Template -> the tables that have rows after a run."""


@pytest.mark.parametrize("template", TEMPLATES)
def test_batches_are_bounded_and_sinks_state_their_delivery(template: str) -> None:
    made = TEMPLATES[template].render("shop", "localhost:9092", "file:///s")
    code = "".join(text for path, text in made.items() if path.startswith("transformations/"))
    streams = code.count('readStream.format("penstock")')
    assert streams == code.count('.option("maxBytesPerTrigger", "64m")') > 0
    sinks = re.findall(r'"topic": "(.*)"', code)
    assert len(sinks) == code.count("create_sink(") == code.count('"delivery": "at_least_once"')
    for topic in sinks:
        # What the README says instead is possible.
        chosen = re.findall(r'^    "(delivery|sink)": "(.*)",$', made["README.md"], re.MULTILINE)
        assert dict(chosen) == {"delivery": "exactly_once", "sink": topic}
        parse_sink({"kafka.bootstrap.servers": "localhost:9092", "topic": topic, **dict(chosen)})


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_tests_of_a_template_pass(template: str, tmp_path: Path, penstock_spark: Any) -> None:
    """As `penstock pipeline test` runs them, but in this process and on its Spark."""
    make_project(tmp_path, "shop", "localhost:9092", template)
    found: dict[str, Callable[[PipelineTest], None]] = {
        name: value
        for name, value in runpy.run_path(str(tmp_path / "shop/tests/test_pipeline.py")).items()
        if name.startswith("test_")
    }
    assert found, "the template has no tests"
    for test in found.values():
        with PipelineTest(tmp_path / "shop", penstock_spark) as pipeline:
            test(pipeline)


@pytest.mark.skipif(
    not os.environ.get("PENSTOCK_LONG"), reason="several minutes: set PENSTOCK_LONG=1"
)
@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_runs_on_a_real_broker(
    template: str, tmp_path: Path, broker: Broker, admin: Admin
) -> None:
    """Its generator creates the topics with their partitions, and a run fills its tables."""
    name = f"real-{template}"
    make_project(tmp_path, name, broker.bootstrap, template)
    env = {
        **os.environ,
        "PENSTOCK_BOOTSTRAP": broker.bootstrap,
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    run = [sys.executable, "-m", "penstock.cli.main", "pipeline", "run", "--master", "local[2]"]
    for command in ([sys.executable, "generate.py"], run):
        ended = subprocess.run(
            command,
            cwd=tmp_path / name,
            env=env,
            capture_output=True,
            text=True,
            timeout=patient(RUN_S),
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
    topics = find_project(tmp_path / name).topics
    described: dict[str, Any] = dict(admin.describe_topics(list(topics)))
    assert {topic: len(described[topic].partitions) for topic in topics} == topics
    for table in FILLED[template]:
        assert pq.read_table(str(tmp_path / name / "spark-warehouse" / table)).num_rows > 0
