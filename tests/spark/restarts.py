"""Stops, kills and restarts a checkpointed query at random points.

    cd tests && python -m spark.restarts --rounds 20 --seed 1

A producer writes the whole time. Each round starts the query in its own process group (a Python
driver with its JVM), lets it run a random number of batches, and ends it: by a stop request, or by
killing all its processes. A last run reads the rest. Then the log that `foreachBatch` wrote must be
consistent: a batch that was run again has the same records, the batches in sequence have every
record of every partition once and in order, and the group has no lag.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic

from penstock import Admin, Producer
from penstock.testing import Broker
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition

PARTITIONS = 3
BATCH_RECORDS = 200
LAST_BATCH_RECORDS = 20_000
"""The last run uses large batches, because a slow machine leaves many records to it."""
END_S = 300.0
"""How long one run of the query may take until its next sign of progress."""


class RestartsFailed(AssertionError):
    pass


@dataclass
class Outcome:
    records: int = 0
    batches: int = 0
    repeated: int = 0
    """The number of batches that were run more than once."""
    killed: int = 0
    stopped: int = 0
    lag: dict[str, int] = field(default_factory=dict)


# -- the query, which is a separate process -------------------------------------------------------


def drive(bootstrap: str, topic: str, directory: str, *, to_end: bool) -> None:
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    from pyspark.sql import DataFrame, SparkSession

    from spark.conftest import SESSION_SETTINGS

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("restarts")
    for name, value in {**SESSION_SETTINGS, "spark.driver.memory": "512m"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    log = os.open(f"{directory}/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    # Ends a line that a killed run left incomplete.
    os.write(log, b"\n")

    def take(frame: DataFrame, batch_id: int) -> None:
        rows = frame.selectExpr("partition", "offset", "string(value)").collect()
        entry = {"batch": batch_id, "rows": [list(row) for row in rows]}
        os.write(log, json.dumps(entry).encode() + b"\n")

    frame = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", LAST_BATCH_RECORDS if to_end else BATCH_RECORDS)
        .option("minPartitions", PARTITIONS + 1)
        .option("groupId", topic)
        .load()
    )
    writer = frame.writeStream.foreachBatch(take).option(
        "checkpointLocation", f"{directory}/checkpoint"
    )
    kind = {"availableNow": True} if to_end else {"processingTime": "50 milliseconds"}
    query = writer.trigger(**kind).start()
    print("started", flush=True)
    while query.isActive and not asked.is_set():
        asked.wait(0.1)
    if query.isActive:
        query.stop()
    if (error := query.exception()) is not None:
        raise error
    spark.stop()


# -- the rest of the test --------------------------------------------------------------------------


class Writing:
    """Writes records with their own position as value, at a moderate rate, until stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.counts = [0] * PARTITIONS
        self._bootstrap, self._topic = bootstrap, topic
        self._end = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="writing")

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(patient(60))
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            with Producer(self._bootstrap) as producer:
                while not self._end.wait(0.05):
                    for partition in range(PARTITIONS):
                        for _ in range(1 + partition * 2):
                            value = f"{partition}:{self.counts[partition]}".encode()
                            producer.send(self._topic, value, partition=partition)
                            self.counts[partition] += 1
        except BaseException as error:
            self._error = error
            raise


