"""Real workers for tests, and a project that copies one topic to another exactly once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from penstock import Consumer, Producer
from penstock.runtime import SystemClock
from penstock.spark.deployments.archive import pack
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.change_plan import NewVersion
from penstock.spark.deployments.model import Deployment, Event, Status
from penstock.spark.pipelines.process_session import processes
from penstock.testing import Broker

T = TypeVar("T")
PROGRAM = [sys.executable, "-m", "penstock.cli.main", "pipeline", "worker"]
WAIT_S = 500.0
"""Long on purpose: a busy machine needs minutes for what an idle one does in ten seconds."""
LOOK_EVERY_S = 0.05
"""Without this pause a test would take the processor from the drivers that it waits for."""

SPEC = """name: {name}
storage: file:///nowhere
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.penstock.topics: "{name}-in:2, {name}-out:1"
  spark.sql.shuffle.partitions: "2"
"""
COPY = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

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


@dp.append_flow(target="out")
def copy():
    return (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "{name}-in")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("key", "value")
    )
"""
SCRIPT = """
import os
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
bootstrap = os.environ["PENSTOCK_BOOTSTRAP"]
name = os.environ["PENSTOCK_PIPELINE"]
(
    spark.readStream.format("penstock")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", f"{name}-in")
    .option("startingOffsets", "earliest")
    .load()
    .selectExpr("key", "value")
    .writeStream.format("penstock")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("topic", f"{name}-out")
    .option("delivery", "exactly_once")
    .option("checkpointLocation", os.environ["PENSTOCK_STORAGE"] + "/_checkpoints/copy")
    .queryName("copy")
    .trigger(processingTime="200 milliseconds")
    .start()
)
"""


def make_project(folder: Path, name: str, code: str = COPY) -> bytes:
    """Returns the archive of a project that copies NAME-in to NAME-out."""
    (folder / "transformations").mkdir(parents=True, exist_ok=True)
    (folder / "spark-pipeline.yml").write_text(SPEC.format(name=name))
    (folder / "transformations" / "copy.py").write_text(code.format(name=name))
    return pack(folder)


class WorkerProcess:
    """A worker as a user starts it."""

    def __init__(
        self, broker: Broker, data: Path, *options: str, program: Sequence[str] = PROGRAM
    ) -> None:
        self.process = subprocess.Popen(
            [*program, "-b", broker.bootstrap, "--data", str(data), *options],
            start_new_session=True,
        )

    def drivers(self) -> list[int]:
        """Returns the process ids of its drivers."""
        return [
            process.pid
            for process in processes()
            if process.pid == process.session and _parent(process.pid) == self.process.pid
        ]

    def driver(self) -> int:
        """Waits until it has one driver, and returns its process id. On a busy machine a driver may
        lose its lease, and is started again."""
        clock = SystemClock()
        until = clock.monotonic() + WAIT_S
        while len(drivers := self.drivers()) != 1:
            assert clock.monotonic() < until, f"the drivers are {drivers}"
            time.sleep(LOOK_EVERY_S)
        return drivers[0]

    def kill_drivers(self, kill: Callable[[int, int], None] = os.kill) -> None:
        """Kills its drivers. One may have ended by itself meanwhile."""
        for driver in self.drivers():
            with suppress(ProcessLookupError):
                kill(driver, signal.SIGKILL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)

    def terminate(self, timeout_s: float = WAIT_S) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def close(self) -> None:
        """Kills it, and waits until its drivers have ended by themselves."""
        drivers = self.drivers()
        if self.process.poll() is None:
            self.kill()
        wait_until_gone(drivers)


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    return int(stat[stat.rindex(b")") + 2 :].split()[1])


def wait_until_gone(sessions: list[int]) -> None:
    """Waits until no process of these sessions runs."""
    clock = SystemClock()
    until = clock.monotonic() + WAIT_S
    while any(process.session in sessions for process in processes()):
        assert clock.monotonic() < until, "processes of a driver still run"
        time.sleep(LOOK_EVERY_S)


def table_files(table: Path) -> list[Path]:
    """Returns the files that belong to the table. A batch that was interrupted leaves others."""
    log = {
        int(each.name.partition(".")[0]): each
        for each in sorted((table / "_spark_metadata").iterdir())
        if not each.name.startswith(".")
    }
    compact = max((n for n, each in log.items() if each.suffix == ".compact"), default=-1)
    lines = [
        json.loads(line)
        for number, each in log.items()
        if number >= compact
        for line in each.read_text().splitlines()[1:]
    ]
    return [table / Path(each["path"]).name for each in lines if each["action"] == "add"]


class Cluster:
    """The deployments of a broker, for a test."""

    def __init__(self, broker: Broker, catalog: Catalog) -> None:
        self.broker = broker
        self.catalog = catalog
        self._news = asyncio.Event()
        catalog.on_change(self._news.set)

    async def status(self, name: str, condition: Callable[[Status], object]) -> Status:
        """Waits until the status of a deployment fulfils a condition."""
        last: Status | None = None
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    self._news.clear()
                    last = self.catalog.statuses.get(name)
                    if last is not None and condition(last):
                        return last
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"the status does not come; the last one is {last}") from None

    async def worker(self) -> None:
        """Waits until a worker has reported."""
        async with asyncio.timeout(WAIT_S):
            while not self.catalog.workers:
                self._news.clear()
                await self._news.wait()

    async def state(self, name: str, state: str) -> Status:
        return await self.status(name, lambda status: status.state == state)

    async def change(self, name: str, **changes: Any) -> Deployment:
        return await self.catalog.change(
            name, lambda known: replace(known, **changes), "changed", ""
        )

    async def whats(self, name: str) -> list[str]:
        return [event.what async for event in self.catalog.history(name)]

    async def events(self, name: str) -> list[Event]:
        return [event async for event in self.catalog.history(name)]

    async def send(self, name: str, first: int, count: int) -> None:
        """Sends the numbers from `first` on."""

        def work() -> None:
            with Producer(self.broker.bootstrap) as producer:
                for number in range(first, first + count):
                    text = str(number).encode()
                    producer.send(f"{name}-in", text, key=text)

        await asyncio.to_thread(work)

    async def received(self, name: str, count: int) -> list[int]:
        """Waits for this many committed records of the output, and for further ones that are there
        already. Returns their numbers, sorted."""
        return await asyncio.to_thread(self._received, f"{name}-out", count)

    def _received(self, topic: str, count: int) -> list[int]:
        found: Counter[int] = Counter()
        clock = SystemClock()
        until = clock.monotonic() + WAIT_S
        with Consumer(
            self.broker.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            consumer.subscribe([topic])
            while True:
                records = consumer.poll(1_000)
                found.update(int(record.value or b"") for record in records)
                if not records and found.total() >= count:
                    return sorted(found.elements())
                assert clock.monotonic() < until, f"{found.total()} of {count} records came"


def run(broker: Broker, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
    """Runs a test with a catalog."""

    async def main() -> T:
        async with Catalog(broker.bootstrap) as catalog:
            return await work(Cluster(broker, catalog))

    return asyncio.run(main())


__all__ = ["COPY", "SCRIPT", "Cluster", "NewVersion", "WorkerProcess", "make_project", "run"]
