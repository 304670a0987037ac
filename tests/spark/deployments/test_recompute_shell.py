"""Tests recomputes with real workers and a real broker, and with drivers that only pretend.

The driver of these tests computes tables in milliseconds. It locks its storage, and leaves a note
if another driver has it. So drivers and workers can be killed at many moments.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.deployments.archive import pack
from penstock.spark.deployments.change_plan import NewVersion
from penstock.spark.deployments.generations import RecomputeOrder, expired, swapped_back
from penstock.spark.deployments.model import Schedule, Status
from penstock.testing import Broker
from spark.deployments.deployed import SPEC, Cluster, WorkerProcess, run

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("java")]
NAME = "sums"
ORDER = RecomputeOrder(("copied",), "when-caught-up", 3_600_000)
WORKER = """
import runpy
from penstock.spark.deployments import driver_process
driver_process.MODULE = "pretended_driver"
runpy.run_module("penstock.cli.main", run_name="__main__")
"""
PROGRAM = [sys.executable, "-c", WORKER, "pipeline", "worker"]
DRIVER = """
import fcntl, json, os, pathlib, sys, threading

out = os.fdopen(int(sys.argv[sys.argv.index("--events") + 1]), "w")
topic = pathlib.Path(os.environ["PRETENDED_TOPIC"])
storage = None


def tell(**event):
    out.write(json.dumps(event) + "\\n")
    out.flush()


