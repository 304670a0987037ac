"""The driver of the cluster tests: `python jobs.py '{"spark.master": ...}'`, then one job per line.

It runs as a script, so that Spark sends its functions to executors by value: the tests are not
installed there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

OPTIONS = "kafka.bootstrap.servers"


def pass_gate(address: list[Any], after: int) -> Callable[[Iterator[pa.RecordBatch]], Any]:
    """Returns a function for mapInArrow that passes batches on, and reports and waits after
    the first `after` of them."""

    def executor_pid() -> int:
        """Returns the JVM that this worker belongs to: the nearest ancestor that is not Python."""
        import os
        from pathlib import Path

        pid = os.getppid()
        while "python" in Path(f"/proc/{pid}/comm").read_text():
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return pid

    def report() -> None:
        import json
        import socket

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        said = [executor_pid(), context.partitionId(), context.attemptNumber()]
        with socket.create_connection((address[0], address[1])) as connection:
            connection.settimeout(6_000)
            connection.sendall(json.dumps(said).encode() + b"\n")
            connection.recv(16)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches, 1):
            if number == after and after == 1:
                report()
            yield batch
            if number == after and after > 1:
                report()

    return work


class Jobs:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def ping(self) -> str:
        return self._spark.version

    def read(self, bootstrap: str, topic: str, gate: list[Any]) -> list[list[int]]:
        """Reads a topic in a batch. Each task waits at the gate once it has its first rows."""
        rows = self._spark.read.format("penstock").options(
            **{OPTIONS: bootstrap, "subscribe": topic}
        )
        found = self._gated(rows.load(), gate, 1).select("partition", "offset")
        return [[row.partition, row.offset] for row in found.collect()]

    def stream_to_table(
        self, bootstrap: str, topic: str, gate: list[Any], path: str, checkpoint: str
    ) -> list[list[int]]:
        stream = self._stream(bootstrap, topic)
        query = (
            self._gated(stream, gate, 1)
            .select("partition", "offset")
            .writeStream.format("parquet")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(path)
        )
        query.awaitTermination()
        table = self._spark.read.parquet(path)
        return [[row.partition, row.offset] for row in table.collect()]

    def stream_to_topic(
        self, bootstrap: str, topic: str, gate: list[Any], to: str, checkpoint: str
    ) -> int:
        query = (
            self._gated(self._stream(bootstrap, topic).select("value"), gate, 1)
            .writeStream.format("penstock")
            .options(**{OPTIONS: bootstrap, "topic": to, "checkpointLocation": checkpoint})
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return len([each for each in query.recentProgress if each["numInputRows"]])

    def write(self, bootstrap: str, to: str, rows: int, gate: list[Any]) -> None:
        """Writes a batch with two tasks. Each waits at the gate with some of its rows written."""
        numbers = self._spark.range(0, rows, 1, 2).selectExpr(
            "CAST(id AS STRING) AS key", "repeat('x', 500) AS value"
        )
        gated = self._gated(numbers, gate, 3)
        gated.write.format("penstock").options(**{OPTIONS: bootstrap, "topic": to}).mode(
            "append"
        ).save()

    def _stream(self, bootstrap: str, topic: str) -> DataFrame:
        return (
            self._spark.readStream.format("penstock")
            .options(**{OPTIONS: bootstrap, "subscribe": topic, "startingOffsets": "earliest"})
            .option("maxOffsetsPerTrigger", 20_000)
            .load()
        )

    def _gated(self, rows: DataFrame, gate: list[Any], after: int) -> DataFrame:
        return rows.mapInArrow(pass_gate(gate, after), rows.schema)


def main() -> None:
    settings = json.loads(sys.argv[1])
    builder = SparkSession.builder.appName("penstock-cluster-tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    jobs = Jobs(builder.getOrCreate())
    answer(jobs.ping)
    for line in sys.stdin:
        asked = json.loads(line)
        answer(getattr(jobs, asked["job"]), **asked["arguments"])


def answer(job: Callable[..., Any], **arguments: Any) -> None:
    try:
        said = {"result": job(**arguments)}
    except Exception as error:  # noqa: BLE001 (any error is reported to the test)
        said = {"error": f"{type(error).__name__}: {error}"}
    print(f"\nANSWER {json.dumps(said)}", flush=True)


if __name__ == "__main__":
    main()
