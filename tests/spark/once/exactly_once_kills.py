"""Runs an exactly-once stream while its driver, executors and brokers are killed.

    cd tests && python -m spark.once.exactly_once_kills --rows 1000000 --kills 50 --seed 1

There are three brokers, and everything is replicated three times. A query copies a topic to another
with `delivery=exactly_once`, in a Spark whose executors are separate processes. Each time a number
of further batches is committed, a process is killed with SIGKILL at a random moment: the driver
with all its processes, or without its executors, which may continue for a while; an executor, with
or without its Python workers; or a broker, which is restarted. A query that ends by itself is
restarted.

At the end every row was written exactly once and in order, both for a reader of committed records
that started late and for one that read all the time. No transaction is open or hangs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from time import monotonic

import pyarrow as pa

from chaos.broker_processes import BrokerProcesses, NotInTime, wait_for
from penstock import Admin, ClientError, Consumer, Producer
from penstock.spark.home import make_home
from penstock.spark.once.asking import PROGRESS
from penstock.topic_partition import TopicPartition

PARTITIONS = 4
SOURCE, TARGET, SINK = "source", "target", "copy"
SETTINGS = {
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "min.insync.replicas": 2,
}
STEP_S = 1800.0
"""How long the query may take until its next sign of progress."""
VALUE_BYTES = 60
SPARK = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "512m",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.task.maxFailures": "20",
    # An idle machine needs a tenth of these.
    "spark.network.timeout": "600s",
    "spark.executor.heartbeatInterval": "30s",
    "spark.python.authenticate.socketTimeout": "600s",
}


class KillsFailed(AssertionError):
    pass


@dataclass
class Outcome:
    rows: int = 0
    batches: int = 0
    kills: dict[str, int] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    """The reasons why the query ended by itself."""
    starts: int = 0
    aborted_records: int = 0
    """Offsets of the target that no reader of committed records receives:
    aborted attempts and markers."""
    seconds: float = 0.0


# -- the query, which is a separate process -------------------------------------------------------


def drive(bootstrap: str, directory: str, batch_rows: int) -> None:
    from pyspark.sql import SparkSession

    from spark.conftest import SESSION_SETTINGS

    builder = SparkSession.builder.appName("exactly-once")
    for name, value in {**SESSION_SETTINGS, **SPARK}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    query = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", SOURCE)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch_rows)
        .load()
        # Every task writes to every partition, and each partition gets its rows in order.
        .selectExpr("value", f"CAST((offset DIV 50) % {PARTITIONS} AS INT) AS partition")
        .writeStream.format("penstock")
        .queryName(SINK)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", TARGET)
        .option("delivery", "exactly_once")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


class Query:
    """One run of the query with all its processes, which share one kernel session."""

    def __init__(self, bootstrap: str, directory: Path, batch_rows: int, env: dict[str, str]):
        self._output = directory / "output"
        self._from = self._output.stat().st_size if self._output.exists() else 0
        command = [sys.executable, "-m", "spark.once.exactly_once_kills", "--drive", bootstrap]
        command += [str(directory), str(batch_rows)]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=Path(__file__).resolve().parents[2],
                env=env,
            )

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def why_ended(self) -> str:
        with self._output.open("rb") as file:
            file.seek(self._from)
            lines = file.read().decode(errors="replace").splitlines()
        told = [line for line in lines if "Exception:" in line or "Error:" in line]
        return " | ".join((told or lines)[-3:])[-1500:]

    def executors(self) -> list[int]:
        return [pid for pid, line in self._processes() if "CoarseGrainedExecutorBackend" in line]

    def kill_executor(self, random: Random, *, alone: bool) -> None:
        wait_for("an executor runs", lambda: bool(self.executors() or self.exit_code), STEP_S)
        executors = self.executors()
        if not executors:
            return  # The query has ended by itself; its next run has executors again.
        chosen = random.choice(executors)
        below = [] if alone else _descendants(chosen)
        _kill([chosen, *below])

    def kill_driver(self, *, alone: bool) -> None:
        spared = set()
        if alone:
            spared = {each for pid in self.executors() for each in (pid, *_descendants(pid))}
        _kill([pid for pid, _ in self._processes() if pid not in spared])
        self._process.wait(60)

    def close(self) -> None:
        """Kills all remaining processes."""
        _kill([pid for pid, _ in self._processes()])
        self._process.wait(60)

    def _processes(self) -> list[tuple[int, str]]:
        found = []
        for name in os.listdir("/proc"):
            if name.isdecimal() and (stat := _stat(int(name))) and stat[3] == self._process.pid:
                try:
                    line = Path(f"/proc/{name}/cmdline").read_text(errors="replace")
                except OSError:
                    continue
                found.append((int(name), line))
        return found


def _stat(pid: int) -> tuple[str, int, int, int] | None:
    """Returns state, parent, process group and session of a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1]), int(fields[2]), int(fields[3])


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (stat := _stat(int(name))):
            children.setdefault(stat[1], []).append(int(name))
    found, left = [], [pid]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


