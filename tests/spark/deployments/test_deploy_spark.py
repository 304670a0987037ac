"""Tests deploying new versions with real Spark: what happens to the checkpoint of a flow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock import Admin, Producer
from penstock.testing import Broker
from spark.deployments.deployed import WAIT_S, WorkerProcess, make_project, table_files

pytestmark = [pytest.mark.timeout(1_500), pytest.mark.usefixtures("java")]
PENSTOCK = [sys.executable, "-m", "penstock.cli.main", "pipeline"]
CODE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.table
def copied():
    return (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", spark.conf.get("spark.penstock.bootstrap"))
        .option("subscribe", "{name}-in")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("CAST(value AS STRING) AS value")
    )
"""


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker of its own: workers share all deployments of their cluster."""
    with Broker() as running:
        yield running


class Commands:
    """The commands of a user in the folder of a project."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self._folder = folder
        self._env = {**os.environ, "PENSTOCK_BOOTSTRAP": broker.bootstrap}

    def __call__(self, *words: str) -> Any:
        ended = subprocess.run(
            [*PENSTOCK, *words, "--json"],
            cwd=self._folder,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)


def rows(data: Path) -> int:
    (table,) = [each for each in data.rglob("spark-warehouse/**/copied") if each.is_dir()]
    return sum(pq.read_metadata(each).num_rows for each in table_files(table))


def checkpoints(data: Path) -> list[str]:
    (flow,) = data.rglob("_checkpoints/**/copied/copied")
    return sorted(each.name for each in flow.iterdir())


def test_a_flow_keeps_its_checkpoint_or_begins_again(broker: Broker, tmp_path: Path) -> None:
    folder, data = tmp_path / "project", tmp_path / "data"
    make_project(folder, "views", CODE)
    with Admin(broker.bootstrap) as admin:
        admin.create_topic("views-in", 2)
    with Producer(broker.bootstrap) as producer:
        for value in (b"a", b"b", b"c"):
            producer.send("views-in", value)
    penstock = Commands(broker, folder)
    worker = WorkerProcess(broker, data, "--no-spare")
    try:
        assert penstock("deploy", "--wait")["version"] == 1
        assert (rows(data), checkpoints(data)) == (3, ["0"])

        make_project(folder, "views", CODE.replace("AS STRING) AS value", "AS STRING) value"))
        made = penstock("deploy", "--wait")
        assert made["flows"][0]["outcome"] == "kept"
        assert (rows(data), checkpoints(data)) == (3, ["0"])

        made = penstock("deploy", "--reset", "copied", "--yes", "--wait")
        assert made["version"] == 3
        assert (rows(data), checkpoints(data)) == (3, ["0", "1"]), "it read everything again"

        assert penstock("rollback", "views", "--to", "1")["version"] == 1
        what = [each["what"] for each in penstock("history", "views")["events"]]
        assert what.count("deployed") == 3
        assert "rolled-back" in what
    finally:
        worker.close()
