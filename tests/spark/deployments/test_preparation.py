"""Tests the preparation of versions: which are ended, and that a worker can end while pip runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.runtime import SystemClock
from penstock.spark.deployments.archive import pack
from penstock.spark.deployments.change_plan import NewVersion
from penstock.spark.deployments.model import Deployment, Version
from penstock.spark.deployments.preparation import PreparationTasks
from penstock.spark.deployments.supervisor_events import Defined, Prepare
from penstock.spark.deployments.worker_guard import sessions_of
from penstock.testing import Broker
from spark.deployments.deployed import SPEC, WAIT_S, Cluster, WorkerProcess, run
from spark.deployments.test_environments import hanging_project

VERSIONS = [Version("views", number, "project", "x", "a" * 64, 1) for number in (0, 1, 2)]
DEPLOYMENT = Deployment("views", 1, 1)


async def ended(defined: Defined, attempt: int) -> bool:
    """Whether the preparation of version 1 for attempt 1 ends."""
    tasks = PreparationTasks()
    task = asyncio.create_task(asyncio.Event().wait())
    tasks.add(Prepare(1, DEPLOYMENT, VERSIONS[1]), task)  # type: ignore[arg-type]
    tasks.end_unwanted(defined, attempt)
    await asyncio.sleep(0)
    found = task.cancelled()
    task.cancel()
    return found


@pytest.mark.parametrize(
    ("defined", "attempt", "expected"),
    [
        (Defined(DEPLOYMENT, VERSIONS[1]), 1, False),
        (Defined(DEPLOYMENT, VERSIONS[2]), 2, True),
        (Defined(replace(DEPLOYMENT, wanted="STOPPED"), VERSIONS[1]), 2, True),
        (Defined(None, None), 2, True),
        # The lease has ended for a moment: the packages are still needed.
        (Defined(DEPLOYMENT, VERSIONS[1]), 2, False),
    ],
)
def test_a_preparation_ends_when_another_version_is_wanted(
    defined: Defined, attempt: int, expected: bool
) -> None:
    assert asyncio.run(ended(defined, attempt)) is expected


@pytest.mark.timeout(1_800)
def test_a_worker_ends_while_it_installs_packages(tmp_path: Path) -> None:
    """The guard ends the pip of a worker that has died. A worker that is stopped ends its own."""
    root = hanging_project(tmp_path / "project")
    (root / "spark-pipeline.yml").write_text(SPEC.format(name="slow"))

    def has_begun() -> bool:
        found = list(tmp_path.glob("data/files/slow/*/began"))
        for file in found:
            file.unlink()
        return bool(found)

    async def installing(cluster: Cluster) -> str:
        """Waits until pip runs. Returns the id of the worker."""
        async with asyncio.timeout(WAIT_S):
            while not has_begun():
                await SystemClock().sleep(0.05)
            # The catalog may learn of the worker later, and still have one that has died.
            while not (found := [each for each in cluster.catalog.workers if sessions_of(each)]):
                await SystemClock().sleep(0.05)
        (worker,) = found
        return worker

    async def main(cluster: Cluster) -> None:
        version = NewVersion("slow", "project", "spark-pipeline.yml", pack(root))
        await cluster.catalog.deploy(version)
        first = WorkerProcess(broker, tmp_path / "data", "--no-spare")
        worker = await installing(cluster)
        first.kill()
        async with asyncio.timeout(WAIT_S):
            while sessions_of(worker):
                await SystemClock().sleep(0.05)
        second = WorkerProcess(broker, tmp_path / "data", "--no-spare")
        worker = await installing(cluster)
        assert await asyncio.to_thread(second.terminate) == 0
        assert not sessions_of(worker)

    with Broker() as broker:
        run(broker, main)