def begin(assigned):
    global storage, lock
    storage = pathlib.Path(assigned["storage"].removeprefix("file://"))
    lock = open(storage / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        (topic.parent / "two-drivers").write_text(str(storage))


def round():
    end = len(topic.read_text().splitlines())
    table = storage / "table.json"
    rows = json.loads(table.read_text()) if table.exists() else []
    rows += [FACTOR * number for number in range(len(rows), end)]
    threading.Event().wait(0.05)
    (storage / "table.partial").write_text(json.dumps(rows))
    os.replace(storage / "table.partial", table)


for line in sys.stdin:
    told = json.loads(line)
    if "assign" in told:
        begin(told["assign"])
        tell(event="ready")
    if "round" in told:
        tell(event="round", number=1)
        round()
        tell(event="waiting")
    if "stop" in told:
        tell(event="end", state="STOPPED")
        break
"""


class World:
    """A topic that is a file, a worker, and the tables that its drivers write."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self._broker = broker
        self._folder = folder
        self.topic = folder / "topic"
        self.topic.write_text("")
        self.sent = 0
        self.worker = self.start()

    def start(self, *options: str) -> WorkerProcess:
        data = self._folder / "data"
        return WorkerProcess(self._broker, data, "--no-spare", *options, program=PROGRAM)

    def replace_worker(self, *options: str) -> None:
        self.worker.close()
        self.worker = self.start(*options)

    def send(self, count: int = 10) -> None:
        with self.topic.open("a") as file:
            file.write("x\n" * count)
        self.sent += count

    def kill_drivers(self) -> None:
        self.worker.kill_drivers()

    def rows(self, place: str) -> list[int]:
        table = Path(place, "table.json")
        found = json.loads(table.read_text()) if place and table.exists() else []
        assert isinstance(found, list)
        return found

    def is_found(self, place: str) -> bool:
        """Whether readers find these tables."""
        return (Path(place).parents[1] / "current").read_text() == f"{place}\n"

    def check(self) -> None:
        assert not (self._folder / "two-drivers").exists(), "two drivers had one storage"


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker of its own: workers share all deployments of their cluster."""
    with Broker() as running:
        yield running


@pytest.fixture
def world(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("PRETENDED_TOPIC", str(tmp_path / "topic"))
    made = World(broker, tmp_path)
    try:
        yield made
    finally:
        made.worker.close()
        made.check()


def version_of(folder: Path, factor: int, order: RecomputeOrder | None = None) -> NewVersion:
    project = folder / f"project-{factor}"
    (project / "transformations").mkdir(parents=True, exist_ok=True)
    (project / "transformations" / "flows.py").write_text("")
    (project / "spark-pipeline.yml").write_text(SPEC.format(name=NAME))
    (project / "pretended_driver.py").write_text(DRIVER.replace("FACTOR", str(factor)))
    return NewVersion(
        NAME,
        "project",
        "spark-pipeline.yml",
        pack(project),
        schedule=None if order else Schedule(continuous=True, interval_s=0.05),
        recompute=order,
    )


async def served(cluster: Cluster, world: World, factor: int, **fields: Any) -> Status:
    """Waits until the served table has everything, computed with this factor."""
    expected = [factor * number for number in range(world.sent)]
    return await cluster.status(
        NAME,
        lambda status: (
            world.rows(status.place) == expected
            and all(getattr(status, name) == value for name, value in fields.items())
        ),
    )


async def stage(cluster: Cluster, *stages: str) -> None:
    """Waits for a stage of the recompute, or for its end."""
    await cluster.status(
        NAME,
        lambda status: (
            status.recompute.get("stage") in stages
            or cluster.catalog.deployment(NAME).recompute is None
        ),
    )


def test_recomputes_with_kills_at_every_stage(broker: Broker, world: World, tmp_path: Path) -> None:
    async def work(cluster: Cluster) -> None:
        world.send(100)
        await cluster.catalog.deploy(version_of(tmp_path, 1))
        await served(cluster, world, 1)
        for factor, kill_at in enumerate(("computing", "caught up", "last round", "swapping"), 2):
            await cluster.catalog.deploy(version_of(tmp_path, factor, ORDER))
            await stage(cluster, kill_at)
            world.kill_drivers()
            world.send()
            await cluster.status(NAME, lambda _: cluster.catalog.deployment(NAME).recompute is None)
            world.kill_drivers()
            world.send()
            status = await served(cluster, world, factor, version=factor)
            assert status.generation == cluster.catalog.deployment(NAME).generation
            world.check()
        told = await cluster.whats(NAME)
        assert told.count("swapped") == 4

    run(broker, work)


def test_a_worker_that_takes_over_finishes_the_recompute(
    broker: Broker, world: World, tmp_path: Path
) -> None:
    async def work(cluster: Cluster) -> None:
        world.send(100)
        await cluster.catalog.deploy(version_of(tmp_path, 1))
        await served(cluster, world, 1)
        await cluster.catalog.deploy(version_of(tmp_path, 2, ORDER))
        await stage(cluster, "computing")
        world.replace_worker()
        world.send()
        await served(cluster, world, 2, version=2)
        world.replace_worker()
        world.send()
        await served(cluster, world, 2, version=2)
        await cluster.status(NAME, lambda status: world.is_found(status.place))

    run(broker, work)


def test_the_way_back_and_the_deletion_of_what_is_not_needed(
    broker: Broker, world: World, tmp_path: Path
) -> None:
    async def work(cluster: Cluster) -> None:
        world.send(100)
        await cluster.catalog.deploy(version_of(tmp_path, 1))
        first = await served(cluster, world, 1)
        await cluster.catalog.deploy(version_of(tmp_path, 2, ORDER))
        second = await served(cluster, world, 2, version=2)
        await cluster.catalog.change(
            NAME, lambda old: swapped_back(old, 4_000_000_000_000), "swapped-back", ""
        )
        world.send()
        await served(cluster, world, 1, version=1, generation=0)
        assert world.rows(second.place), "it is kept"
        await cluster.catalog.change(
            NAME, lambda old: expired(old, 9_000_000_000_000), "deleted-old-tables", ""
        )
        await cluster.status(NAME, lambda _: not os.path.exists(second.place))
        await cluster.status(NAME, lambda status: status.place == first.place)
        world.send()
        await served(cluster, world, 1, generation=0)

    run(broker, work)


def test_a_recompute_waits_for_memory_and_the_pipeline_goes_on(
    broker: Broker, world: World, tmp_path: Path
) -> None:
    async def work(cluster: Cluster) -> None:
        world.replace_worker("--memory", "2047")
        world.send(100)
        await cluster.catalog.deploy(version_of(tmp_path, 1))
        await served(cluster, world, 1)
        await cluster.catalog.deploy(version_of(tmp_path, 2, ORDER))
        await cluster.status(
            NAME, lambda status: status.recompute.get("state") == "WAITING FOR MEMORY"
        )
        world.send()
        await served(cluster, world, 1, version=1)
        world.replace_worker("--memory", "2048")
        await served(cluster, world, 2, version=2)

    run(broker, work)
