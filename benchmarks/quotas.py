"""Do quotas hold, and does a quota on a greedy client protect its neighbour?

`penstock up` runs in a process of its own, and confluent-kafka in this one. `produce` and `fetch`
are the achieved rate divided by the quota: over the first 30 seconds of a client, over 60, and over
33 seconds after the first 11. A fresh client may use its quota of one second at once. (Kafka's rate
allows ten seconds, and again every 11 seconds. 33 seconds are three such times.)

`java_produce` and `java_fetch` are the same with the Java client, if `--java` has the class path of
a compiled program: `--java "$(cd tests && ../.venv/bin/python -m compat.java_build /tmp Limited)"`.

Then a neighbour produces one small message after the other and waits for each, while a greedy
client (another process) produces as fast as it can: `neighbour_ms` is the median and the 99th
percentile of its waits, without the greedy client, with it, and with a quota on it.

`--held` measures only whether the quotas hold, and fails if a client has got more than 10 % more or
less than its quota over one of the spans: `make quotas` does this with both clients.

Run it from the project's root: `python -m benchmarks.quotas --json`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from statistics import median, quantiles
from typing import Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from benchmarks.broker import start_broker
from penstock import Admin

QUOTA: Final = 1 << 20
"""Bytes per second."""
VALUE: Final = b"x" * 1000
BATCH_BYTES: Final = 64 << 10
MEASURED_S: Final = 30.0
CYCLE_S: Final = 11.0
"""After so long, Kafka forgets what a client has used."""
TOLERANCE: Final = 0.1
"""How far a rate may be from its quota, as a part of it."""
BURST_S: Final = 2.0
"""How long the greedy client runs before the neighbour is measured."""
NEIGHBOUR_S: Final = 10.0
TIMEOUT_S: Final = 60.0
Look = tuple[float, int]
"""Seconds since the start, and the bytes until then."""
_names: Final = (f"quotas-{number}" for number in count())


def limit(bootstrap: str, client_id: str, key: str, rate: float = QUOTA) -> None:
    with Admin(bootstrap) as admin:
        admin.alter_client_quotas({"client-id": client_id}, set_values={key: rate})


def new_topic(bootstrap: str) -> str:
    name = next(_names)
    with Admin(bootstrap) as admin:
        admin.create_topic(name, partitions=1, replication_factor=1)
    return name


def producer_of(bootstrap: str, client_id: str, **settings: int) -> Producer:
    known = {"bootstrap.servers": bootstrap, "client.id": client_id, "acks": 1}
    return Producer({**known, "batch.size": BATCH_BYTES, "linger.ms": 5, **settings})


class Sender:
    """Produces as fast as it can, and counts the acknowledged bytes."""

    def __init__(self, bootstrap: str, client_id: str, topic: str) -> None:
        self._producer = producer_of(bootstrap, client_id)
        self._topic = topic
        self.bytes = 0

    def run(self, seconds: float) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            while len(self._producer) < 5000:
                self._producer.produce(self._topic, VALUE, on_delivery=self._on_delivery)
            self._producer.poll(0.01)

    def close(self) -> None:
        self._producer.purge(in_queue=True, in_flight=True)
        self._producer.flush(1)

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.bytes += len(VALUE)


class Receiver:
    """Consumes as fast as it can, and counts the bytes of values."""

    def __init__(self, bootstrap: str, client_id: str, topic: str) -> None:
        known = {"bootstrap.servers": bootstrap, "client.id": client_id, "group.id": client_id}
        # With a small queue the client asks again soon, and none of its threads pauses.
        queue = {"queued.max.messages.kbytes": 4096, "fetch.queue.backoff.ms": 5}
        self._consumer = Consumer({**known, **queue, "fetch.message.max.bytes": BATCH_BYTES})
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self.bytes = 0

    def run(self, seconds: float) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            messages = self._consumer.consume(500, timeout=0.05)
            self.bytes += sum(len(each.value() or b"") for each in messages)

    def close(self) -> None:
        self._consumer.close()


def marks(seconds: float) -> list[float]:
    """Returns when to look: at the start and the end of the steady time, and at the ends of the two
    measured times."""
    return [0.0, CYCLE_S * seconds / MEASURED_S, seconds, 4 * CYCLE_S * seconds / MEASURED_S]


def held(client: Sender | Receiver, seconds: float) -> dict[str, float]:
    """Returns the achieved rate divided by the quota, over several spans."""
    looks: list[Look] = []
    try:
        began = time.perf_counter()
        for mark in (*marks(seconds), 2 * seconds):
            client.run(began + mark - time.perf_counter())
            looks.append((time.perf_counter() - began, client.bytes))
    finally:
        client.close()
    return shares(looks)


def shares(looks: Sequence[Look]) -> dict[str, float]:
    start, cycle, first, cycles, last = looks

    def share(since: Look, until: Look) -> float:
        return (until[1] - since[1]) / (until[0] - since[0]) / QUOTA

    spans = {"first": (start, first), "twice": (start, last), "steady": (cycle, cycles)}
    return {
        f"{name} {until[0] - since[0]:.0f} s": round(share(since, until), 3)
        for name, (since, until) in spans.items()
    }


def held_by_java(
    class_path: str, bootstrap: str, work: str, client_id: str, topic: str, seconds: float
) -> dict[str, float]:
    """Like `held`, with a Java client in a process of its own."""
    given = [bootstrap, client_id, topic, work, str(BATCH_BYTES)]
    times = [f"{mark:g}" for mark in (*marks(seconds)[1:], 2 * seconds)]
    done = subprocess.run(
        ["java", "-Xmx256m", "-cp", class_path, "Limited", *given, *times],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=2 * seconds + 120,
    )
    steps = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return shares([(0.0, 0), *((each["seconds"], each["bytes"]) for each in steps)])


def fill(bootstrap: str, topic: str, size: int) -> None:
    producer = producer_of(bootstrap, "filler", **{"queue.buffering.max.messages": 1_000_000})
    for _ in range(size // len(VALUE)):
        producer.produce(topic, VALUE)
    if producer.flush(TIMEOUT_S):
        raise RuntimeError("could not fill the topic")


def neighbour_ms(bootstrap: str, topic: str, seconds: float) -> dict[str, float]:
    """Returns how long one message after the other takes until it is acknowledged."""
    producer = producer_of(bootstrap, "neighbour", **{"linger.ms": 0})
    waits: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        producer.produce(topic, b"hello")
        if producer.flush(TIMEOUT_S):
            raise RuntimeError("a message of the neighbour was not acknowledged")
        waits.append((time.perf_counter() - began) * 1000)
    return {"median": median(waits), "p99": quantiles(waits, n=100)[98], "messages": len(waits)}


def be_greedy(bootstrap: str, client_id: str, topic: str) -> None:
    Sender(bootstrap, client_id, topic).run(3600)


@contextmanager
def greedy_client(bootstrap: str, client_id: str, topic: str, burst_s: float) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    greedy = context.Process(target=be_greedy, args=(bootstrap, client_id, topic), daemon=True)
    greedy.start()
    try:
        time.sleep(burst_s)  # what a quota allows at the start is not measured
        yield
    finally:
        greedy.terminate()
        greedy.join()


def measure_java(class_path: str, bootstrap: str, measured_s: float) -> dict[str, object]:
    topic = new_topic(bootstrap)
    found: dict[str, object] = {}
    for work, key in (("produce", "producer_byte_rate"), ("consume", "consumer_byte_rate")):
        client_id = f"java-{work}"
        limit(bootstrap, client_id, key)
        if work == "consume":
            fill(bootstrap, topic, int(QUOTA * (2 * measured_s + 15)))
        found[work] = held_by_java(class_path, bootstrap, work, client_id, topic, measured_s)
    return {"java_produce": found["produce"], "java_fetch": found["consume"]}


def measure_confluent(bootstrap: str, measured_s: float) -> dict[str, object]:
    topic = new_topic(bootstrap)
    limit(bootstrap, "limited-producer", "producer_byte_rate")
    produce = held(Sender(bootstrap, "limited-producer", topic), measured_s)
    topic = new_topic(bootstrap)
    fill(bootstrap, topic, int(QUOTA * (2 * measured_s + 15)))
    limit(bootstrap, "limited-consumer", "consumer_byte_rate")
    fetch = held(Receiver(bootstrap, "limited-consumer", topic), measured_s)
    return {"quota_bytes_per_s": QUOTA, "produce": produce, "fetch": fetch}


def measure_neighbour(bootstrap: str, burst_s: float, neighbour_s: float) -> dict[str, object]:
    topic, other = new_topic(bootstrap), new_topic(bootstrap)
    waits = {"alone": neighbour_ms(bootstrap, other, neighbour_s)}
    with greedy_client(bootstrap, "greedy", topic, burst_s):
        waits["greedy"] = neighbour_ms(bootstrap, other, neighbour_s)
    limit(bootstrap, "limited-greedy", "producer_byte_rate")
    with greedy_client(bootstrap, "limited-greedy", topic, burst_s):
        waits["greedy_with_quota"] = neighbour_ms(bootstrap, other, neighbour_s)
    return {"neighbour_ms": waits}


def breaches(found: Mapping[str, object]) -> list[str]:
    """Returns the rates that are too far from their quota."""
    rates = {work: spans for work, spans in found.items() if work.endswith(("produce", "fetch"))}
    return [
        f"{work}: {share:.3f} of the quota over the span '{span}'"
        for work, spans in rates.items()
        if isinstance(spans, Mapping)
        for span, share in spans.items()
        if abs(share - 1) > TOLERANCE
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--smoke", action="store_true", help="short, only to see it run")
    parser.add_argument("--held", action="store_true", help="only check that quotas hold")
    parser.add_argument("--java", metavar="CLASS_PATH", help="measure the Java client too")
    options = parser.parse_args()
    spans = (0.2, 0.5, 0.2) if options.smoke else (BURST_S, MEASURED_S, NEIGHBOUR_S)
    root = tempfile.mkdtemp(prefix="penstock-bench-")
    try:
        with start_broker(root) as broker:
            bootstrap = "{}:{}".format(*broker.address)
            burst_s, measured_s, neighbour_s = spans
            found = measure_confluent(bootstrap, measured_s)
            if options.java:
                found |= measure_java(options.java, bootstrap, measured_s)
            if not options.held:
                found |= measure_neighbour(bootstrap, burst_s, neighbour_s)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for name, value in found.items():
        print(f"{name}: {value}")
    # The spans of a smoke run are too short to say anything about a rate.
    wrong = [] if options.smoke else breaches(found)
    for breach in wrong:
        print(f"not within {TOLERANCE:.0%}: {breach}")
    if options.json:
        print(json.dumps(found))
    return 1 if wrong and options.held else 0


if __name__ == "__main__":
    sys.exit(main())
