"""Tests that keys are routed to the same partitions as by librdkafka."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from penstock.client.producing.producer import Producer
from penstock.client.routers import Crc32Router, DefaultRouter, Router
from penstock.testing import Broker
from penstock.testing.slowness import patient

PARTITIONS = 7
KEYS = [b"k", b"\x00", b"\xff" * 3, *(f"customer-{number}".encode() for number in range(200))]


def placed_by_librdkafka(broker: Broker, topic: str, partitioner: str) -> Mapping[bytes, int]:
    placed: dict[bytes, int] = {}

    def on_delivery(error: Any, message: Any) -> None:
        assert error is None, error
        placed[message.key()] = message.partition()

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "partitioner": partitioner}
    )
    for key in KEYS:
        producer.produce(topic, b"v", key=key, on_delivery=on_delivery)
    assert producer.flush(patient(60)) == 0
    return placed


def placed_by_us(broker: Broker, topic: str, router: Router) -> Mapping[bytes, int]:
    async def send() -> Mapping[bytes, int]:
        async with Producer(broker.bootstrap, router=router) as producer:
            deliveries = {key: await producer.send(topic, b"v", key=key) for key in KEYS}
            return {key: (await delivery).partition for key, delivery in deliveries.items()}

    return asyncio.run(asyncio.wait_for(send(), patient(60)))


def rows_placed_by_us(broker: Broker, topic: str, router: Router) -> Mapping[int, int]:
    """Returns the rows per partition of a table with the same keys."""

    async def send() -> Mapping[int, int]:
        table = pa.table({"key": KEYS, "value": [b"v"] * len(KEYS)})
        async with Producer(broker.bootstrap, router=router) as producer:
            metadata = await (await producer.send_table(topic, table))
        return {
            partition: sum(part.last - part.first + 1 for part in ranges)
            for partition, ranges in metadata.ranges.items()
        }

    return asyncio.run(asyncio.wait_for(send(), patient(60)))


@pytest.mark.parametrize(
    ("partitioner", "router"),
    [("murmur2_random", DefaultRouter()), ("consistent_random", Crc32Router())],
)
def test_keys_are_routed_like_librdkafka(
    live_broker: Broker, partitioner: str, router: Router
) -> None:
    """With Java's hash and with librdkafka's own, for single records and tables."""
    topic = live_broker.new_topic(partitions=PARTITIONS)
    theirs = placed_by_librdkafka(live_broker, topic, partitioner)
    assert set(theirs) == set(KEYS)
    assert len(set(theirs.values())) == PARTITIONS
    assert placed_by_us(live_broker, topic, router) == theirs
    wanted = {
        partition: sum(1 for topic_partition in theirs.values() if topic_partition == partition)
        for partition in range(PARTITIONS)
    }
    assert rows_placed_by_us(live_broker, topic, router) == wanted
