"""Tests that executors of a standalone cluster can import the modules of a project."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from penstock import Producer
from penstock.testing import Broker
from penstock.testing.slowness import patient
from spark.cluster.processes import HOST, JAVA_OPTIONS, Standalone

pytestmark = pytest.mark.timeout(900)
RUN_S = 480
FILES = {
    "spark-pipeline.yml": """\
name: graded
storage: storage
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.sql.shuffle.partitions: "1"
""",
    "rules/__init__.py": "",
    "rules/grades.py": """\
def grade(seconds):
    return "long" if seconds > 2 else "short"
""",
    "transformations/views.py": """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

spark = SparkSession.active()


@sf.udf("string")
def grade(value):
    from rules import grades

    return grades.grade(int(bytes(value)))


@dp.table
def views():
    return (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", spark.conf.get("spark.penstock.bootstrap"))
        .option("subscribe", "TOPIC")
        .option("startingOffsets", "earliest")
        .load()
        .select("value", grade("value").alias("grade"))
    )


@dp.materialized_view
def again():
    return spark.read.table("views").select(grade("value").alias("grade"))
""",
}


@pytest.fixture(scope="module")
def one_core(java: None) -> Iterator[Standalone]:
    """A cluster of its own: an application of other tests may hold the cores of theirs."""
    with Standalone(workers=1) as running:
        yield running


def test_a_flow_uses_a_module_of_the_project_on_an_executor(
    one_core: Standalone, broker: Broker, tmp_path: Path
) -> None:
    """In a streaming table and in a materialized view. Executors work in a folder of their own,
    where the project is not."""
    topic = broker.new_topic()
    with Producer(broker.bootstrap) as producer:
        for number in range(5):
            producer.send(topic, b"%d" % number)
    for name, text in FILES.items():
        (path := tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("TOPIC", topic))
    settings = {
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.driver.memory": "700m",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.executor.memory": "600m",
        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    }
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "penstock.cli.main", "pipeline", "run"),
            *("--bootstrap", broker.bootstrap, "--master", one_core.url),
            *(word for each in settings.items() for word in ("--conf", "=".join(each))),
        ],
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "SPARK_LOCAL_IP": HOST},
        capture_output=True,
        text=True,
        timeout=patient(RUN_S),
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for table in ("views", "again"):
        found = pq.read_table(str(tmp_path / "spark-warehouse" / table))
        assert Counter(found["grade"].to_pylist()) == {"long": 2, "short": 3}
