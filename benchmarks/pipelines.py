"""How soon does a deployed pipeline show the result of a record, and how long is a small round?

Three measurements, beside the same job as a plain Spark user runs it (spark-submit with Spark's own
Kafka connector), on the same broker:

- continuous: records are sent at a steady rate, and a job copies them to another topic. The time
  from the acknowledgement of a record to its arrival at a reader of the result counts. Ours is a
  declarative project with an exactly-once sink and a reader of committed records. The connector's
  sink has no transactions.
- rounds: a small project (a topic into a table, a materialized view, a sink) runs at a schedule,
  with new records before every round. When a round begins after it is due, and how long it takes.
- one job: the same records by a job that starts, reads what there is and ends (spark-submit).

Spark, broker, sender and reader share this machine. Run it from the project's root on a quiet one:
`python -m benchmarks.pipelines --json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa

from benchmarks.spark import connector_jars
from penstock import Admin, Consumer, Producer
from penstock.spark.deployments.archive import pack
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.change_plan import NewVersion
from penstock.spark.deployments.model import Schedule, Status
from penstock.testing import Broker

Isolation = Literal["read_committed", "read_uncommitted"]
PARTITIONS: Final = 4
SIZE: Final = 100
TICK_S: Final = 0.05
START_S: Final = 600.0
SPEC: Final = """name: bench
storage: file:///replaced
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.sql.shuffle.partitions: "2"
"""
READ: Final = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
bootstrap = spark.conf.get("spark.penstock.bootstrap")
dp.create_sink(
    "out",
    "penstock",
    {"kafka.bootstrap.servers": bootstrap, "topic": "bench-out", "delivery": "exactly_once",
     "sink": "bench"},
)


def records():
    return (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "bench-in")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("key", "value")
    )
"""
COPY: Final = """

@dp.append_flow(target="out")
def copy():
    return records()
"""
SMALL: Final = """

@dp.table
def seen():
    return records()


@dp.materialized_view
def counted():
    return spark.read.table("seen").groupBy("key").count()


@dp.append_flow(target="out")
def copy():
    return spark.readStream.table("seen")
"""
SUBMITTED: Final = """
import sys
from pyspark.sql import SparkSession

bootstrap, checkpoint, once = sys.argv[1], sys.argv[2], sys.argv[3] == "once"
spark = SparkSession.builder.getOrCreate()
writer = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", "bench-in")
    .option("startingOffsets", "earliest")
    .load()
    .selectExpr("key", "value")
    .writeStream.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("topic", "bench-out")
    .option("checkpointLocation", checkpoint)
)
(writer.trigger(availableNow=True) if once else writer).start().awaitTermination()
"""


def new_topics(bootstrap: str) -> None:
    with Admin(bootstrap) as admin:
        for name in ("bench-in", "bench-out"):
            with suppress(Exception):  # There is none yet.
                admin.delete_topic(name)
            admin.create_topic(name, PARTITIONS)


