"""Tests a real standalone cluster: work is spread over executors, and one of them is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Admin, Consumer, Producer
from penstock.runtime import SystemClock
from penstock.testing import Broker
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition
from spark.cluster.gate import Gate
from spark.cluster.processes import Driver

pytestmark = pytest.mark.timeout(600)

long = pytest.mark.skipif(
    not os.environ.get("PENSTOCK_LONG"), reason="set PENSTOCK_LONG=1, or make spark-cluster"
)
"""Streams need one or more micro-batches in addition to what the batch
tests show; so does writing."""

PARTITIONS = 4
PARTITION_RECORDS = 12_000
"""Of half a kilobyte each: far more than fits in the buffers between a reader and
a task that does not read."""


@pytest.fixture(scope="module")
def topic(broker: Broker, producer: Producer[Any, Any]) -> str:
    name = broker.new_topic(partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        values = [b"%d-%d " % (partition, n) + b"x" * 500 for n in range(PARTITION_RECORDS)]
        table = pa.table(
            {
                "value": pa.array(values, pa.binary()),
                "partition": pa.array([partition] * PARTITION_RECORDS, pa.int32()),
            }
        )
        producer.send_table(name, table)
    producer.flush()
    return name


EVERYTHING = [[p, offset] for p in range(PARTITIONS) for offset in range(PARTITION_RECORDS)]


class Victim:
    """Kills one of the executors that wait at the gate; the others continue."""

    def __init__(self, gate: Gate, driver: Driver) -> None:
        self._gate = gate
        self.pid = min(gate.wait_for_executors(2, driver.check))
        self._workers = descendants(self.pid)
        os.kill(self.pid, signal.SIGKILL)
        gate.open()

    def verify(self) -> None:
        """Checks that all tasks of the killed executor were retried, and that
        its Python workers ended."""
        lost = {each.task for each in self._gate.arrivals if each.executor_pid == self.pid}
        later = {each.task for each in self._gate.arrivals if each.attempt > 0}
        assert lost
        assert lost <= later
        assert self._workers
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in self._workers))


def descendants(ancestor: int) -> set[int]:
    """Returns all child processes of a process, and their children."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has just ended
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = {ancestor}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {ancestor}


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    clock, pause = SystemClock(), threading.Event()
    end = clock.monotonic() + patient(timeout_s)
    while not condition():
        assert clock.monotonic() < end, "it did not come about in time"
        pause.wait(0.05)


def end_offsets(admin: Admin, topic: str, partitions: int) -> int:
    topic_partitions = [TopicPartition(topic, partition) for partition in range(partitions)]
    found = admin.list_offsets(dict.fromkeys(topic_partitions, "latest"))
    return sum(each.offset for each in found.values() if each is not None)


def written(broker: Broker, topic: str, column: str) -> Counter[bytes]:
    with Consumer(broker.bootstrap) as consumer:
        return Counter(consumer.read_table(topic, headers=False).column(column).to_pylist())


def test_a_batch_is_read_by_both_executors(
    driver: Driver, broker: Broker, topic: str, gate: Gate
) -> None:
    """The tasks of one read run in two executors at the same time, and
    together read everything once."""
    driver.start("read", bootstrap=broker.bootstrap, topic=topic, gate=gate.address)
    executors = gate.wait_for_executors(2, driver.check)
    gate.open()
    assert sorted(driver.result()) == EVERYTHING
    assert len(executors) == 2
    assert {arrival.task for arrival in gate.arrivals} == set(range(PARTITIONS))


def test_an_executor_is_killed_while_reading_a_batch(
    driver: Driver, broker: Broker, topic: str, gate: Gate
) -> None:
    """Its spans are read again from their beginning: no record is missing or duplicated."""
    driver.start("read", bootstrap=broker.bootstrap, topic=topic, gate=gate.address)
    victim = Victim(gate, driver)
    assert sorted(driver.result()) == EVERYTHING
    victim.verify()


@long
def test_an_executor_is_killed_while_reading_a_stream(
    driver: Driver, broker: Broker, topic: str, gate: Gate, tmp_path: Path
) -> None:
    """Other executors finish the micro-batch, and the stream continues: each
    record is in the table once."""
    folders = {"path": str(tmp_path / "table"), "checkpoint": str(tmp_path / "checkpoint")}
    driver.start(
        "stream_to_table", bootstrap=broker.bootstrap, topic=topic, gate=gate.address, **folders
    )
    victim = Victim(gate, driver)
    assert sorted(driver.result()) == EVERYTHING
    victim.verify()


@long
def test_an_executor_is_killed_while_writing_a_batch(
    driver: Driver, broker: Broker, admin: Admin, gate: Gate
) -> None:
    """Every row is in the topic. Rows that the killed executor had written may be there twice,
    because the sink delivers at least once."""
    to = broker.new_topic(partitions=2)
    rows = 100_000
    driver.start("write", bootstrap=broker.bootstrap, to=to, rows=rows, gate=gate.address)
    gate.wait_for_executors(2, driver.check)
    wait_until(lambda: end_offsets(admin, to, 2) > 0)
    victim = Victim(gate, driver)
    driver.result()
    found = written(broker, to, "key")
    assert set(found) == {b"%d" % n for n in range(rows)}
    victim.verify()


@long
def test_an_executor_is_killed_while_writing_a_stream(
    driver: Driver, broker: Broker, topic: str, gate: Gate, tmp_path: Path
) -> None:
    """Every record of the source is in the target topic, over several micro-batches."""
    to = broker.new_topic(partitions=2)
    driver.start(
        "stream_to_topic",
        bootstrap=broker.bootstrap,
        topic=topic,
        gate=gate.address,
        to=to,
        checkpoint=str(tmp_path / "checkpoint"),
    )
    victim = Victim(gate, driver)
    batches = driver.result()
    found = {value.partition(b" ")[0] for value in written(broker, to, "value")}
    assert found == {b"%d-%d" % (p, n) for p in range(PARTITIONS) for n in range(PARTITION_RECORDS)}
    assert batches >= 3
    victim.verify()
