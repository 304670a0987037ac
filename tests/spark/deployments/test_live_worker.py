"""Tests that the streams of a continuous pipeline run between its rounds, on real Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from penstock.runtime import SystemClock
from penstock.spark.deployments.model import Schedule, Status
from penstock.testing import Broker
from spark.deployments.deployed import (
    WAIT_S,
    Cluster,
    NewVersion,
    WorkerProcess,
    make_project,
    run,
)

pytestmark = [pytest.mark.timeout(1_800), pytest.mark.usefixtures("java")]

CODE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

spark = SparkSession.active()
bootstrap = spark.conf.get("spark.penstock.bootstrap")
dp.create_sink(
    "out",
    "penstock",
    {{
        "kafka.bootstrap.servers": bootstrap,
        "topic": "{name}-out",
        "delivery": "exactly_once",
        "sink": "{name}-copy",
    }},
)


@dp.table
def seen():
    return (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "{name}-in")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("key", "value")
    )


@dp.materialized_view
def counted():
    return spark.read.table("seen").agg(sf.count("*").alias("number"))


@sf.udf("binary")
def checked(value):
    if value == b"999":
        raise ValueError("the poison record")
    return bytes(value)


@dp.append_flow(target="out")
def copy():
    return spark.readStream.table("seen").select("key", checked("value").alias("value"))
"""


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker of its own: workers share all deployments of their cluster."""
    with Broker() as running:
        yield running


def count_in(table: Path) -> int:
    """Returns the number that the view shows; -1 while Spark replaces it."""
    try:
        (number,) = ds.dataset(table, format="parquet").to_table()["number"].to_pylist()
    except (OSError, ValueError, KeyError):
        return -1
    return int(number)


async def wait_for_count(table: Path, number: int) -> None:
    clock = SystemClock()
    until = clock.monotonic() + WAIT_S
    while (found := await asyncio.to_thread(count_in, table)) != number:
        assert clock.monotonic() < until, f"the view shows {found} of {number} records"
        await asyncio.sleep(0.1)


def states(status: Status) -> dict[str, str]:
    return {flow["name"]: flow["status"] for flow in status.run.get("flows", ())}


def test_streams_run_between_rounds_and_views_are_computed_in_them(
    broker: Broker, tmp_path: Path
) -> None:
    """Records that come after the first round arrive exactly once, through a table and a sink. A
    schedule goes on with the same checkpoints. An error of a stream names the line of the code."""
    worker = WorkerProcess(broker, tmp_path / "data", "--no-spare")
    view = tmp_path / "data" / "storage" / "copy" / "spark-warehouse" / "counted"
    archive = make_project(tmp_path / "project", "copy", CODE)
    live = Schedule(continuous=True, interval_s=0.2)
    new = NewVersion("copy", "project", "spark-pipeline.yml", archive, schedule=live)

    async def main(cluster: Cluster) -> None:
        await cluster.catalog.deploy(new)
        running = {"seen": "RUNNING", "copy": "RUNNING"}
        await cluster.status("copy", lambda status: states(status).items() >= running.items())
        for first in (0, 100):
            await cluster.send("copy", first, 100)
            assert await cluster.received("copy", first + 100) == list(range(first + 100))
        await wait_for_count(view, 200)

        await cluster.change("copy", schedule=Schedule(every_s=1.0))
        await cluster.state("copy", "WAITING FOR ITS TIME")
        await cluster.send("copy", 200, 50)
        assert await cluster.received("copy", 250) == list(range(250))
        await wait_for_count(view, 250)

        await cluster.change("copy", schedule=live)
        await cluster.status("copy", lambda status: states(status).items() >= running.items())
        await cluster.send("copy", 999, 1)
        status = await cluster.status("copy", lambda status: status.failures >= 1)
        assert "the poison record" in status.error
        assert "transformations/copy.py, line" in status.error

    try:
        run(broker, main)
    finally:
        worker.close()
