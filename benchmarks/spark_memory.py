"""How much memory does Spark need to read a large topic in one batch job?

50 million records of 100 bytes in four partitions are read by one job on local[2] into an aggregate
that uses every value. The JVM is both driver and executor; its heap is limited. All processes of
the job are measured several times per second: the Python driver, the JVM, and the Python processes
that Spark starts. The peak of their total resident memory must stay within 4 GB; memory that two of
them share is counted for both. The broker is not included.

Run it from the project's root: `python -m benchmarks.spark_memory --json`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock import Producer
from penstock.testing import Broker

RECORDS: Final = 50_000_000
SMOKE_RECORDS: Final = 200_000
VALUE_BYTES: Final = 100
PARTITIONS: Final = 4
TABLE_ROWS: Final = 100_000
HEAP: Final = "1g"
LIMIT_BYTES: Final = 4 << 30
LOOK_S: Final = 0.2
JOB_S: Final = 3 * 3600.0


def write(bootstrap: str, topic: str, records: int) -> float:
    """Returns records per second; each value starts with the number of its record."""
    began = time.perf_counter()
    options: dict[str, Any] = {"batch_size": 512 << 10, "max_request_size": 4 << 20}
    with Producer(bootstrap, **options) as producer:
        for first in range(0, records, TABLE_ROWS):
            numbers = range(first, min(first + TABLE_ROWS, records))
            values = pa.array([b"%0*d" % (VALUE_BYTES, number) for number in numbers], pa.binary())
            partitions = pa.array([number % PARTITIONS for number in numbers], pa.int32())
            table = pa.table({"value": values, "partition": partitions})
            producer.send_table(topic, table)
    return records / (time.perf_counter() - began)


def job(bootstrap: str, topic: str, heap: str) -> None:
    """The measured job: runs in its own process and prints its result."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.memory": heap,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    builder = SparkSession.builder.appName("memory")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    frame = (
        spark.read.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .load()
    )
    began = time.perf_counter()
    row = frame.selectExpr(
        "count(*) AS records",
        "sum(bigint(string(value))) AS numbers",
        "sum(length(value)) AS bytes",
    ).first()
    assert row is not None
    found = {**row.asDict(), "seconds": time.perf_counter() - began}
    spark.stop()
    print(json.dumps(found), flush=True)


@dataclass
class Peak:
    """The peak of resident bytes, in total and of each kind of process."""

    total: int = 0
    kinds: dict[str, int] = field(default_factory=dict)

    def look(self, root: int) -> None:
        kinds: dict[str, int] = {}
        for process in _family(root):
            kind, resident = _resident(process)
            kinds[kind] = kinds.get(kind, 0) + resident
        if sum(kinds.values()) > self.total:
            self.total, self.kinds = sum(kinds.values()), kinds


def _family(root: int) -> list[int]:
    """Returns the process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # The process has just ended.
            parents.setdefault(int(after_name[1]), []).append(int(entry.name))
    family = [root]
    for process in family:
        family += parents.get(process, [])
    return family


def _resident(process: int) -> tuple[str, int]:
    try:
        name = Path(f"/proc/{process}/comm").read_text().strip()
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:
        return "python", 0
    return ("jvm" if name == "java" else "python"), pages * os.sysconf("SC_PAGE_SIZE")


def measure(bootstrap: str, topic: str, heap: str) -> tuple[dict[str, Any], Peak]:
    command = [sys.executable, "-m", "benchmarks.spark_memory", "--job", bootstrap, topic, heap]
    peak = Peak()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stdin=subprocess.DEVNULL)
        end = time.monotonic() + JOB_S
        while process.poll() is None:
            peak.look(process.pid)
            if time.monotonic() > end:
                process.kill()
                raise SystemExit(f"the job did not end within {JOB_S:g} s")
            time.sleep(LOOK_S)  # A peak can be found only by sampling.
        if process.returncode:
            raise SystemExit(f"the job failed with exit code {process.returncode}: see above")
        output.seek(0)
        return json.loads(output.read().splitlines()[-1]), peak


def run(records: int, heap: str, directory: str | None) -> dict[str, Any]:
    data = tempfile.mkdtemp(prefix="penstock-memory-", dir=directory)
    try:
        with Broker(data=data) as broker:
            topic = broker.new_topic(PARTITIONS)
            written = write(broker.bootstrap, topic, records)
            try:
                found, peak = measure(broker.bootstrap, topic, heap)
            except SystemExit:
                print(broker.output(), file=sys.stderr)
                raise
    finally:
        shutil.rmtree(data, ignore_errors=True)
    expected = (records, records * (records - 1) // 2, records * VALUE_BYTES)
    if (found["records"], found["numbers"], found["bytes"]) != expected:
        raise SystemExit(f"the job read something else than was written: {found}")
    return {
        "records": records,
        "value_bytes": VALUE_BYTES,
        "heap": heap,
        "write_records_per_s": round(written),
        "read_records_per_s": round(records / found["seconds"]),
        "seconds": round(found["seconds"], 1),
        "peak_bytes": peak.total,
        "peak_bytes_by_kind": peak.kinds,
        "limit_bytes": LIMIT_BYTES,
        "is_within": peak.total <= LIMIT_BYTES,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--heap", default=HEAP, help="the JVM's -Xmx")
    parser.add_argument("--directory", help="where the broker's data go; they are removed")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--job", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        job(*given.job)
        return
    results = run(SMOKE_RECORDS if given.smoke else given.records, given.heap, given.directory)
    if not given.json:
        parts = ", ".join(
            f"{kind} {size >> 20} MiB" for kind, size in results["peak_bytes_by_kind"].items()
        )
        print(
            f"{results['records']:,} records in {results['seconds']} s; at most "
            f"{results['peak_bytes'] >> 20} MiB resident ({parts}) of {LIMIT_BYTES >> 20} MiB"
        )
    else:
        print(json.dumps(results))
    sys.exit(not results["is_within"])


if __name__ == "__main__":
    main()
