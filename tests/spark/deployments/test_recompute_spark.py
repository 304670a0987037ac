"""Tests a recompute with real Spark: new code, records that arrive, swap, kills, the way back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from penstock import Admin
from penstock.spark.deployments.change_plan import NewVersion
from penstock.spark.deployments.flow_fingerprints import project_flows
from penstock.spark.deployments.generations import (
    RecomputeOrder,
    begun,
    swap_asked,
    swapped_back,
)
from penstock.spark.deployments.model import Deployment, Schedule, Status
from penstock.testing import Broker
from spark.deployments.deployed import Cluster, WorkerProcess, make_project, run

pytestmark = [pytest.mark.timeout(2_400), pytest.mark.usefixtures("java")]
NAME = "sums"
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
        .option("startingOffsets", "START")
        .load()
        .selectExpr("CAST(CAST(value AS STRING) AS LONG) * FACTOR AS value")
    )


@dp.table
def shown():
    return spark.readStream.table("copied")


@dp.materialized_view
def totals():
    return spark.read.table("copied").selectExpr("sum(value) AS total")
"""


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker of its own: workers share all deployments of their cluster."""
    with Broker() as running:
        with Admin(running.bootstrap) as admin:
            admin.create_topic(f"{NAME}-in", 2)
        yield running


def version_of(folder: Path, factor: int, start: str = "earliest") -> NewVersion:
    code = CODE.replace("FACTOR", str(factor)).replace("START", start)
    archive = make_project(folder / str(factor), NAME, code)
    path = "transformations/copy.py"
    flows, _ = project_flows({path: code.format(name=NAME)}, [path], "spark_catalog.default")
    schedule = Schedule(continuous=True, interval_s=0.2)
    return NewVersion(
        NAME, "project", "spark-pipeline.yml", archive, flows=flows, schedule=schedule
    )


def order(swap: str = "when-caught-up") -> RecomputeOrder:
    assert swap in ("manual", "when-caught-up")
    return RecomputeOrder(("copied", "shown"), swap, 86_400_000)  # type: ignore[arg-type]


def table(place: str, name: str) -> list[int]:
    """Returns the values of a table that files with its log of batches have, as Spark does."""
    folder = Path(place) / "spark-warehouse" / name
    log = folder / "_spark_metadata"
    named = {
        line.split('"path":"')[1].split('"')[0].rpartition("/")[2]
        for batch in (log.iterdir() if log.is_dir() else ())
        if not batch.name.startswith(".")
        for line in batch.read_text().splitlines()[1:]
    }
    files = [each for each in folder.glob("*.parquet") if each.name in named]
    return sorted(value for each in files for value in pq.read_table(each)["value"].to_pylist())


async def has(cluster: Cluster, expected: list[int], generation: int | None = None) -> Status:
    """Waits until the tables that are served have exactly these values."""

    def check(status: Status) -> bool:
        if generation is not None and status.generation != generation:
            return False
        return bool(status.place) and all(
            table(status.place, name) == expected for name in ("copied", "shown")
        )

    return await cluster.status(NAME, check)


async def found(cluster: Cluster, storage: str, place: str) -> None:
    """Waits until readers find the tables of this generation."""
    await cluster.status(NAME, lambda _: Path(storage, "current").read_text() == f"{place}\n")


async def changed(cluster: Cluster, change: object, what: str) -> Deployment:
    assert callable(change)
    return await cluster.catalog.change(NAME, change, what, "")


async def swapped_to(cluster: Cluster, version: int) -> Status:
    """Waits until a round of the new tables was completed after the swap."""
    return await cluster.status(
        NAME, lambda status: status.version == version and status.good_version == version
    )


def test_new_tables_take_the_place_of_the_old_ones(broker: Broker, tmp_path: Path) -> None:
    """With records that arrive all the time, and with the way back."""

    async def work(cluster: Cluster) -> None:
        await cluster.catalog.deploy(version_of(tmp_path, 1))
        await cluster.send(NAME, 0, 500)
        first = await has(cluster, list(range(500)))
        plan = version_of(tmp_path, 10)
        await cluster.catalog.deploy(
            NewVersion(
                NAME,
                "project",
                plan.entry,
                plan.archive,
                flows=plan.flows,
                recompute=order("manual"),
            )
        )
        sent = 500
        while True:  # Records arrive while both drivers run.
            await cluster.send(NAME, sent, 50)
            sent += 50
            status = cluster.catalog.statuses[NAME]
            if status.recompute.get("caught_up") and sent >= 800:
                break
        assert status.version == 1, "the old version is served until someone swaps"
        await has(cluster, list(range(sent)), generation=0)
        await changed(cluster, swap_asked, "swap-asked")
        await cluster.send(NAME, sent, 50)
        sent += 50
        await swapped_to(cluster, 2)
        served = await has(cluster, [10 * each for each in range(sent)])
        assert served.generation > 0
        assert served.place != first.place
        await found(cluster, first.place, served.place)
        kept = cluster.catalog.deployment(NAME).kept
        assert kept is not None
        assert (kept.generation, kept.version) == (0, 1)

        await changed(cluster, lambda old: swapped_back(old, kept.until_ms), "swapped-back")
        await cluster.send(NAME, sent, 50)
        sent += 50
        await has(cluster, list(range(sent)), generation=0)
        await found(cluster, first.place, first.place)
        told = await cluster.whats(NAME)
        assert told.index("recompute") < told.index("caught-up") < told.index("swapped")

    worker = WorkerProcess(broker, tmp_path / "data", "--no-spare")
    try:
        run(broker, work)
    finally:
        worker.close()


@pytest.mark.skipif(
    not os.environ.get("PENSTOCK_LONG"), reason="several minutes: set PENSTOCK_LONG=1"
)
def test_kills_lose_nothing(broker: Broker, tmp_path: Path) -> None:
    """Drivers and the worker are killed before, in and after the swap."""
    workers = [WorkerProcess(broker, tmp_path / "data", "--no-spare")]

    def kill_worker() -> None:
        workers[-1].close()
        workers.append(WorkerProcess(broker, tmp_path / "data", "--no-spare"))

    async def stage(cluster: Cluster, *stages: str) -> None:
        await cluster.status(
            NAME,
            lambda status: (
                status.recompute.get("stage") in stages or cluster.catalog.deployment(NAME).kept
            ),
        )

    async def work(cluster: Cluster) -> None:
        await cluster.catalog.deploy(version_of(tmp_path, 1))
        await cluster.send(NAME, 0, 300)
        await has(cluster, list(range(300)))
        recomputed = begun(cluster.catalog.deployment(NAME), 1, order("manual"), 1)
        generation = recomputed.generations
        await changed(cluster, lambda old: begun(old, 1, order("manual"), 1), "recompute")
        await cluster.status(NAME, lambda status: status.recompute.get("state") == "RUNNING")
        workers[-1].kill_drivers()  # Both of them, in the middle of their work.
        await cluster.send(NAME, 300, 100)
        await stage(cluster, "caught up")
        await asyncio.to_thread(kill_worker)
        await changed(cluster, swap_asked, "swap-asked")
        await stage(cluster, "waiting for the running round", "last round", "swapping")
        await asyncio.to_thread(kill_worker)
        await cluster.send(NAME, 400, 100)
        await cluster.status(NAME, lambda _: cluster.catalog.deployment(NAME).kept)
        await asyncio.to_thread(kill_worker)
        await cluster.send(NAME, 500, 100)
        served = await has(cluster, list(range(600)), generation=generation)
        assert served.place.endswith(f"_generations/{generation}")

    try:
        run(broker, work)
    finally:
        workers[-1].close()


def test_a_table_that_would_be_empty_is_refused_by_the_driver(
    broker: Broker, tmp_path: Path
) -> None:
    async def work(cluster: Cluster) -> None:
        await cluster.catalog.deploy(version_of(tmp_path, 1))
        await cluster.send(NAME, 0, 10)
        await has(cluster, list(range(10)))
        plan = version_of(tmp_path, 7, "latest")
        await cluster.catalog.deploy(
            NewVersion(
                NAME, "project", plan.entry, plan.archive, flows=plan.flows, recompute=order()
            )
        )
        await cluster.status(NAME, lambda _: cluster.catalog.deployment(NAME).recompute is None)
        deployment = cluster.catalog.deployment(NAME)
        assert (deployment.version, deployment.generation, deployment.recompute) == (1, 0, None)
        (told,) = [e.text for e in await cluster.events(NAME) if e.what == "recompute-refused"]
        assert "startingOffsets to earliest" in told
        await cluster.send(NAME, 10, 10)
        await has(cluster, list(range(20)), generation=0)

    worker = WorkerProcess(broker, tmp_path / "data", "--no-spare")
    try:
        run(broker, work)
    finally:
        worker.close()
