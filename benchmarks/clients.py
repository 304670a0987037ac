"""How many messages per second does a common client send and receive through the broker?

confluent-kafka (librdkafka) runs in this process, `penstock up` in another, with one topic of three
partitions. Producing is measured from the first `produce` to the last acknowledgement, in bursts
from one thread. Consuming is measured from the assignment to the last message, in lists as
`consume` returns them. Both are also reported in bytes of values. The Python loop around the client
is part of the measurement: users of that client have it too.

With `--bootstrap` another broker is measured, for example Apache Kafka, with the same settings.

Run it from the project's root: `python -m benchmarks.clients --json`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from contextlib import ExitStack
from itertools import count, product
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.broker import start_broker

PARTITIONS: Final = 3
MESSAGE_BYTES: Final = (100, 1024)
ACKS: Final = ("1", "all")
DURABILITIES: Final = ("fsync", "replicated")
"""Only our broker has this setting: with acks=all, whether a response waits for the disk."""
BURST: Final = 1_000
TIMEOUT_S: Final = 60.0
_names: Final = (f"clients-{number}" for number in count())


def create_topic(bootstrap: str, configs: dict[str, str]) -> str:
    name = next(_names)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(name, PARTITIONS, 1, config=configs)
    admin.create_topics([topic])[name].result(TIMEOUT_S)
    return name


def produce(
    bootstrap: str, topic: str, messages: int, size: int, acks: str, partitions: int = PARTITIONS
) -> float:
    """Returns messages per second, all of them acknowledged."""
    failures: list[KafkaError] = []
    delivered = 0

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        nonlocal delivered
        delivered += 1
        if error is not None:
            failures.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": acks,
            "linger.ms": 5,
            "batch.size": 256 << 10,
            "queue.buffering.max.messages": 200_000,
        }
    )
    value = b"x" * size
    producer.list_topics(topic, timeout=TIMEOUT_S)
    began = time.perf_counter()
    for first in range(0, messages, BURST):
        while len(producer) > 150_000:
            producer.poll(0.01)
        for number in range(first, min(first + BURST, messages)):
            producer.produce(topic, value, partition=number % partitions, on_delivery=on_delivery)
        producer.poll(0)
    left = producer.flush(TIMEOUT_S)
    elapsed = time.perf_counter() - began
    if failures or left or delivered != messages:
        raise RuntimeError(f"{left} messages unanswered, {len(failures)} failed: {failures[:1]}")
    return messages / elapsed


def consume(bootstrap: str, topic: str, messages: int) -> float:
    """Returns messages per second, including the time to connect."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"read-{topic}",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 1 << 20,
            "queued.min.messages": 200_000,
            # How long it pauses when its queue is full; the default is a second, which would
            # distort the result.
            "fetch.queue.backoff.ms": 5,
        }
    )
    try:
        began = time.perf_counter()
        consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
        found = 0
        while found < messages:
            # `consume` waits for as many messages as requested, so do not request more than there
            # are.
            batch = consumer.consume(min(10_000, messages - found), timeout=5)
            if time.perf_counter() - began > TIMEOUT_S:
                raise RuntimeError(f"only {found} of {messages} messages came")
            for message in batch:
                if message.error() is not None:
                    raise KafkaException(message.error())
            found += len(batch)
        return messages / (time.perf_counter() - began)
    finally:
        consumer.close()


def measure(
    bootstrap: str, messages: int, rounds: int, durabilities: tuple[str, ...]
) -> dict[str, dict[str, float]]:
    """Returns the best of several rounds; each round measures all settings."""
    results: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for size, acks, durability in product(MESSAGE_BYTES, ACKS, durabilities):
            if durability == "replicated" and acks == "1":
                continue
            configs = {"durability": durability} if durability else {}
            topic = create_topic(bootstrap, configs)
            label = f" {durability}" if durability and acks == "all" else ""
            best = results.setdefault(
                f"{size} bytes acks={acks}{label}",
                {"produce_per_s": 0.0, "consume_per_s": 0.0, "bytes": size},
            )
            for name, rate in (
                ("produce_per_s", produce(bootstrap, topic, messages, size, acks)),
                ("consume_per_s", consume(bootstrap, topic, messages)),
            ):
                best[name] = max(best[name], rate)
    for best in results.values():
        for name in ("produce", "consume"):
            best[f"{name}_mib_per_s"] = best[f"{name}_per_s"] * best["bytes"] / (1 << 20)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--smoke", action="store_true", help="few messages, only to see it run")
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--bootstrap", help="a running broker to measure instead of our own")
    options = parser.parse_args()
    messages, rounds = (2_000, 1) if options.smoke else (options.messages, 3)
    root = tempfile.mkdtemp(prefix="penstock-bench-")
    try:
        with ExitStack() as stack:
            durabilities = ("",) if options.bootstrap else DURABILITIES
            bootstrap = options.bootstrap
            if bootstrap is None:
                bootstrap = "{}:{}".format(*stack.enter_context(start_broker(root)).address)
            results = measure(bootstrap, messages, rounds, durabilities)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for name, best in results.items():
        print(
            f"{name:28} produce {best['produce_per_s']:9,.0f}/s"
            f" {best['produce_mib_per_s']:6,.1f} MiB/s"
            f"  consume {best['consume_per_s']:9,.0f}/s {best['consume_mib_per_s']:6,.1f} MiB/s"
        )
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