# -- writing and reading ---------------------------------------------------------------------------


def fill(bootstrap: str, rows: int) -> None:
    """Writes rows whose values contain their partition and their number in it."""
    with Producer(bootstrap, batch_size=200_000) as producer:
        for partition in range(PARTITIONS):
            count = rows // PARTITIONS + (partition < rows % PARTITIONS)
            for first in range(0, count, 20_000):
                numbers = range(first, min(first + 20_000, count))
                values = [b"%d:%d:" % (partition, n) for n in numbers]
                table = {
                    "value": [value.ljust(VALUE_BYTES, b".") for value in values],
                    "partition": pa.array([partition] * len(values), pa.int32()),
                }
                producer.send_table(SOURCE, pa.RecordBatch.from_pydict(table)).result(STEP_S)


class Copy:
    """The rows that a reader received from the target."""

    def __init__(self, rows: int) -> None:
        self._seen = [
            bytearray(rows // PARTITIONS + (p < rows % PARTITIONS)) for p in range(PARTITIONS)
        ]
        self._last = {(p, q): -1 for p in range(PARTITIONS) for q in range(PARTITIONS)}
        self.rows = 0

    def add(self, target: int, value: bytes) -> None:
        left, right, _ = value.split(b":")
        source, number = int(left), int(right)
        if number // 50 % PARTITIONS != target:
            raise KillsFailed(f"row {source}:{number} is in partition {target}")
        if self._seen[source][number]:
            raise KillsFailed(f"row {source}:{number} is there twice")
        if self._last[source, target] > number:
            raise KillsFailed(
                f"row {source}:{number} comes behind {self._last[source, target]} in {target}"
            )
        self._seen[source][number] = 1
        self._last[source, target] = number
        self.rows += 1

    def check(self, who: str) -> None:
        missing = [
            f"{source}:{seen.index(0)} (and {seen.count(0) - 1} more)"
            for source, seen in enumerate(self._seen)
            if 0 in seen
        ]
        if missing:
            raise KillsFailed(f"{who} did not get {', '.join(missing)}")


class Reading:
    """A reader of committed records that reads from the beginning of the test."""

    def __init__(self, bootstrap: str, rows: int) -> None:
        self.copy = Copy(rows)
        self._bootstrap, self._rows = bootstrap, rows
        self._end = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="reading")

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """Everything has been written: the reader must receive it within a minute."""
        wait_for(
            "the first reader has everything",
            lambda: self.copy.rows >= self._rows or self._error is not None,
            60.0,
        )
        self.stop()
        if self._error is not None:
            raise self._error
        self.copy.check("the reader that was there all the time")

    def stop(self) -> None:
        self._end.set()
        self._thread.join(60)

    def _work(self) -> None:
        topic_partitions = [TopicPartition(TARGET, partition) for partition in range(PARTITIONS)]
        try:
            with Consumer(
                self._bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
            ) as consumer:
                consumer.assign(topic_partitions)
                while not self._end.is_set():
                    for record in consumer.poll(500):
                        assert record.value is not None
                        self.copy.add(record.partition, record.value)
        except BaseException as error:
            self._error = error
            raise


def read_late(bootstrap: str, rows: int) -> None:
    copy = Copy(rows)
    with Consumer(bootstrap, isolation_level="read_committed") as consumer:
        for partition in range(PARTITIONS):
            for batch in consumer.read_batches(TARGET, partitions=[partition]):
                for value in batch.column("value").to_pylist():
                    copy.add(partition, value)
    copy.check("the reader that came late")


def nothing_open(admin: Admin) -> int:
    """Checks that no transaction is open or hangs. Returns the sum of the target's end offsets."""
    wait_for(
        "no transaction is under way",
        lambda: all(
            each.state.startswith(("Complete", "Empty")) for each in admin.list_transactions()
        ),
        30.0,
    )
    search = admin.find_hanging_transactions()
    if search.found or search.not_seen:
        raise KillsFailed(f"hanging: {search.found}, not seen: {search.not_seen}")
    topic_partitions = [TopicPartition(TARGET, partition) for partition in range(PARTITIONS)]
    ends = admin.list_offsets(dict.fromkeys(topic_partitions, "latest"))
    return sum(found.offset for found in ends.values() if found is not None)


# -- the run ---------------------------------------------------------------------------------------


