"""A broker is killed with SIGKILL again and again, and its producer must lose nothing.

One idempotent producer with acks=all sends the whole numbers, in order, to three partitions. The
broker is killed at random moments, sometimes while it is still starting, and restarted with the
same data and port. At the end every acknowledged number must be there exactly once, at its reported
offset, in the order in which it was sent.

After SIGKILL the kernel still has the page cache. `penstock.sim.crash` covers what a power cut may
lose; this module is about real processes, sockets and a client that retries.

For a long run: `PYTHONPATH=tests python -m chaos.kill9 --rounds 100`
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from compat.cluster import Cluster
from penstock.testing.slowness import patient

TOPIC = "numbers"
PARTITIONS = 3
DELIVERY_TIMEOUT_S = 120.0
READ_TIMEOUT_S = 60.0
IN_FLIGHT_MAX = 3_000
SENT_PER_TURN = 40

_pause = threading.Event()


@dataclass
class History:
    """What one producer sent, in order, and how it was acknowledged."""

    sent: list[list[int]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    offsets: dict[int, int] = field(default_factory=dict)
    """Number -> the offset in its acknowledgement; -1 if the client did not report one."""
    failures: list[str] = field(default_factory=list)

    def verdict(self, found: list[list[tuple[int, int]]]) -> list[str]:
        """Compares the (offset, number) pairs in the partitions with what was sent and
        acknowledged. Returns the differences."""
        complaints = list(self.failures)
        for partition, (sent, held) in enumerate(zip(self.sent, found, strict=True)):
            numbers = [number for _, number in held]
            where = f"partition {partition}"
            acknowledged = {number for number in sent if number in self.offsets}
            if lost := sorted(acknowledged - set(numbers)):
                complaints.append(f"{where} lost {len(lost)} acknowledged numbers: {lost[:5]}")
            if strange := sorted(set(numbers) - set(sent)):
                complaints.append(f"{where} holds numbers never sent to it: {strange[:5]}")
            if len(set(numbers)) != len(numbers):
                twice = sorted({number for number in numbers if numbers.count(number) > 1})
                complaints.append(f"{where} holds numbers more than once: {twice[:5]}")
            elif numbers != sorted(numbers):
                complaints.append(f"{where} holds its numbers in another order than sent")
            moved = [
                number
                for offset, number in held
                if self.offsets.get(number, -1) not in (-1, offset)
            ]
            if moved:
                complaints.append(f"{where} reported other offsets than it has: {moved[:5]}")
        return complaints


@dataclass(frozen=True)
class Report:
    rounds: int
    killed_while_starting: int
    sent: int
    acknowledged: int
    unacknowledged_at_kill: int
    """Total number of messages in flight at the kills: zero would mean that nothing was tested."""
    seconds: float
    complaints: list[str]


class Sender:
    """Sends numbers from its own thread until it is stopped."""

    def __init__(self, bootstrap: str, history: History) -> None:
        self._history = history
        self._stopping = threading.Event()
        self._next = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": int(patient(DELIVERY_TIMEOUT_S) * 1000),
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "log_level": 0,
                "error_cb": self._on_error,
            }
        )
        self._thread = threading.Thread(target=self._run, name="sender")

    @property
    def in_flight(self) -> int:
        return len(self._producer)

    @property
    def acknowledged(self) -> int:
        return len(self._history.offsets)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Sends no more, and waits until every message is acknowledged or has failed."""
        self._stopping.set()
        self._thread.join()
        left = self._producer.flush(patient(DELIVERY_TIMEOUT_S))
        if left:
            self._history.failures.append(f"{left} messages were never answered")

    def _run(self) -> None:
        while not self._stopping.is_set():
            if len(self._producer) < IN_FLIGHT_MAX:
                for _ in range(SENT_PER_TURN):
                    self._send()
            self._producer.poll(0.005)

    def _send(self) -> None:
        number, self._next = self._next, self._next + 1
        partition = number % PARTITIONS

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._history.failures.append(f"{number} failed: {error}")
            else:
                offset = message.offset()
                self._history.offsets[number] = -1 if offset is None or offset < 0 else offset

        self._producer.produce(
            TOPIC, str(number).encode(), partition=partition, on_delivery=on_delivery
        )
        self._history.sent[partition].append(number)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._history.failures.append(f"fatal: {error}")


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(patient(120))


def read_all(bootstrap: str) -> list[list[tuple[int, int]]]:
    """Returns the (offset, number) pairs of every partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "verdict",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    found: list[list[tuple[int, int]]] = [[] for _ in range(PARTITIONS)]
    try:
        topic_partitions = [TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)]
        wanted = sum(
            consumer.get_watermark_offsets(topic_partition, timeout=patient(20))[1]
            for topic_partition in topic_partitions
        )
        consumer.assign(topic_partitions)
        deadline = time.monotonic() + patient(READ_TIMEOUT_S)
        while sum(map(len, found)) < wanted:
            if time.monotonic() > deadline:
                raise AssertionError(f"read only {sum(map(len, found))} of {wanted} records")
            for message in consumer.consume(10_000, timeout=0.2):
                if message.error() is not None:
                    raise KafkaException(message.error())
                index, offset, value = message.partition(), message.offset(), message.value()
                assert index is not None and offset is not None and value is not None
                found[index].append((offset, int(value)))
    finally:
        consumer.close()
    return found


def killed_while_starting(cluster: Cluster, after_s: float) -> None:
    """Starts a broker and kills it, usually before it is ready."""
    process = subprocess.Popen(
        cluster.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _pause.wait(after_s)
    process.kill()
    process.wait()


def run(data: Path, rounds: int, seed: int, say: Callable[[str], None] = lambda _: None) -> Report:
    """Kills a broker `rounds` times under load, and checks the result."""
    chance = random.Random(seed)
    began = time.monotonic()
    history = History()
    cluster = Cluster(data)
    starting = in_flight = 0
    try:
        create_topic(cluster.start())
        sender = Sender(cluster.bootstrap, history)
        sender.start()
        try:
            for number in range(1, rounds + 1):
                _wait_for_progress(sender, chance.uniform(0.02, 0.6))
                in_flight += sender.in_flight
                cluster.kill()
                if chance.random() < 0.2:
                    starting += 1
                    killed_while_starting(cluster, chance.uniform(0.05, 1.0))
                cluster.start()
                if number % 5 == 0:
                    say(f"round {number}: {sender.acknowledged} acknowledged")
        finally:
            sender.stop()
        complaints = history.verdict(read_all(cluster.bootstrap))
    finally:
        cluster.kill()
    return Report(
        rounds=rounds,
        killed_while_starting=starting,
        sent=sum(map(len, history.sent)),
        acknowledged=len(history.offsets),
        unacknowledged_at_kill=in_flight,
        seconds=round(time.monotonic() - began, 1),
        complaints=complaints,
    )


def _wait_for_progress(sender: Sender, more_s: float) -> None:
    """Waits until the broker acknowledges something new, then for a random time, and then until
    something is under way."""
    before, deadline = sender.acknowledged, time.monotonic() + patient(30)
    while sender.acknowledged == before:
        if time.monotonic() > deadline:
            raise AssertionError("nothing was acknowledged for 30 seconds")
        _pause.wait(0.01)
    _pause.wait(more_s)
    while not sender.in_flight:
        if time.monotonic() > deadline:
            raise AssertionError("nothing was sent for 30 seconds")
        _pause.wait(0.001)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        report = run(
            Path(directory) / "data",
            options.rounds,
            options.seed,
            lambda text: print(text, file=sys.stderr, flush=True),
        )
    print(json.dumps(vars(report)))
    return 1 if report.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