class Sender(threading.Thread):
    """Sends numbered records at a steady rate, and knows when each was acknowledged."""

    def __init__(self, bootstrap: str, rate: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged: dict[int, float] = {}
        """The first number of each tick -> when all of its records were acknowledged."""
        self.per_tick = max(round(rate * TICK_S), 1)
        self._brokers = bootstrap
        self._ending = threading.Event()

    def run(self) -> None:
        waiting: list[threading.Thread] = []
        began = time.monotonic()
        with Producer(self._brokers, linger_ms=5) as producer:
            number = 0
            while not self._ending.is_set():
                numbers = range(number, number + self.per_tick)
                table = pa.table(
                    {
                        "key": pa.array([b"%d" % (each % 1_000) for each in numbers]),
                        "value": pa.array([b"%0*d" % (SIZE, each) for each in numbers]),
                    }
                )
                delivery = producer.send_table("bench-in", table)
                noting = threading.Thread(target=self._note, args=(number, delivery), daemon=True)
                noting.start()
                waiting.append(noting)
                number += self.per_tick
                # By the clock, whatever sending took: a late sender would hide waiting time.
                rest_s = began + number / self.per_tick * TICK_S - time.monotonic()
                self._ending.wait(max(rest_s, 0))
            for noting in waiting:
                noting.join(60)

    def _note(self, number: int, delivery: Any) -> None:
        delivery.result(60)
        self.acknowledged[number] = time.monotonic()

    def stop(self) -> None:
        self._ending.set()
        self.join(120)


class Reader(threading.Thread):
    """Reads the results, and knows when each arrived."""

    def __init__(self, bootstrap: str, isolation: Isolation) -> None:
        super().__init__(daemon=True)
        self.arrived: dict[int, float] = {}
        self._brokers = bootstrap
        self._isolation = isolation
        self._ending = threading.Event()

    def run(self) -> None:
        with Consumer(
            self._brokers,
            auto_offset_reset="earliest",
            isolation_level=self._isolation,
            group_id=None,
        ) as consumer:
            consumer.subscribe(["bench-out"])
            while not self._ending.is_set():
                records = consumer.poll(200)
                now = time.monotonic()
                for record in records:
                    self.arrived.setdefault(int(record.value or b"0"), now)

    def wait_for(self, number: int) -> None:
        until = time.monotonic() + START_S
        while number not in self.arrived:
            if time.monotonic() > until:
                raise SystemExit(f"the result of record {number} did not come within {START_S} s")
            time.sleep(0.05)

    def stop(self) -> None:
        self._ending.set()
        self.join(60)


def latencies(sender: Sender, reader: Reader, first: int, last: int) -> dict[str, Any]:
    """Returns the latencies of the records from `first` to `last`, in seconds."""
    found = []
    for tick, acknowledged in sender.acknowledged.items():
        if first <= tick and tick + sender.per_tick <= last:
            for number in range(tick, tick + sender.per_tick):
                found.append(reader.arrived[number] - acknowledged)
    found.sort()
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "most": 1.0}
    return {"records": len(found)} | {
        name: round(found[min(int(len(found) * share), len(found) - 1)], 2)
        for name, share in shares.items()
    }


def measure(bootstrap: str, isolation: Isolation, options: argparse.Namespace) -> dict[str, Any]:
    """Sends records while a job runs, and returns how soon their results came."""
    sender, reader = Sender(bootstrap, options.rate), Reader(bootstrap, isolation)
    sender.start()
    reader.start()
    reader.wait_for(0)
    time.sleep(options.warm_up_s)
    first = max(sender.acknowledged)
    time.sleep(options.seconds)
    last = max(sender.acknowledged)
    sender.stop()
    reader.wait_for(last + sender.per_tick - 1)
    reader.stop()
    return latencies(sender, reader, first, last)


@contextmanager
def worker(bootstrap: str, data: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "penstock.cli.main", "pipeline", "worker", "-b", bootstrap]
    process = subprocess.Popen([*command, "--data", str(data)])
    try:
        yield
    finally:
        process.terminate()
        process.wait(120)


def deployed(bootstrap: str, folder: Path, code: str, schedule: Schedule) -> None:
    (folder / "transformations").mkdir(parents=True, exist_ok=True)
    (folder / "spark-pipeline.yml").write_text(SPEC)
    (folder / "transformations" / "flows.py").write_text(READ + code)
    new = NewVersion("bench", "project", "spark-pipeline.yml", pack(folder), schedule=schedule)

    async def main() -> None:
        async with Catalog(bootstrap) as catalog:
            await catalog.deploy(new)

    asyncio.run(main())