class Run:
    """One run of the query."""

    def __init__(self, broker: Broker, topic: str, directory: Path, *, to_end: bool) -> None:
        self._log = directory / "log"
        self._output = directory / "output"
        command = [sys.executable, "-m", "spark.restarts", "--drive", broker.bootstrap]
        command += [topic, str(directory), *(["--to-end"] if to_end else [])]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=Path(__file__).resolve().parents[1],
            )

    def wait_for_batches(self, count: int) -> None:
        """Waits for this many further batches."""
        wanted = self._batches() + count
        end = monotonic() + patient(END_S)
        pause = threading.Event()
        while self._batches() < wanted:
            if self._process.poll() is not None:
                raise RestartsFailed(f"the query ended by itself:\n{self._tail()}")
            if monotonic() > end:
                raise RestartsFailed(f"the query does not go on:\n{self._tail()}")
            pause.wait(0.05)

    def _batches(self) -> int:
        return self._log.read_bytes().count(b'{"batch"') if self._log.exists() else 0

    def stop(self) -> None:
        """Requests a stop. A query that does not handle the signal yet is
        ended by the signal itself."""
        self._process.send_signal(signal.SIGTERM)
        self.wait(also=-signal.SIGTERM)

    def wait(self, also: int = 0) -> None:
        """Waits for a normal end."""
        try:
            code = self._process.wait(patient(END_S))
        except subprocess.TimeoutExpired:
            raise RestartsFailed(f"the query does not end:\n{self._tail()}") from None
        if code not in (0, also):
            raise RestartsFailed(f"the query ended with {code}:\n{self._tail()}")

    def kill(self) -> None:
        """Kills driver, JVM and Python workers at once, as when a machine fails."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(patient(60))

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()

    def _tail(self) -> str:
        return self._output.read_text(errors="replace")[-4000:]


def run(rounds: int, seed: int) -> Outcome:
    random = Random(seed)
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="penstock-restarts-") as name, Broker() as broker:
        directory = Path(name)
        topic = broker.new_topic(PARTITIONS)
        with Writing(broker.bootstrap, topic) as writing:
            for number in range(rounds):
                is_kill = random.random() < 0.6 if rounds > 2 else number % 2 == 0
                _one_round(Run(broker, topic, directory, to_end=False), random, is_kill)
                outcome.killed += is_kill
                outcome.stopped += not is_kill
                print(f"round {number + 1}: {'killed' if is_kill else 'stopped'}", flush=True)
        last = Run(broker, topic, directory, to_end=True)
        try:
            last.wait()
        finally:
            last.close()
        check_log((directory / "log").read_bytes(), writing.counts, outcome)
        outcome.lag = _lag(broker, topic)
    if any(outcome.lag.values()):
        raise RestartsFailed(f"the group lags behind: {outcome.lag}")
    return outcome


def _one_round(query: Run, random: Random, is_kill: bool) -> None:
    try:
        query.wait_for_batches(random.randrange(4))
        threading.Event().wait(random.random() * 0.5)
        if is_kill:
            query.kill()
        else:
            query.stop()
    finally:
        query.close()


def check_log(log: bytes, counts: Sequence[int], outcome: Outcome) -> None:
    """Checks that the log has every record of every partition, in order, whatever was run again."""
    batches: dict[int, list[list[object]]] = {}
    for line in log.splitlines():
        if not line.endswith(b"}"):
            continue  # Empty, or cut off by a kill: its batch was run again.
        entry = json.loads(line)
        known = batches.setdefault(entry["batch"], entry["rows"])
        outcome.repeated += known is not entry["rows"]
        if known != entry["rows"]:
            raise RestartsFailed(f"batch {entry['batch']} was not the same when run again")
    seen: list[list[int]] = [[] for _ in counts]
    for number in sorted(batches):
        for partition, offset, value in batches[number]:
            if value != f"{partition}:{offset}" or not isinstance(partition, int):
                raise RestartsFailed(f"partition {partition} has {value!r} at {offset}")
            seen[partition].append(int(str(offset)))
    for partition, count in enumerate(counts):
        if seen[partition] != list(range(count)):
            raise RestartsFailed(
                f"partition {partition} has {count} records; the log has {len(seen[partition])}: "
                f"first difference at {_first_difference(seen[partition])}"
            )
    outcome.records, outcome.batches = sum(counts), len(batches)


def _first_difference(seen: Sequence[int]) -> int:
    return next((index for index, offset in enumerate(seen) if offset != index), len(seen))


def _lag(broker: Broker, topic: str) -> dict[str, int]:
    topic_partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with Admin(broker.bootstrap) as admin:
        committed = admin.group_offsets(topic)
        ends = admin.list_offsets(dict.fromkeys(topic_partitions, "latest"))
    lag = {}
    for topic_partition in topic_partitions:
        end = ends[topic_partition]
        assert end is not None
        lag[str(topic_partition)] = end.offset - (
            committed[topic_partition].offset if topic_partition in committed else 0
        )
    return lag


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drive", nargs=3, metavar=("BOOTSTRAP", "TOPIC", "DIRECTORY"))
    parser.add_argument("--to-end", action="store_true")
    given = parser.parse_args()
    if given.drive:
        drive(*given.drive, to_end=given.to_end)
    else:
        print(run(given.rounds, given.seed))


if __name__ == "__main__":
    main()
