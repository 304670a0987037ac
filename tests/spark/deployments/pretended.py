"""A worker in this process, with drivers that only pretend: without Spark, and ready at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.deployments import driver_process
from penstock.spark.deployments.archive import pack
from penstock.spark.deployments.change_plan import NewVersion
from penstock.spark.deployments.model import Schedule
from penstock.spark.deployments.worker import Worker, WorkerOptions, run_worker
from penstock.testing import Broker
from spark.deployments.deployed import SPEC

DRIVER = """
import json, os, sys, threading

out = os.fdopen(int(sys.argv[sys.argv.index("--events") + 1]), "w")
number = 0


def write(text):
    out.write(text + "\\n")
    out.flush()


def tell(**event):
    write(json.dumps(event))


for line in sys.stdin:
    told = json.loads(line)
    if "assign" in told:
        tell(event="ready")
    if "round" in told:
        number += 1
        print(f"round {number}", flush=True)
        tell(event="round", number=number)
        AT_ROUND
        tell(event="waiting")
    if "stop" in told:
        AT_STOP
        tell(event="end", state="STOPPED")
        break
"""


def version(
    folder: Path, name: str = "copy", *, at_round: str = "pass", at_stop: str = "pass"
) -> NewVersion:
    """Returns a version whose drivers run this code in each round, and when they are stopped."""
    project = folder / f"project-{name}"
    (project / "transformations").mkdir(parents=True, exist_ok=True)
    (project / "transformations" / "flows.py").write_text("")
    (project / "spark-pipeline.yml").write_text(SPEC.format(name=name))
    code = DRIVER.replace("AT_ROUND", at_round).replace("AT_STOP", at_stop)
    (project / "pretended_driver.py").write_text(code)
    fast = Schedule(continuous=True, interval_s=0.1)
    return NewVersion(name, "project", "spark-pipeline.yml", pack(project), schedule=fast)


@pytest.fixture
def pretended_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_process, "MODULE", "pretended_driver")


class RunningWorker:
    def __init__(self, worker: Worker, task: asyncio.Task[None]) -> None:
        self.worker = worker
        self._task = task

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    async def stop(self) -> None:
        """Stops it as SIGTERM does, and waits for its end."""
        self.worker.stop()
        await self._task


@asynccontextmanager
async def running_worker(broker: Broker, data: Path) -> AsyncIterator[RunningWorker]:
    ready: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
    options = WorkerOptions(broker.bootstrap, str(data), spare=False)
    task = asyncio.create_task(run_worker(options, ready.set_result))
    try:
        both: list[asyncio.Future[Any]] = [task, ready]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        yield RunningWorker(ready.result(), task)
    finally:
        if ready.done():
            ready.result().stop()
        await asyncio.gather(task, return_exceptions=True)
