"""How many rows a second does Spark get from a topic and into one, by our format and by its own?

The same broker, topic, Spark session and run; the two formats take turns, round by round, and each
gets its median after a round to warm up. Reading: a batch read of four partitions into an aggregate
that looks at every value. Writing: as many rows made by Spark, one topic for each round. The other
format is Spark's Kafka connector from Maven Central; which version of it is part of the results,
since Central need not have the version of the Spark that runs.

Run it from the project's root: `python -m benchmarks.spark --json`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession

from penstock import Admin, Producer, TopicPartition
from penstock.testing import Broker

FORMATS: Final = ("penstock", "kafka")
PARTITIONS: Final = 4
CHUNK_ROWS: Final = 100_000
ROWS: Final = {100: 4_000_000, 1024: 800_000}
"""Size of a value -> how many: each round takes seconds."""
SMOKE_ROWS: Final = {100: 20_000, 1024: 5_000}
ROUNDS: Final = 5


def connector_jars() -> str:
    """The jars of Spark's connector, as the compatibility tests have them."""
    tests = Path(__file__).resolve().parents[1] / "tests"
    found = subprocess.run(
        [sys.executable, "-m", "compat.spark_jars"],
        cwd=tests,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if found.returncode:
        raise SystemExit(f"there is nothing to compare with: {found.stderr.strip()}")
    return found.stdout.strip()


def session(jars: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.master": "local[2]",
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "2",
    }
    builder = SparkSession.builder.appName("penstock-benchmark")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Bench:
    def __init__(self, spark: SparkSession, bootstrap: str) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._topics = 0

    def new_topic(self) -> str:
        self._topics += 1
        name = f"spark-{self._topics}"
        with Admin(self._bootstrap) as admin:
            # Clients are compared, not the disk.
            admin.create_topic(name, partitions=PARTITIONS, configs={"durability": "replicated"})
        return name

    def delete_topic(self, name: str) -> None:
        with Admin(self._bootstrap) as admin:
            admin.delete_topic(name)

    def fill(self, topic: str, size: int, rows: int) -> None:
        with Producer(self._bootstrap) as producer:
            for first in range(0, rows, CHUNK_ROWS):
                count = min(CHUNK_ROWS, rows - first)
                partitions = pa.array([row % PARTITIONS for row in range(count)], pa.int32())
                values = pa.array([b"%0*d" % (size, first + row) for row in range(count)])
                table = pa.table({"value": values, "partition": partitions})
                producer.send_table(topic, table).result(60)

    def read(self, kind: str, topic: str, size: int, rows: int) -> float:
        began = time.perf_counter()
        options = {"kafka.bootstrap.servers": self._bootstrap, "subscribe": topic}
        frame = self._spark.read.format(kind).options(**options).load()
        seen = frame.selectExpr(
            "count(*) AS rows", "sum(length(value)) AS bytes", "max(offset) AS last"
        ).first()
        elapsed = time.perf_counter() - began
        if seen is None or (seen["rows"], seen["bytes"]) != (rows, rows * size):
            raise RuntimeError(f"{kind} read {seen} of {rows} rows of {size} bytes")
        return rows / elapsed

    def rows_to_write(self, size: int, rows: int) -> DataFrame:
        """Cheap to make: the sink is measured, not what feeds it."""
        digits = len(str(rows))
        value = f"concat(lpad(CAST(id AS STRING), {digits}, '0'), repeat('x', {size - digits}))"
        return self._spark.range(0, rows, 1, PARTITIONS).selectExpr(
            "CAST(id AS STRING) AS key", f"{value} AS value"
        )

    def write(self, kind: str, size: int, rows: int) -> float:
        topic = self.new_topic()
        began = time.perf_counter()
        options = {"kafka.bootstrap.servers": self._bootstrap, "topic": topic}
        writer = self.rows_to_write(size, rows).write.format(kind).mode("append")
        writer.options(**options).save()
        elapsed = time.perf_counter() - began
        with Admin(self._bootstrap) as admin:
            written = records_in(admin, topic)
        if written != rows:
            raise RuntimeError(f"{kind} wrote {written} of {rows} rows")
        self.delete_topic(topic)
        return rows / elapsed


def records_in(admin: Admin, topic: str) -> int:
    count = len(admin.describe_topic(topic).partitions)
    places = [TopicPartition(topic, partition) for partition in range(count)]
    ends = admin.list_offsets(dict.fromkeys(places, "latest"))
    return sum(end.offset for end in ends.values() if end is not None)


def take_turns(measure: Callable[[str], float], rounds: int) -> dict[str, Any]:
    rates: dict[str, list[float]] = {kind: [] for kind in FORMATS}
    for number in range(rounds + 1):
        # Who goes first changes, so that neither always follows the other.
        for kind in FORMATS if number % 2 else FORMATS[::-1]:
            rate = measure(kind)
            if number:
                rates[kind].append(rate)
    medians = {kind: statistics.median(each) for kind, each in rates.items()}
    return {
        "penstock_rows_per_s": medians["penstock"],
        "connector_rows_per_s": medians["kafka"],
        "ratio": medians["penstock"] / medians["kafka"],
        "rounds": {kind: [round(rate) for rate in each] for kind, each in rates.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--smoke", action="store_true", help="few rows, only to see it run")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", choices=("read", "write"), help="one direction")
    options = parser.parse_args()
    sizes, rounds = (SMOKE_ROWS, 1) if options.smoke else (ROWS, options.rounds)
    jars = connector_jars()
    results: dict[str, Any] = {
        "spark": pyspark.__version__,
        "connector_jars": sorted(Path(jar).name for jar in jars.split(",")),
    }
    print(f"Spark {results['spark']}, compared with {', '.join(results['connector_jars'])}")
    with Broker() as broker:
        spark = session(jars)
        bench = Bench(spark, broker.bootstrap)
        for size, rows in sizes.items():
            if options.only != "write":
                topic = bench.new_topic()
                bench.fill(topic, size, rows)
                read = partial(bench.read, topic=topic, size=size, rows=rows)
                show(results, f"read {size} bytes", take_turns(read, rounds))
                bench.delete_topic(topic)
            if options.only != "read":
                write = partial(bench.write, size=size, rows=rows // 2)
                show(results, f"write {size} bytes", take_turns(write, rounds))
        spark.stop()
    if options.json:
        print(json.dumps(results))


def show(results: dict[str, Any], name: str, result: dict[str, Any]) -> None:
    results[name] = result
    print(
        f"{name:18} penstock {result['penstock_rows_per_s']:11,.0f} rows/s"
        f"   connector {result['connector_rows_per_s']:11,.0f} rows/s"
        f"   ratio {result['ratio']:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
