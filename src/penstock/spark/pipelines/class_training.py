"""Runs a small pipeline, so that the JVM loads what a driver needs: `python -m
penstock.spark.pipelines.class_training`.

The JVM writes an archive of these classes when it ends (`penstock.spark.class_archive`). So unlike
a driver, this process waits for the JVM's own end. Tables and metastore are in the current folder.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Final

from pyspark.pipelines.cli import unpack_pipeline_spec

from penstock.spark.pipelines.driver import Events, Pipeline, Spark
from penstock.spark.pipelines.project import read_spec

_END_S: Final = 300.0
_SPEC: Final = """name: training
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""
_FLOWS: Final = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql.functions import count, window

spark = SparkSession.active()


def rows():
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100)
    return source.option("numPartitions", 2).load()


@dp.table
def copied():
    return rows().selectExpr("value", "CAST(value AS STRING) AS text", "timestamp")


@dp.table
def windows():
    grouped = rows().withWatermark("timestamp", "1 minute").groupBy(window("timestamp", "1 minute"))
    return grouped.agg(count("*").alias("records")).selectExpr("window.start AS start", "records")


@dp.materialized_view
def counts():
    return spark.read.table("copied").groupBy("text").count()
"""


def main() -> int:
    folder = Path.cwd()
    (folder / "transformations").mkdir(exist_ok=True)
    (folder / "transformations" / "flows.py").write_text(_FLOWS, "utf-8")
    spec_path = folder / "spark-pipeline.yml"
    spec_path.write_text(_SPEC.format(folder=folder), "utf-8")
    warehouse = {"spark.sql.warehouse.dir": str(folder / "warehouse")}
    spark = Spark("local[2]", warehouse)
    from pyspark import SparkContext  # noqa: PLC0415 (after the JVM was started)

    gateway = SparkContext._gateway
    assert gateway is not None
    spec = unpack_pipeline_spec(read_spec(spec_path))
    Pipeline(spec_path, spec, spark, Events(StringIO())).run(dry=False, full_refresh=False)
    spark.close()
    # Its JVM ends when its standard input is closed.
    process = gateway.proc
    with suppress(OSError):
        process.stdin.close()
    return int(process.wait(_END_S))


if __name__ == "__main__":
    sys.exit(main())
