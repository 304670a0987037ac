"""How many messages per second does each Python client send and receive through our broker?

All use the same kind of topic, the same broker and the same run: 100-byte values, three
partitions, acks=all, and `durability=replicated`, so that clients are measured and not the disk.
Producing is measured from the first call to the last acknowledgement, consuming from the first poll
to the last message. Clients take turns, round by round, and the median of each counts. The ratios
at the end compare clients within the run.

Each client is used as its own documentation does for throughput: a loop around `produce` and lists
from `consume` with confluent-kafka, `send` and `getmany` or `async for` with aiokafka and with our
client, both on uvloop. The columnar API sends and returns Arrow tables and needs no loop. Its table
is built beforehand, as are the values for all clients.

Run it from the project's root: `python -m benchmarks.libraries --json`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pyarrow as pa
import uvloop

from benchmarks.clients import consume as confluent_consume
from benchmarks.clients import produce as confluent_produce
from penstock import Consumer, Producer, TopicPartition, aio
from penstock.testing import Broker

PARTITIONS: Final = 3
"""The same number as in benchmarks.clients, for confluent-kafka."""
VALUE: Final = b"x" * 100
TIMEOUT_S: Final = 120.0
Lane = Callable[[str, str, int], float]
"""Bootstrap address, topic and number of messages -> messages per second."""


def timed(work: Callable[[str, str, int], Awaitable[float]]) -> Lane:
    return lambda bootstrap, topic, messages: uvloop.run(
        asyncio.wait_for(_as_coroutine(work(bootstrap, topic, messages)), TIMEOUT_S)
    )


async def _as_coroutine(work: Awaitable[float]) -> float:
    return await work


# -- confluent-kafka ---------------------------------------------------------------------------


def produce_confluent(bootstrap: str, topic: str, messages: int) -> float:
    return confluent_produce(bootstrap, topic, messages, len(VALUE), "all")


def consume_confluent(bootstrap: str, topic: str, messages: int) -> float:
    return confluent_consume(bootstrap, topic, messages)


# -- kafka-python ------------------------------------------------------------------------------


def produce_kafka_python(bootstrap: str, topic: str, messages: int) -> float:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap, acks="all", linger_ms=5, batch_size=256 << 10
    )
    producer.partitions_for(topic)
    began = time.perf_counter()
    for number in range(messages):
        producer.send(topic, VALUE, partition=number % PARTITIONS)
    producer.flush(TIMEOUT_S)
    rate = messages / (time.perf_counter() - began)
    producer.close()
    return rate


def consume_kafka_python(bootstrap: str, topic: str, messages: int) -> float:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, index) for index in range(PARTITIONS)])
    began, found = time.perf_counter(), 0
    while found < messages and time.perf_counter() - began < TIMEOUT_S:
        polled = consumer.poll(1000, max_records=5_000)
        found += sum(len(records) for records in polled.values())
    rate = found / (time.perf_counter() - began)
    consumer.close()
    return _all(found, messages, rate)


# -- aiokafka ----------------------------------------------------------------------------------


async def produce_aiokafka(bootstrap: str, topic: str, messages: int) -> float:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", linger_ms=5, max_batch_size=256 << 10
    )
    await producer.start()
    await producer.partitions_for(topic)
    began = time.perf_counter()
    for number in range(messages):
        await producer.send(topic, VALUE, partition=number % PARTITIONS)
    await producer.flush()
    rate = messages / (time.perf_counter() - began)
    await producer.stop()
    return rate


async def consume_aiokafka(bootstrap: str, topic: str, messages: int) -> float:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    consumer.assign([TopicPartition(topic, index) for index in range(PARTITIONS)])
    began, found = time.perf_counter(), 0
    async for _ in consumer:
        found += 1
        if found == messages:
            break
    rate = found / (time.perf_counter() - began)
    await consumer.stop()
    return rate


async def consume_aiokafka_lists(bootstrap: str, topic: str, messages: int) -> float:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    consumer.assign([TopicPartition(topic, index) for index in range(PARTITIONS)])
    began, found = time.perf_counter(), 0
    while found < messages:
        polled = await consumer.getmany(timeout_ms=1000, max_records=5_000)
        found += sum(len(records) for records in polled.values())
    rate = found / (time.perf_counter() - began)
    await consumer.stop()
    return rate


# -- our client --------------------------------------------------------------------------------


async def produce_aio(bootstrap: str, topic: str, messages: int) -> float:
    async with aio.Producer(bootstrap, linger_ms=5, batch_size=256 << 10) as producer:
        await producer.partitions_for(topic)
        began = time.perf_counter()
        for number in range(messages):
            await producer.send(topic, VALUE, partition=number % PARTITIONS)
        await producer.flush()
        return messages / (time.perf_counter() - began)


def produce_sync(bootstrap: str, topic: str, messages: int) -> float:
    with Producer(bootstrap, linger_ms=5, batch_size=256 << 10) as producer:
        producer.partitions_for(topic)
        began = time.perf_counter()
        for number in range(messages):
            producer.send(topic, VALUE, partition=number % PARTITIONS)
        producer.flush()
        return messages / (time.perf_counter() - began)


def topic_partitions(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(PARTITIONS)]


async def consume_aio(bootstrap: str, topic: str, messages: int) -> float:
    async with aio.Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(topic_partitions(topic))
        began, found = time.perf_counter(), 0
        async for _ in consumer:
            found += 1
            if found == messages:
                break
        return found / (time.perf_counter() - began)


async def consume_aio_lists(bootstrap: str, topic: str, messages: int) -> float:
    async with aio.Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(topic_partitions(topic))
        began, found = time.perf_counter(), 0
        while found < messages:
            found += len(await consumer.poll(1000, max_records=5_000))
        return found / (time.perf_counter() - began)


def consume_sync(bootstrap: str, topic: str, messages: int) -> float:
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(topic_partitions(topic))
        began, found = time.perf_counter(), 0
        for _ in consumer:
            found += 1
            if found == messages:
                break
        return found / (time.perf_counter() - began)


async def produce_columns(bootstrap: str, topic: str, messages: int) -> float:
    table = pa.table({"value": pa.array([VALUE] * messages, pa.binary())})
    async with aio.Producer(bootstrap) as producer:
        await producer.partitions_for(topic)
        began = time.perf_counter()
        delivery = await producer.send_table(topic, table)
        metadata = await delivery
        rate = messages / (time.perf_counter() - began)
        return _all(metadata.records, messages, rate)


async def consume_columns(bootstrap: str, topic: str, messages: int) -> float:
    async with aio.Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(topic_partitions(topic))
        began, found = time.perf_counter(), 0
        while found < messages:
            found += len(await consumer.poll_table(1000))
        return found / (time.perf_counter() - began)


async def read_columns(bootstrap: str, topic: str, messages: int) -> float:
    async with aio.Consumer(bootstrap) as consumer:
        began = time.perf_counter()
        table = await consumer.read_table(topic)
        rate = messages / (time.perf_counter() - began)
        return _all(len(table), messages, rate)


def _all(found: int, messages: int, rate: float) -> float:
    if found != messages:
        raise RuntimeError(f"{found} of {messages} messages")
    return rate


PRODUCING: Final[dict[str, tuple[Lane, float]]] = {
    # Name -> function, and which share of the messages it gets: slow clients would take too long.
    "confluent-kafka": (produce_confluent, 0.2),
    "kafka-python": (produce_kafka_python, 0.02),
    "aiokafka": (timed(produce_aiokafka), 0.04),
    "penstock aio": (timed(produce_aio), 0.2),
    "penstock sync": (produce_sync, 0.2),
    "penstock columns": (timed(produce_columns), 1.0),
}
CONSUMING: Final[dict[str, tuple[Lane, float]]] = {
    "confluent-kafka": (consume_confluent, 0.2),
    "kafka-python": (consume_kafka_python, 0.05),
    "aiokafka async for": (timed(consume_aiokafka), 0.1),
    "aiokafka getmany": (timed(consume_aiokafka_lists), 0.1),
    "penstock async for": (timed(consume_aio), 0.2),
    "penstock aio poll": (timed(consume_aio_lists), 0.2),
    "penstock sync for": (consume_sync, 0.2),
    "penstock poll_table": (timed(consume_columns), 1.0),
    "penstock read_table": (timed(read_columns), 1.0),
}


def measure(messages: int, rounds: int) -> dict[str, dict[str, float]]:
    rates: dict[str, dict[str, list[float]]] = {"produce": {}, "consume": {}}
    with Broker() as broker:

        def new_topic() -> str:
            return broker.new_topic(PARTITIONS, configs={"durability": "replicated"})

        for _ in range(rounds):
            for name, (lane, share) in PRODUCING.items():
                gc.collect()
                rate = lane(broker.bootstrap, new_topic(), max(1, int(messages * share)))
                rates["produce"].setdefault(name, []).append(rate)
            for name, (lane, share) in CONSUMING.items():
                topic, count = new_topic(), max(1, int(messages * share))
                PRODUCING["penstock columns"][0](broker.bootstrap, topic, count)
                gc.collect()
                rate = lane(broker.bootstrap, topic, count)
                rates["consume"].setdefault(name, []).append(rate)
    return {
        side: {name: statistics.median(found) for name, found in lanes.items()}
        for side, lanes in rates.items()
    }


def ratios(results: dict[str, dict[str, float]]) -> dict[str, float]:
    produce, consume = results["produce"], results["consume"]
    return {
        "columns_produce_over_confluent": produce["penstock columns"] / produce["confluent-kafka"],
        "columns_consume_over_confluent": consume["penstock poll_table"]
        / consume["confluent-kafka"],
        "aio_produce_over_aiokafka": produce["penstock aio"] / produce["aiokafka"],
        "aio_consume_over_aiokafka": consume["penstock async for"] / consume["aiokafka async for"],
        "aio_poll_over_aiokafka": consume["penstock aio poll"] / consume["aiokafka getmany"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--smoke", action="store_true", help="few messages, only to see it run")
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    messages, rounds = (20_000, 1) if options.smoke else (options.messages, options.rounds)
    results: dict[str, Any] = dict(measure(messages, rounds))
    for side, lanes in results.items():
        for name, rate in lanes.items():
            print(f"{side} {name:22} {rate:12,.0f}/s")
    results["ratios"] = ratios(results)
    for name, ratio in results["ratios"].items():
        print(f"{name:32} {ratio:6.2f}")
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
