"""The five pipelines of the run. Each reads the same topic, and writes its result in another way.

Every pipeline has a witness: a thread in the driver that writes the driver's process id, when it
began, and the boot time to a file of the pipeline's storage, ten times a second. It knows nothing
of leases and takes no lock, so two owners would both be seen.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

EVENTS = "events"
PARTITIONS = 2
COPIES, SCRIPTED = "copies", "scripted"
WINDOW_MS = 10_000
WITNESS_FILE = "_owners.log"

_WITNESS = """
def _witness():
    import os, sys, threading, time

    if "penstock_witness" in sys.modules:
        return
    sys.modules["penstock_witness"] = sys

    def mark():
        def now():
            return time.clock_gettime(time.CLOCK_BOOTTIME)

        began = now()
        folder = os.environ["PENSTOCK_STORAGE"].removeprefix("file://")
        with open(folder + "/_owners.log", "ab", buffering=0) as out:
            while True:
                out.write(b"%d %.3f %.3f\\n" % (os.getpid(), began, now()))
                time.sleep(0.1)

    threading.Thread(target=mark, name="witness", daemon=True).start()


_witness()
"""
_SPEC = """name: {name}
storage: file:///nowhere
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.sql.shuffle.partitions: "2"
"""
_STREAM = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql.functions import count, sum, window

spark = SparkSession.active()
bootstrap = spark.conf.get("spark.penstock.bootstrap")


def records():
    return (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "events")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 50000)
        .load()
    )


def parsed():
    text = "CAST(value AS STRING)"
    return records().selectExpr(
        "CAST(key AS STRING) AS k",
        f"CAST(get_json_object({text}, '$.n') AS LONG) AS n",
        f"CAST(get_json_object({text}, '$.t') AS LONG) AS t",
    )
"""
_TABLE = """

@dp.table
def copied():
    return parsed()
"""
_TOPIC = """
dp.create_sink(
    "out",
    "penstock",
    {
        "kafka.bootstrap.servers": bootstrap,
        "topic": "copies",
        "delivery": "exactly_once",
        "sink": "kills-copy",
    },
)


@dp.append_flow(target="out")
def copy():
    return records().selectExpr("key", "value")
"""
_WINDOWS = """

@dp.table
def windows():
    return (
        parsed()
        .selectExpr("k", "n", "timestamp_millis(t) AS at")
        .withWatermark("at", "2 minutes")
        .groupBy(window("at", "10 seconds"), "k")
        .agg(count("*").alias("records"), sum("n").alias("total"))
        .selectExpr("unix_millis(window.start) AS start", "k", "records", "total")
    )
"""
_SCHEDULED = """

@dp.table
def collected():
    return parsed()


@dp.materialized_view
def counts():
    read = spark.read.table("collected").groupBy("k")
    return read.agg(count("*").alias("records"), sum("n").alias("total"))
"""
_SCRIPT = """
import os

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
bootstrap = os.environ["PENSTOCK_BOOTSTRAP"]
(
    spark.readStream.format("penstock")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", "events")
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 50000)
    .load()
    .selectExpr("key", "value")
    .writeStream.format("penstock")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("topic", "scripted")
    .option("delivery", "exactly_once")
    .option("checkpointLocation", os.environ["PENSTOCK_STORAGE"] + "/_checkpoints/copy")
    .queryName("copy")
    .trigger(processingTime="8 seconds")
    .start()
)
"""
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass(frozen=True)
class Pipeline:
    name: str
    code: str
    options: tuple[str, ...] = ()
    is_script: bool = False

    def write(self, folder: Path) -> Path:
        """Writes its project. Returns what `penstock pipeline deploy` is given."""
        folder.mkdir(parents=True)
        if self.is_script:
            script = folder / "job.py"
            script.write_text(_WITNESS + self.code)
            return script
        (folder / "transformations").mkdir()
        (folder / "spark-pipeline.yml").write_text(_SPEC.format(name=self.name))
        (folder / "transformations" / "flows.py").write_text(_WITNESS + _STREAM + self.code)
        return folder


def pipelines(master: str = "") -> list[Pipeline]:
    """Returns all five. The script runs on this standalone master, if there is one."""
    on_master = (
        *("--master", master, "--memory", "512m"),
        *("--conf", "spark.executor.memory=512m"),
        *("--conf", "spark.cores.max=1"),
        *("--conf", f"spark.executor.extraJavaOptions={JAVA_OPTIONS}"),
        *("--conf", "spark.driver.host=127.0.0.1"),
        *("--conf", "spark.driver.bindAddress=127.0.0.1"),
    )
    return [
        Pipeline("table", _TABLE, ("--continuous", "--interval", "8")),
        Pipeline("topic", _TOPIC, ("--continuous", "--interval", "8")),
        Pipeline("windows", _WINDOWS, ("--continuous", "--interval", "8")),
        Pipeline("script", _SCRIPT, on_master if master else (), is_script=True),
        Pipeline("scheduled", _SCHEDULED, ("--every", "20s")),
    ]


def environment() -> dict[str, str]:
    """Returns the environment of workers and commands: small JVMs that start fast."""
    return {
        **{name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"},
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": JAVA_OPTIONS,
    }


def command(*words: str) -> Sequence[str]:
    return [sys.executable, "-m", "penstock.cli.main", "pipeline", *words]
