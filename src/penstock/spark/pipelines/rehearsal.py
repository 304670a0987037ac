"""Runs the code that all pipelines run, in a driver in reserve that has no pipeline yet.

A JVM in which Spark has just started has loaded few of the classes of a query and compiled none, so
the first round of a pipeline takes many times the processor time of the second one. A rehearsal
runs small queries of its own first. It has steps of a few seconds each. The worker asks for one
after the other while nothing else needs the processors, and a pipeline can take over the driver
after any of them.

The rehearsal leaves nothing behind that a pipeline would see: its files are in a folder of the
driver, which is removed, its views are in a session of their own, and no step uses a table. The
first use of a table opens the metastore, and the place of that is known only with the pipeline. If
the metastore was opened all the same, `is_spoiled` says so, and the driver must not be used.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.spark.pipelines.driver import Spark

_METASTORE: Final = "metastore_db"
_ROWS: Final = 100


class Rehearsal:
    """The steps of a rehearsal, in the current folder."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark
        self._home = Path.cwd()
        self._folder = self._home / "rehearsal"
        remote = spark.classic is None
        self._steps: list[Callable[[], None]] = [] if remote else self._all()

    @property
    def left(self) -> int:
        """How many steps are left."""
        return len(self._steps)

    @property
    def is_spoiled(self) -> bool:
        """Whether the metastore was opened: the driver must not run a pipeline."""
        return (self._home / _METASTORE).exists()

    def step(self) -> None:
        """Does the next step. An error ends the rehearsal: a pipeline starts without the rest."""
        if not self._steps:
            return
        try:
            self._steps.pop(0)()
        except Exception as error:  # noqa: BLE001 (the driver is good without it)
            self._steps.clear()
            sys.stderr.write(f"the rehearsal of the driver ended early: {error}\n")
        if not self._steps:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _all(self) -> list[Callable[[], None]]:
        return [self._find_sources, self._query, self._write, self._aggregate]

    def _session(self) -> Any:
        return self._spark.classic.newSession()

    def _find_sources(self) -> None:
        """Starts the Python processes that find and create Python data sources."""
        source = self._session().readStream.format("penstock")
        try:
            source.load()
        except Exception as error:
            # Without options it cannot be created, and says which one is missing.
            if "kafka.bootstrap.servers" not in str(error):
                raise

    def _query(self) -> None:
        """Runs a batch query with generated code and a shuffle."""
        numbers = (
            self._session().range(_ROWS).selectExpr("id % 7 AS key", "CAST(id AS STRING) AS t")
        )
        numbers.groupBy("key").agg({"t": "max"}).orderBy("key").collect()

    def _write(self) -> None:
        """Runs a stream into files, and reads them as a stream and as a batch."""
        session = self._session()
        out = str(self._folder / "copied")
        rows = self._rows(session).selectExpr("value", "CAST(value AS STRING) AS text", "timestamp")
        self._run(rows.writeStream.format("parquet").option("path", out), "copied")
        written = session.read.parquet(out)
        written.groupBy("text").count().write.mode("overwrite").parquet(f"{out}-counts")
        again = session.readStream.schema(written.schema).parquet(out)
        self._run(again.writeStream.format("noop"), "again")

    def _aggregate(self) -> None:
        """Runs a stream with state."""
        from pyspark.sql.functions import count, window  # noqa: PLC0415 (after the JVM was started)

        rows = self._rows(self._session()).withWatermark("timestamp", "1 minute")
        counted = rows.groupBy(window("timestamp", "1 minute")).agg(count("*").alias("records"))
        self._run(counted.writeStream.format("noop"), "counted")

    @staticmethod
    def _rows(session: Any) -> Any:
        source = session.readStream.format("rate-micro-batch").option("rowsPerBatch", _ROWS)
        return source.option("numPartitions", 2).load()

    def _run(self, writer: Any, name: str) -> None:
        """Runs a stream until it has read what there is."""
        checkpoint = os.fspath(self._folder / "checkpoints" / name)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