class Run:
    def __init__(self, directory: Path, rows: int, kills: int, batches: int, seed: int) -> None:
        self.random = Random(seed)
        self.outcome = Outcome(rows=rows)
        self._directory = directory
        self._kills, self._batches = kills, batches
        self._batch_rows = max(PARTITIONS, rows // batches)
        self._fleet = BrokerProcesses(directory / "brokers", 3, settings=SETTINGS)
        home = make_home(directory / "home")
        self._env = {
            **os.environ,
            **home,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_HOSTNAME": "localhost",
        }
        self._lives: list[Query] = []
        self._began = monotonic()

    def __call__(self) -> Outcome:
        bootstrap = self._fleet.start()
        reading = Reading(bootstrap, self.outcome.rows)
        try:
            with Admin(bootstrap) as admin:
                for topic in (SOURCE, TARGET):
                    admin.create_topic(topic, PARTITIONS, 3)
                fill(bootstrap, self.outcome.rows)
                reading.start()
                self._copy(admin)
                self.outcome.batches = _committed(admin)
                reading.check()
                read_late(bootstrap, self.outcome.rows)
                written = nothing_open(admin)
                self.outcome.aborted_records = written - self.outcome.rows
            if complaints := self._fleet.complaints():
                raise KillsFailed("\n".join(complaints[:20]))
        finally:
            reading.stop()
            for life in self._lives:
                life.close()
            self._fleet.close()
        self.outcome.seconds = round(monotonic() - self._began, 1)
        return self.outcome

    def _start(self) -> Query:
        self.outcome.starts += 1
        query = Query(self._fleet.bootstrap, self._directory, self._batch_rows, self._env)
        self._lives.append(query)
        return query

    def _copy(self, admin: Admin) -> None:
        query = self._start()
        done, last_sign = 0, monotonic()
        while True:
            if (code := query.exit_code) is not None:
                if code == 0 and self._kill_count >= self._kills:
                    return
                if code == 0:
                    raise KillsFailed(f"all is written, after {self._kill_count} kills only")
                self.outcome.ended.append(query.why_ended())
                print(f"ended by itself: {self.outcome.ended[-1]}", flush=True)
                query, last_sign = self._start(), monotonic()
            committed = _committed(admin)
            if committed > done:
                done, last_sign = committed, monotonic()
            if monotonic() - last_sign > STEP_S:
                raise NotInTime(f"no batch after {done}: {query.why_ended()}")
            due = 1 + self._kill_count * self._batches // (self._kills + 1)
            if self._kill_count < self._kills and done >= due:
                threading.Event().wait(self.random.random() * 2)
                query = self._strike(query, done)
                last_sign = monotonic()
            threading.Event().wait(0.2)

    @property
    def _kill_count(self) -> int:
        return sum(self.outcome.kills.values())

    def _strike(self, query: Query, done: int) -> Query:
        kind = self.random.choice(
            ("driver", "driver alone", "executor", "executor alone", "broker")
        )
        if kind == "broker" or self._kill_count % 3 == 0:
            kind = "broker"
            self._strike_broker()
        elif kind.startswith("driver"):
            query.kill_driver(alone=kind == "driver alone")
            query = self._start()
        else:
            query.kill_executor(self.random, alone=kind == "executor alone")
        self.outcome.kills[kind] = self.outcome.kills.get(kind, 0) + 1
        seconds = monotonic() - self._began
        print(f"{seconds:.0f} s, kill {self._kill_count}: {kind}, after {done} batches", flush=True)
        return query

    def _strike_broker(self) -> None:
        """Kills and restarts one broker. Only one is down at a time, and all
        replicas are in sync before."""
        for topic in (SOURCE, TARGET, "__consumer_offsets", "__transaction_state"):
            self._fleet.wait_in_sync(topic, 120.0)
        node = self._fleet.nodes[self.random.randrange(3)]
        node.kill()
        threading.Event().wait(self.random.random() * 4)
        self._fleet.restart(node.broker_id)


def _committed(admin: Admin) -> int:
    try:
        found = admin.group_offsets(SINK).get(PROGRESS)
    except ClientError:
        return 0  # The coordinator is moving to another broker.
    return 0 if found is None else found.offset


def run(rows: int, kills: int, seed: int, batches: int = 0) -> Outcome:
    """Runs the test. If it fails, its files are kept for inspection."""
    directory = tempfile.mkdtemp(prefix="penstock-kills-")
    print(f"files: {directory}", flush=True)
    outcome = Run(Path(directory), rows, kills, batches or max(10, kills * 3), seed)()
    shutil.rmtree(directory)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--batches", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drive", nargs=3, metavar=("BOOTSTRAP", "DIRECTORY", "ROWS"))
    given = parser.parse_args()
    if given.drive:
        drive(given.drive[0], given.drive[1], int(given.drive[2]))
    else:
        print(json.dumps(asdict(run(given.rows, given.kills, given.seed, given.batches))))


if __name__ == "__main__":
    main()
