"""What does it cost to produce in transactions of 1,000 records?

One client sends the same records to the same kind of topic in two ways: in transactions, each
committed before the next begins, and without, as an idempotent producer that waits only at the end.
Both use acks=all and otherwise the client's defaults, or batches of `--batch-bytes`. The measured
time is from the first record until everything is committed, on partitions that have been written to
before. Both ways take turns, round by round, each round with its own topics. The result is the
ratio of the medians, and next to it the ratio of the best rounds, which is more reliable when
others use the machine.

With `durability=fsync`, the default, a broker answers when the records are on its disk. A
transaction waits for the disk several times, one after the other (adding its partition, its
records, the decision). With `durability=replicated` for the topic the records do not wait; the
coordinator's own topic always does. Values are spread over three partitions, and each transaction
writes to all of them.

The disk determines much of the result. `--data /dev/shm` shows the rest, and is the better choice
on a machine whose disk others use at the same time.

With `--bootstrap` another cluster is measured, for example Apache Kafka, with the same settings.

Run it from the project's root: `python -m benchmarks.transactions --json`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count, product
from typing import Any, Final, NamedTuple

import uvloop
from confluent_kafka import KafkaError, Message
from confluent_kafka import Producer as ConfluentProducer

from benchmarks.broker import start_broker
from benchmarks.clients import PARTITIONS, TIMEOUT_S, create_topic
from penstock import Producer, aio

RECORDS_EACH: Final = 1_000
VALUE_BYTES: Final = (100, 1_024)
DURABILITIES: Final = ("fsync", "replicated")
TARGET: Final = 0.6
_ids: Final = (f"bench-{os.getpid()}-{number}" for number in count())


class Work(NamedTuple):
    bootstrap: str
    topic: str
    records: int
    value: bytes
    transactional: bool
    batch_bytes: int | None


Lane = Callable[[Work], float]
"""Returns records per second."""


# -- our client ----------------------------------------------------------------------------------


def options(work: Work) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if work.transactional:
        given["transactional_id"] = next(_ids)
    if work.batch_bytes is not None:
        given["batch_size"] = work.batch_bytes
    return given


async def _send_async(work: Work) -> float:
    topic, value, records = work.topic, work.value, work.records
    async with aio.Producer(work.bootstrap, **options(work)) as producer:
        if not work.transactional:
            for partition in range(PARTITIONS):
                await producer.send(topic, value, partition=partition)
            await producer.flush()
            began = time.perf_counter()
            for number in range(records):
                await producer.send(topic, value, partition=number % PARTITIONS)
            await producer.flush()
            return records / (time.perf_counter() - began)
        async with producer.transaction():
            for partition in range(PARTITIONS):
                await producer.send(topic, value, partition=partition)
        began = time.perf_counter()
        for _ in range(records // RECORDS_EACH):
            async with producer.transaction():
                for number in range(RECORDS_EACH):
                    await producer.send(topic, value, partition=number % PARTITIONS)
        return records / (time.perf_counter() - began)


def send_async(work: Work) -> float:
    return uvloop.run(asyncio.wait_for(_send_async(work), TIMEOUT_S))


def send_blocking(work: Work) -> float:
    topic, value, records = work.topic, work.value, work.records
    with Producer(work.bootstrap, **options(work)) as producer:
        if not work.transactional:
            for partition in range(PARTITIONS):
                producer.send(topic, value, partition=partition)
            producer.flush(TIMEOUT_S)
            began = time.perf_counter()
            for number in range(records):
                producer.send(topic, value, partition=number % PARTITIONS)
            producer.flush(TIMEOUT_S)
            return records / (time.perf_counter() - began)
        with producer.transaction():
            for partition in range(PARTITIONS):
                producer.send(topic, value, partition=partition)
        began = time.perf_counter()
        for _ in range(records // RECORDS_EACH):
            with producer.transaction():
                for number in range(RECORDS_EACH):
                    producer.send(topic, value, partition=number % PARTITIONS)
        return records / (time.perf_counter() - began)


# -- confluent-kafka -----------------------------------------------------------------------------


def confluent_producer(work: Work) -> ConfluentProducer:
    config: dict[str, Any] = {
        "bootstrap.servers": work.bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        "queue.buffering.max.messages": 200_000,
        # By default it logs every producer that is dropped with an unread delivery report.
        "log_level": 4,
    }
    if work.transactional:
        config["transactional.id"] = next(_ids)
    if work.batch_bytes is not None:
        config["batch.size"] = work.batch_bytes
    return ConfluentProducer(config)


def send_confluent(work: Work) -> float:
    failures: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    def send(many: int) -> None:
        for number in range(many):
            partition = number % PARTITIONS
            producer.produce(work.topic, work.value, partition=partition, on_delivery=on_delivery)
        producer.poll(0)

    producer = confluent_producer(work)
    producer.list_topics(work.topic, timeout=TIMEOUT_S)
    if work.transactional:
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        send(PARTITIONS)
        producer.commit_transaction(TIMEOUT_S)
    else:
        send(PARTITIONS)
        producer.flush(TIMEOUT_S)
    began = time.perf_counter()
    for _ in range(work.records // RECORDS_EACH):
        if work.transactional:
            producer.begin_transaction()
        while len(producer) > 150_000:
            producer.poll(0.01)
        send(RECORDS_EACH)
        if work.transactional:
            producer.commit_transaction(TIMEOUT_S)
    left = producer.flush(TIMEOUT_S)
    elapsed = time.perf_counter() - began
    if left or failures:
        raise RuntimeError(f"{left} records unanswered, {len(failures)} failed: {failures[:1]}")
    return work.records / elapsed


LANES: Final[dict[str, Lane]] = {
    "penstock async": send_async,
    "penstock blocking": send_blocking,
    "confluent-kafka": send_confluent,
}


# -- measuring -----------------------------------------------------------------------------------


def measure(
    bootstrap: str, given: argparse.Namespace, records: int, rounds: int
) -> dict[str, dict[str, float]]:
    rates: dict[str, list[tuple[float, float]]] = {}
    durabilities = ("",) if given.bootstrap else DURABILITIES
    for number in range(rounds + 1):
        for size, durability, name in product(
            VALUE_BYTES, durabilities, given.client or list(LANES)
        ):
            configs = {"durability": durability} if durability else {}
            pair = []
            for transactional in (False, True):
                topic = create_topic(bootstrap, configs)
                gc.collect()
                work = Work(
                    bootstrap, topic, records, b"x" * size, transactional, given.batch_bytes
                )
                pair.append(LANES[name](work))
            if number:
                # The first round is warm-up: files, connections, the coordinator's topic.
                label = f"{name}, {size} bytes{f', {durability}' if durability else ''}"
                rates.setdefault(label, []).append((pair[0], pair[1]))
    return {label: summary(pairs) for label, pairs in rates.items()}


def summary(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    plain, within = zip(*pairs, strict=True)
    return {
        "plain_per_s": statistics.median(plain),
        "transactional_per_s": statistics.median(within),
        "ratio": statistics.median(within) / statistics.median(plain),
        "ratio_of_best": max(within) / max(plain),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--smoke", action="store_true", help="few records, only to see it run")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--client", action="append", choices=list(LANES), help="only this one")
    parser.add_argument("--batch-bytes", type=int, help="instead of each client's default")
    parser.add_argument("--data", help="where the broker keeps its files (the system's default)")
    parser.add_argument("--bootstrap", help="a running cluster to measure instead of our own")
    given = parser.parse_args()
    records, rounds = (2_000, 1) if given.smoke else (given.records, given.rounds)
    root = tempfile.mkdtemp(prefix="penstock-bench-", dir=given.data)
    try:
        with ExitStack() as stack:
            bootstrap = given.bootstrap
            if bootstrap is None:
                bootstrap = "{}:{}".format(*stack.enter_context(start_broker(root)).address)
            results = measure(bootstrap, given, records, rounds)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for label, found in results.items():
        print(
            f"{label:42} plain {found['plain_per_s']:9,.0f}/s"
            f"  in transactions {found['transactional_per_s']:9,.0f}/s"
            f"  ratio {found['ratio']:5.2f}, of the best {found['ratio_of_best']:5.2f}"
        )
    if given.json:
        load = os.getloadavg()[0]
        print(json.dumps({"target": TARGET, "load_average": load, "results": results}))


if __name__ == "__main__":
    main()
