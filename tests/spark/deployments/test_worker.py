"""Tests deployed pipelines on real workers, real brokers and real Spark."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.spark.deployments.archive import pack
from penstock.spark.deployments.model import Schedule
from penstock.testing import Broker
from penstock.testing.slowness import patient
from spark.deployments.deployed import (
    COPY,
    SCRIPT,
    Cluster,
    NewVersion,
    WorkerProcess,
    make_project,
    run,
    wait_until_gone,
)

pytestmark = [pytest.mark.timeout(1_800), pytest.mark.usefixtures("java")]
long = pytest.mark.skipif(
    not os.environ.get("PENSTOCK_LONG"), reason="several minutes: set PENSTOCK_LONG=1"
)
FAST = Schedule(continuous=True, interval_s=0.2)


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker of its own: workers share all deployments of their cluster."""
    with Broker() as running:
        yield running


def project(folder: Path, code: str = COPY) -> NewVersion:
    archive = make_project(folder, "copy", code)
    return NewVersion("copy", "project", "spark-pipeline.yml", archive, schedule=FAST)


def test_a_deployed_pipeline_survives_its_driver_and_is_stopped_and_started(
    broker: Broker, tmp_path: Path
) -> None:
    """Every record arrives exactly once. The history and the log tell what happened."""
    worker = WorkerProcess(broker, tmp_path / "data", "--no-spare")

    async def main(cluster: Cluster) -> None:
        await cluster.catalog.deploy(project(tmp_path / "project"))
        await cluster.state("copy", "RUNNING")
        await cluster.send("copy", 0, 200)
        assert await cluster.received("copy", 200) == list(range(200))
        status = await cluster.status("copy", lambda status: status.good_version == 1)
        assert status.storage_id and status.failures == 0

        driver = await asyncio.to_thread(worker.driver)
        os.kill(driver, signal.SIGKILL)
        await cluster.send("copy", 200, 100)
        assert await cluster.received("copy", 300) == list(range(300))
        assert worker.drivers() != [driver]

        await cluster.change("copy", wanted="STOPPED")
        await cluster.state("copy", "STOPPED")
        assert worker.drivers() == []
        await cluster.send("copy", 300, 50)
        await cluster.change("copy", wanted="RUNNING")
        assert await cluster.received("copy", 350) == list(range(350))

        assert worker.terminate() == 0
        await cluster.state("copy", "WAITING FOR A WORKER")
        whats = await cluster.whats("copy")
        for what in ("deployed", "started", "failed", "restarted", "stopped"):
            assert what in whats
        lines = [line.text async for line in cluster.catalog.logs("copy", follow=False)]
        assert any("copy" in line for line in lines)
        # The record that forgets the worker comes last.
        await cluster.catalog.caught_up()
        assert not cluster.catalog.workers

    try:
        run(broker, main)
    finally:
        worker.close()


@long
def test_another_worker_takes_over_when_one_is_killed(broker: Broker, tmp_path: Path) -> None:
    """The drivers of the dead worker end by themselves. A storage that both reach is needed."""
    workers = [WorkerProcess(broker, tmp_path / name, "--no-spare") for name in ("one", "two")]

    async def main(cluster: Cluster) -> None:
        shared = NewVersion(
            "copy",
            "project",
            "spark-pipeline.yml",
            make_project(tmp_path / "project", "copy"),
            schedule=FAST,
            storage=f"file://{tmp_path / 'shared'}",
        )
        await cluster.catalog.deploy(shared)
        status = await cluster.state("copy", "RUNNING")
        await cluster.send("copy", 0, 200)
        assert await cluster.received("copy", 200) == list(range(200))
        (running,) = [worker for worker in workers if worker.drivers()]
        drivers = running.drivers()
        await cluster.send("copy", 200, 500)
        running.kill()
        wait_until_gone(drivers)
        await cluster.status(
            "copy", lambda now: now.state == "RUNNING" and now.worker != status.worker
        )
        await cluster.send("copy", 700, 100)
        assert await cluster.received("copy", 800) == list(range(800))
        assert "moved" in await cluster.whats("copy")

    try:
        run(broker, main)
    finally:
        for worker in workers:
            worker.close()


@long
def test_a_version_that_fails_goes_back_to_the_last_good_one(
    broker: Broker, tmp_path: Path
) -> None:
    worker = WorkerProcess(broker, tmp_path / "data")

    async def main(cluster: Cluster) -> None:
        await cluster.catalog.deploy(project(tmp_path / "project"))
        await cluster.send("copy", 0, 20)
        assert await cluster.received("copy", 20) == list(range(20))
        await cluster.status("copy", lambda status: status.good_version == 1)
        broken = project(tmp_path / "project", COPY.replace('"key", "value"', '"no_such_column"'))
        await cluster.catalog.deploy(broken)
        status = await cluster.status("copy", lambda status: status.failures >= 2)
        assert status.version == 2 and "no_such_column" in status.error
        await cluster.change("copy", auto_rollback=True)
        status = await cluster.status(
            "copy", lambda status: status.version == 1 and status.state == "RUNNING"
        )
        await cluster.send("copy", 20, 20)
        assert await cluster.received("copy", 40) == list(range(40))
        back = [event for event in await cluster.events("copy") if event.what == "rolled-back"]
        assert len(back) == 1 and "version 2 failed" in back[0].text

    try:
        run(broker, main)
    finally:
        worker.close()


@long
def test_a_script_runs_until_its_queries_end(broker: Broker, tmp_path: Path) -> None:
    """It goes on where it was after a stop; a script that returns is completed."""
    worker = WorkerProcess(broker, tmp_path / "data")
    folder = tmp_path / "project"
    folder.mkdir()

    def script(code: str) -> NewVersion:
        (folder / "job.py").write_text(code)
        return NewVersion("copy", "script", "job.py", pack(folder))

    async def main(cluster: Cluster) -> None:
        for topic in ("copy-in", "copy-out"):
            broker.new_topic(name=topic)
        await cluster.catalog.deploy(script(SCRIPT))
        await cluster.send("copy", 0, 100)
        assert await cluster.received("copy", 100) == list(range(100))
        await cluster.change("copy", wanted="STOPPED")
        await cluster.state("copy", "STOPPED")
        await cluster.send("copy", 100, 100)
        await cluster.change("copy", wanted="RUNNING")
        assert await cluster.received("copy", 200) == list(range(200))
        await cluster.catalog.deploy(script("raise SystemExit('no such table')"))
        status = await cluster.status("copy", lambda status: status.failures >= 1)
        assert "no such table" in status.error
        await cluster.catalog.deploy(script("import helper; print(helper.WORD)"))
        (folder / "helper.py").write_text("WORD = 'hello'")
        await cluster.catalog.deploy(script("import helper; print(helper.WORD)"))
        await cluster.state("copy", "COMPLETED")
        lines = [line.text async for line in cluster.catalog.logs("copy", follow=False)]
        assert "hello" in lines

    try:
        run(broker, main)
    finally:
        worker.close()


def test_a_worker_ends_although_the_brokers_are_gone(tmp_path: Path) -> None:
    """Without Spark: it has no pipeline. It must not wait for brokers that do not come back."""
    with Broker() as gone:
        worker = WorkerProcess(gone, tmp_path / "data")

        async def main(cluster: Cluster) -> None:
            await cluster.worker()

        run(gone, main)
    assert worker.terminate(timeout_s=patient(60)) == 0