def continuous(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    with Broker() as broker:
        new_topics(broker.bootstrap)
        schedule = Schedule(continuous=True, interval_s=options.interval)
        deployed(broker.bootstrap, folder / "project", COPY, schedule)
        with worker(broker.bootstrap, folder / "worker"):
            return measure(broker.bootstrap, "read_committed", options)


@contextmanager
def submitted(
    bootstrap: str, folder: Path, jars: str, *more: str
) -> Iterator[subprocess.Popen[Any]]:
    job = folder / "job.py"
    folder.mkdir(parents=True, exist_ok=True)
    job.write_text(SUBMITTED)
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    confs = [part for pair in settings.items() for part in ("--conf", "=".join(pair))]
    program = Path(sys.executable).with_name("spark-submit")
    where = [str(job), bootstrap, f"{folder}/checkpoint"]
    process = subprocess.Popen(
        [str(program), "--master", "local[2]", "--jars", jars, *confs, *where, *more],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(120)


def plain_continuous(folder: Path, jars: str, options: argparse.Namespace) -> dict[str, Any]:
    with Broker() as broker:
        new_topics(broker.bootstrap)
        with submitted(broker.bootstrap, folder, jars, "always"):
            return measure(broker.bootstrap, "read_uncommitted", options)


def send(bootstrap: str, first: int, count: int) -> None:
    with Producer(bootstrap) as producer:
        for number in range(first, first + count):
            producer.send("bench-in", b"%0*d" % (SIZE, number), key=b"%d" % (number % 10))


def plain_jobs(folder: Path, jars: str, rounds: int) -> dict[str, Any]:
    """The same as rounds, with a new job for each."""
    found = []
    with Broker() as broker:
        new_topics(broker.bootstrap)
        for number in range(rounds):
            send(broker.bootstrap, number * 1_000, 1_000)
            began = time.monotonic()
            with submitted(broker.bootstrap, folder, jars, "once") as process:
                process.wait(START_S)
            found.append(time.monotonic() - began)
    return {"seconds": [round(each, 1) for each in found]}


async def watch_rounds(bootstrap: str, rounds: int) -> list[tuple[float, float]]:
    """Returns for each round after the first how late it began and how long it took. Before each,
    records are sent."""
    found: list[tuple[float, float]] = []
    due_ms = began_ms = sent = 0
    async with Catalog(bootstrap) as catalog:
        news = asyncio.Event()
        catalog.on_change(news.set)
        seen = ""
        until = time.monotonic() + START_S
        while len(found) < rounds:
            async with asyncio.timeout(until - time.monotonic()):
                await news.wait()
            news.clear()
            status: Status | None = catalog.statuses.get("bench")
            if status is None or status.state == seen:
                continue
            seen = status.state
            if seen == "RUNNING":
                began_ms = status.since_ms
            elif seen == "WAITING FOR ITS TIME":
                if due_ms:
                    found.append(((began_ms - due_ms) / 1e3, (status.since_ms - began_ms) / 1e3))
                due_ms = status.next_ms
                sent += 1_000
                await asyncio.to_thread(send, bootstrap, sent, 1_000)
                until = time.monotonic() + START_S
            elif seen in ("BACKING OFF", "FAILED"):
                raise SystemExit(f"the pipeline failed: {status.error}")
    return found


def small_rounds(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    with Broker() as broker:
        new_topics(broker.bootstrap)
        schedule = Schedule(every_s=options.every)
        deployed(broker.bootstrap, folder / "project", SMALL, schedule)
        with worker(broker.bootstrap, folder / "worker"):
            found = asyncio.run(watch_rounds(broker.bootstrap, options.rounds))
    return {
        "begins_after_s": [round(late, 2) for late, _ in found],
        "takes_s": [round(took, 2) for _, took in found],
    }


def show(name: str, result: Mapping[str, Any], results: dict[str, Any]) -> None:
    results[name] = result
    print(f"{name:28} " + "  ".join(f"{key} {value}" for key, value in result.items()), flush=True)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--smoke", action="store_true", help="short, only to see it run")
    parser.add_argument("--rate", type=int, default=10_000, help="records per second")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long is measured")
    parser.add_argument("--warm-up-s", type=float, default=30.0)
    parser.add_argument("--interval", type=float, default=1.0, help="as --interval of deploy")
    parser.add_argument("--every", type=float, default=10.0, help="as --every of deploy")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", choices=("continuous", "rounds"))
    parser.add_argument("--no-connector", action="store_true", help="measure only ours")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.rate, options.seconds, options.warm_up_s, options.rounds = 200, 2.0, 0.0, 1
    return options


def main() -> None:
    options = parsed()
    jars = "" if options.no_connector else connector_jars()
    results: dict[str, Any] = {"rate": options.rate, "interval_s": options.interval}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if options.only != "rounds":
            show("continuous", continuous(root / "a", options), results)
            if jars:
                show(
                    "continuous, spark-submit", plain_continuous(root / "b", jars, options), results
                )
        if options.only != "continuous":
            show("rounds", small_rounds(root / "c", options), results)
            if jars:
                show("one job, spark-submit", plain_jobs(root / "d", jars, 3), results)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
