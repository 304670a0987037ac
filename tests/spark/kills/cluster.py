"""What is killed: brokers, workers, a standalone Spark, and what they start."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from chaos.broker_processes import BrokerProcesses, wait_for
from penstock import Admin
from penstock.spark.deployments.catalog import Catalog
from penstock.testing.slowness import patient
from spark.cluster.processes import Standalone

from .pipelines import COPIES, EVENTS, PARTITIONS, SCRIPTED, Pipeline, command, environment
from .watching import Process, command_line, processes

T = TypeVar("T")
START_S = 600.0
SETTINGS = {
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "min.insync.replicas": 2,
    "default.replication.factor": 3,
}
WORKING = ("RUNNING", "WAITING FOR ITS TIME")


class WorkerProcess:
    """A worker with its data folder, and its current or last process."""

    def __init__(self, number: int, folder: Path, bootstrap: str, *, spares: bool) -> None:
        self.name = f"worker-{number}"
        self._data = folder / self.name
        self._log = folder / f"{self.name}.log"
        self._bootstrap = bootstrap
        self._options = () if spares else ("--no-spare",)
        self._read_from = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        self._read_from = self._log.stat().st_size if self._log.exists() else 0
        words = command("worker", "-b", self._bootstrap, "--data", str(self._data))
        with self._log.open("ab") as out:
            self.process = subprocess.Popen(
                [*words, "--stop-with-stdin", *self._options],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env=environment(),
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        wait_for(f"{self.name} is ready", lambda: bool(self.id), START_S)

    @property
    def id(self) -> str:
        """The name under which it reports; empty if it has not said it yet."""
        with self._log.open("rb") as file:
            file.seek(self._read_from)
            text = file.read().decode(errors="replace")
        found = [line for line in text.splitlines() if "runs deployed pipelines" in line]
        return found[0].split()[1] if found else ""

    @property
    def has_class_archive(self) -> bool:
        return any((self._data / "class-archives").glob("*.jsa"))

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(patient(60))
            if self.process.stdin is not None:
                self.process.stdin.close()


class Deployments:
    """The catalog of the cluster, followed in a thread."""

    def __init__(self, bootstrap: str) -> None:
        self._catalog: Catalog | None = None
        self._bootstrap = bootstrap
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="catalog", daemon=True)

    def start(self) -> None:
        self._thread.start()

        async def begin() -> None:
            self._catalog = Catalog(self._bootstrap)
            await self._catalog.start()

        self._do(begin())

    def not_working(self, workers: int) -> list[str]:
        """Returns what does not work: pipelines, or workers that are missing."""

        async def look() -> list[str]:
            assert self._catalog is not None
            live = {each.id: each for each in self._catalog.live_workers()}
            found = []
            for name in self._catalog.deployments:
                status = self._catalog.statuses.get(name)
                if status is None or status.worker not in live:
                    found.append(f"{name} has no worker")
                elif status.state not in WORKING:
                    found.append(f"{name} is {status.state}")
            if len(live) < workers:
                found.append(f"{len(live)} of {workers} workers report")
            return found

        return self._do(look())

    def state(self, name: str) -> str:
        async def look() -> str:
            assert self._catalog is not None
            status = self._catalog.statuses.get(name)
            return "" if status is None else status.state

        return self._do(look())

    def run_by(self, worker: str) -> list[str]:
        """Returns the pipelines that a worker runs."""

        async def look() -> list[str]:
            assert self._catalog is not None
            found = self._catalog.statuses.items()
            return sorted(name for name, status in found if status.worker == worker)

        return self._do(look())

    def close(self) -> None:
        if self._thread.ident is None:
            return
        if self._catalog is not None:
            self._do(self._catalog.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(patient(60))
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(patient(START_S))


class Cluster:
    """All processes of the run."""

    def __init__(self, folder: Path, workers: int, *, standalone: bool, spares: bool) -> None:
        self.folder = folder
        self.spares = spares
        """Whether workers keep a Spark in reserve and make archives of Java classes."""
        self.brokers = BrokerProcesses(folder / "brokers", 3, settings=SETTINGS)
        self.spark = Standalone(1, cores=2) if standalone else None
        self._count = workers
        self.workers: list[WorkerProcess] = []
        self.deployments: Deployments | None = None

    def start(self) -> None:
        # Linux shares processors between sessions. Like a service, each process has its own.
        for node in self.brokers.nodes.values():
            node.command_prefix = ("setsid",)
        bootstrap = self.brokers.start()
        with Admin(bootstrap) as admin:
            for topic in (EVENTS, COPIES, SCRIPTED):
                admin.create_topic(topic, PARTITIONS, 3)
        if self.spark is not None:
            self.spark.__enter__()
        self.deployments = Deployments(bootstrap)
        self.deployments.start()
        for number in range(self._count):
            worker = WorkerProcess(number, self.folder, bootstrap, spares=self.spares)
            self.workers.append(worker)
            worker.start()
        for worker in self.workers:
            worker.wait_ready()

    @property
    def bootstrap(self) -> str:
        return self.brokers.bootstrap

    def storage(self, name: str) -> Path:
        return self.folder / "storage" / name

    def deploy(self, pipeline: Pipeline) -> None:
        project = pipeline.write(self.folder / "projects" / pipeline.name)
        self.storage(pipeline.name).mkdir(parents=True)
        words = ("deploy", str(project), "--name", pipeline.name, "--yes", *pipeline.options)
        self._run(*words, "--storage", str(self.storage(pipeline.name)))

    def stop(self, name: str) -> None:
        """Stops a pipeline after its round."""
        self._run("stop", name)
        deployments = self.deployments
        assert deployments is not None
        wait_for(f"{name} has stopped", lambda: deployments.state(name) == "STOPPED", START_S, 0.5)

    def history(self, name: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = json.loads(self._run("history", name, "--json"))["events"]
        return events

    def _run(self, *words: str) -> str:
        ended = subprocess.run(
            [*command(*words), "-b", self.bootstrap],
            capture_output=True,
            text=True,
            env=environment(),
            timeout=patient(START_S),
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def executors(self) -> list[Process]:
        """Returns the executors of the standalone Spark."""
        if self.spark is None:
            return []
        found = processes()
        own = {process.popen.pid for process in self.spark.processes}
        return [
            each
            for each in found.values()
            if each.parent in own and "CoarseGrainedExecutorBackend" in command_line(each.pid)
        ]

    def close(self) -> None:
        if self.deployments is not None:
            self.deployments.close()
        sessions = {
            each.session
            for each in processes().values()
            if each.session == each.pid
            and each.parent in {worker.pid for worker in self.workers if worker.process}
        }
        for worker in self.workers:
            worker.kill()
        wait_for(
            "the drivers of dead workers have ended",
            lambda: not any(each.session in sessions for each in processes().values()),
            60.0,
        )
        if self.spark is not None:
            self.spark.close()
        self.brokers.close()
