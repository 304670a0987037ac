"""Tests backfills with real Spark: beside a live stream, with processes that are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock import Admin, Consumer, Producer
from penstock.testing import Broker
from spark.deployments.deployed import SCRIPT, WAIT_S, WorkerProcess, make_project, table_files
from spark.direct import Deadline

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
        .load()
        .selectExpr("CAST(CAST(value AS STRING) AS INT) AS number")
    )


@dp.materialized_view
def counted():
    return spark.read.table("copied").groupBy("number").count()
"""
OLD = 1_500


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
        ended = self.run(*words)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def error(self, *words: str) -> str:
        ended = self.run(*words)
        assert ended.returncode != 0, ended.stdout
        return ended.stderr

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PENSTOCK, *words, "--json"],
            cwd=self._folder,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    def deploy(self, *words: str) -> None:
        """Deploys, and waits until a round was completed. On a busy machine a driver may lose its
        lease first, and is started again."""
        made = self("deploy", *words)
        deadline = Deadline(WAIT_S)
        while self("status", made["name"], "--deployed")["good_version"] != made["version"]:
            deadline.check("a version that works")

    def until_offsets(self, name: str, flow: str) -> None:
        """Waits until the driver has reported what it has read. It may do so after the round."""
        deadline = Deadline(WAIT_S)
        while not any(
            each["topics"]
            for each in self("status", name, "--deployed")["flows"]
            if each["name"] == flow
        ):
            deadline.check(f"the offsets of {flow}")

    def until(self, condition: Callable[[dict[str, Any]], object], name: str) -> dict[str, Any]:
        """Waits until the last backfill fulfils a condition."""
        deadline = Deadline(WAIT_S)
        while True:
            found: list[dict[str, Any]] = self("backfill", name, "--list")["backfills"]
            if found and condition(found[-1]):
                return found[-1]
            deadline.check(f"the backfill that is awaited, after {found}")


class Writer:
    """Writes numbers to a topic, and then some more all the time."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker = broker
        self._topic = topic
        self._ends = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._run)

    def write(self, count: int) -> None:
        with Producer(self._broker.bootstrap) as producer:
            for _ in range(count):
                producer.send(self._topic, str(self.count).encode(), partition=self.count % 2)
                self.count += 1

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.wait(0.2):
            self.write(5)


def numbers(data: Path) -> Counter[int]:
    (table,) = [each for each in data.rglob("spark-warehouse/**/copied") if each.is_dir()]
    found: Counter[int] = Counter()
    for each in table_files(table):
        found.update(pq.read_table(each)["number"].to_pylist())
    return found


def test_a_backfill_beside_a_live_stream_into_a_table(broker: Broker, tmp_path: Path) -> None:
    """The driver is killed while both are read. Every record is in the table once."""
    folder, data = tmp_path / "project", tmp_path / "data"
    make_project(folder, "views", CODE)
    with Admin(broker.bootstrap) as admin:
        admin.create_topic("views-in", 2)
    writer = Writer(broker, "views-in")
    writer.write(OLD)
    penstock = Commands(broker, folder)
    worker = WorkerProcess(broker, data, "--no-spare")
    try:
        penstock.deploy()
        penstock.until_offsets("views", "copied")
        assert "materialized view" in penstock.error("backfill", "views", "counted", "--from", "1d")
        with writer:
            made = penstock(
                *("backfill", "views", "copied", "--from", "1d", "--yes"),
                *("--max-bytes-per-trigger", "1k"),
            )
            assert (made["records"], made["repeated"]) == (OLD, 0)
            penstock.until(lambda each: 0 < each["done"] < OLD, "views")
            assert not set(range(OLD)) <= set(numbers(data))
            worker.kill_drivers(os.killpg)
            ended = penstock.until(lambda each: each["state"] == "COMPLETED", "views")
            assert (ended["done"], ended["total"], ended["lost"]) == (OLD, OLD, 0)
        deadline = Deadline(WAIT_S)
        while len(numbers(data)) < writer.count:
            deadline.check(f"{writer.count} records in the table")
        assert numbers(data) == Counter(range(writer.count))

        refused = penstock.error("backfill", "views", "copied", "--from", "1d", "--yes")
        assert "has read them, or a backfill has. To read them again" in refused
        whats = Counter(each["what"] for each in penstock("history", "views")["events"])
        assert whats["backfill-requested"] == whats["backfill-completed"] == 1
        assert whats["backfill-begun"] == 1
    finally:
        worker.close()


def received(broker: Broker, topic: str, count: int) -> Counter[int]:
    """Waits for this many committed records, and for further ones that are there already."""
    found: Counter[int] = Counter()
    deadline = Deadline(WAIT_S)
    with Consumer(
        broker.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.subscribe([topic])
        while True:
            records = consumer.poll(1_000)
            found.update(int(record.value or b"") for record in records)
            if not records and found.total() >= count:
                return found
            deadline.check(f"{count} records, after {found.total()}")


def test_a_backfill_of_a_script_into_a_topic(broker: Broker, tmp_path: Path) -> None:
    """The worker is killed with its driver, and the next one continues. Every record is in the
    topic once; after a deliberate repetition, those of its range are there twice."""
    folder, data = tmp_path / "project", tmp_path / "data"
    folder.mkdir()
    named = SCRIPT.replace('"startingOffsets", "earliest"', '"flow", "copy"')
    (folder / "job.py").write_text(named)
    with Admin(broker.bootstrap) as admin:
        admin.create_topic("copy-in", 2)
        admin.create_topic("copy-out", 1)
    writer = Writer(broker, "copy-in")
    writer.write(OLD)
    penstock = Commands(broker, folder)
    worker = WorkerProcess(broker, data, "--no-spare")
    try:
        penstock("deploy", "job.py", "--name", "copy")
        penstock.until_offsets("copy", "copy")
        words = "backfill", "copy", "copy", "--from", "1d", "--yes"
        with writer:
            assert penstock(*words, "--max-bytes-per-trigger", "4k")["records"] == OLD
            penstock.until(lambda each: 0 < each["done"] < OLD, "copy")
            worker.close()
            worker = WorkerProcess(broker, data, "--no-spare")
            penstock.until(lambda each: each["state"] == "COMPLETED", "copy")
        assert received(broker, "copy-out", writer.count) == Counter(range(writer.count))

        penstock(*words, "--again")
        ended = penstock.until(lambda each: each["state"] == "COMPLETED" and each["again"], "copy")
        assert ended["done"] == writer.count
        assert received(broker, "copy-out", 2 * writer.count) == Counter(
            dict.fromkeys(range(writer.count), 2)
        )
    finally:
        worker.close()
