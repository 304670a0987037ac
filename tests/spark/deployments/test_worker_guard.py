"""Tests the guard of a worker: it takes a dead worker out of the group once its drivers are dead.

The drivers of these tests only pretend to be Spark. A driver locks its storage, and leaves a note
if another driver has it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.spark.deployments.archive import pack
from penstock.spark.deployments.change_plan import NewVersion
from penstock.spark.deployments.model import Schedule
from penstock.spark.deployments.worker_guard import (
    WORKER_VARIABLE,
    end_drivers,
    member_at_the_end,
    sessions_of,
)
from penstock.testing import Broker
from penstock.testing.slowness import patient
from spark.deployments.deployed import SPEC, Cluster, WorkerProcess, run, wait_until_gone

pytestmark = pytest.mark.timeout(900)
NAME = "guarded"
WORKER = """
import runpy
from functools import partial
from penstock.spark.deployments import driver_process, ownership
driver_process.MODULE = "pretended_driver"
# Sessions that last longer than the test: only a guard ends one sooner.
ownership.OwnershipOptions = partial(
    ownership.OwnershipOptions, session_timeout_ms=1_500_000, rebalance_timeout_ms=1_500_000
)
runpy.run_module("penstock.cli.main", run_name="__main__")
"""
PROGRAM = [sys.executable, "-c", WORKER, "pipeline", "worker"]
DRIVER = """
import fcntl, json, os, pathlib, subprocess, sys

out = os.fdopen(int(sys.argv[sys.argv.index("--events") + 1]), "w")


def tell(**event):
    out.write(json.dumps(event) + "\\n")
    out.flush()


def begin(assigned):
    global lock
    storage = pathlib.Path(assigned["storage"].removeprefix("file://"))
    storage.mkdir(parents=True, exist_ok=True)
    lock = open(storage / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        (storage / "two-drivers").write_text("")
    # It has the lock, too, and does not notice the end of the worker.
    subprocess.Popen(
        ["sleep", "1000"], pass_fds=[lock.fileno()], preexec_fn=lambda: os.setpgid(0, 0)
    )


for line in sys.stdin:
    told = json.loads(line)
    if "assign" in told:
        begin(told["assign"])
        tell(event="ready")
    if "round" in told:
        tell(event="waiting")
    if "stop" in told:
        tell(event="end", state="STOPPED")
        break
"""


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker of its own: workers share all deployments of their cluster."""
    with Broker() as running:
        yield running


def version(folder: Path) -> NewVersion:
    project = folder / "project"
    (project / "transformations").mkdir(parents=True)
    (project / "transformations" / "flows.py").write_text("")
    (project / "spark-pipeline.yml").write_text(SPEC.format(name=NAME))
    (project / "pretended_driver.py").write_text(DRIVER)
    return NewVersion(
        NAME,
        "project",
        "spark-pipeline.yml",
        pack(project),
        schedule=Schedule(continuous=True),
        storage=f"file://{folder / 'shared'}",
    )


@pytest.mark.usefixtures("java")
def test_others_take_over_from_a_dead_worker_long_before_its_session_times_out(
    broker: Broker, tmp_path: Path
) -> None:
    """And no second driver has the storage while a process of the first one runs."""
    workers = [
        WorkerProcess(broker, tmp_path / name, "--no-spare", program=PROGRAM)
        for name in ("one", "two")
    ]

    async def main(cluster: Cluster) -> None:
        await cluster.catalog.deploy(version(tmp_path))
        first = await cluster.state(NAME, "RUNNING")
        (running,) = [worker for worker in workers if worker.drivers()]
        drivers = running.drivers()
        running.kill()
        await cluster.status(
            NAME, lambda now: now.state == "RUNNING" and now.worker != first.worker
        )
        wait_until_gone(drivers)
        assert "moved" in await cluster.whats(NAME)

    try:
        run(broker, main)
    finally:
        for worker in workers:
            worker.close()
    assert (tmp_path / "shared" / "lock").exists()
    assert not list((tmp_path / "shared").rglob("two-drivers")), "two drivers had one storage"


@pytest.mark.parametrize(
    ("lines", "member"),
    [
        ([], None),
        (['{"member": "a"}'], "a"),
        (['{"member": "a"}', '{"member": "b"}'], "b"),
        (['{"member": "a"}', '{"mem'], "a"),
        (['{"member": "a"}', '{"bye": true}'], None),
    ],
)
def test_the_guard_leaves_with_the_last_id_that_it_was_told(
    lines: list[str], member: str | None
) -> None:
    assert member_at_the_end(lines) == member


def sleeping(worker: str | None) -> subprocess.Popen[bytes]:
    """Starts a process in its own session, as a driver of a worker."""
    environment = {**os.environ, **({WORKER_VARIABLE: worker} if worker else {})}
    return subprocess.Popen(["sleep", "1000"], env=environment, start_new_session=True)


def test_all_drivers_of_the_worker_are_killed_and_no_others() -> None:
    worker = f"worker-{os.getpid()}"
    mine = [sleeping(worker), sleeping(worker)]
    others = [sleeping(f"{worker}-2"), sleeping(None)]
    try:
        assert sessions_of(worker) == {process.pid for process in mine}
        end_drivers(worker)
        assert sessions_of(worker) == set()
        assert [process.wait(patient(60)) for process in mine] == [-signal.SIGKILL] * 2
        assert [process.poll() for process in others] == [None, None]
    finally:
        for process in [*mine, *others]:
            process.kill()
            process.wait(patient(60))
