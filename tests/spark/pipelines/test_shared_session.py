"""Tests that all pipeline tests of a run share one Spark: it takes seconds to start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from penstock.testing.slowness import patient

pytestmark = [pytest.mark.timeout(1_200), pytest.mark.usefixtures("java")]
RUN_S = 400
FILES = {
    "spark-pipeline.yml": """\
name: shop
storage: file:///unused
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.penstock.topics: "clicks:1"
""",
    "transformations/numbers.py": """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession


@dp.materialized_view
def numbers():
    return SparkSession.active().range(3)
""",
    "tests/test_first.py": """\
def test_one(penstock_pipeline):
    assert len(penstock_pipeline.run().table("numbers")) == 3


def test_two(penstock_pipeline):
    assert len(penstock_pipeline.run().table("numbers")) == 3
""",
    "tests/test_second.py": """\
def test_three(penstock_pipeline):
    assert len(penstock_pipeline.run().table("numbers")) == 3


def test_four(penstock_spark):
    assert penstock_spark.range(3).count() == 3
""",
    "pytest.ini": "[pytest]\n",
    # Counts what Spark starts, whoever starts it.
    "counting.py": """\
import os

from pyspark.core import context


def count(what):
    with open(os.environ["COUNTED"], "a") as file:
        file.write(what + "\\n")


launch, init = context.launch_gateway, context.SparkContext._do_init


def launch_gateway(*args, **more):
    count("JVM")
    return launch(*args, **more)


def do_init(self, *args, **more):
    count("Spark")
    return init(self, *args, **more)


context.launch_gateway, context.SparkContext._do_init = launch_gateway, do_init
""",
}
OWN_SPARK = """\
import pytest
from penstock.testing.pipelines.session import shared_spark


@pytest.fixture
def penstock_spark():
    with shared_spark() as session:
        yield session
"""


def counted(project: Path, **more: str) -> Counter[str]:
    """Runs the tests of the project in a process. Returns how often something was started."""
    for name, text in {**FILES, **more}.items():
        (path := project / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    paths = [str(project), *filter(None, [os.environ.get("PYTHONPATH")])]
    counts = project / "counts"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "counting", "-p", "no:cacheprovider", "tests"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COUNTED": str(counts)},
        capture_output=True,
        text=True,
        timeout=patient(RUN_S),
        check=False,
    )
    assert "4 passed" in ran.stdout, ran.stdout + ran.stderr
    return Counter(counts.read_text().split())


def test_all_tests_of_a_run_share_one_spark(tmp_path: Path) -> None:
    """Four tests in two files start one JVM and one Spark in it."""
    assert counted(tmp_path) == {"JVM": 1, "Spark": 1}


def test_a_spark_for_each_test_would_be_noticed(tmp_path: Path) -> None:
    """A project that starts its own for each test: Spark keeps the JVM of the process."""
    found = counted(tmp_path, **{"tests/conftest.py": OWN_SPARK})
    assert found == {"JVM": 1, "Spark": 4}
