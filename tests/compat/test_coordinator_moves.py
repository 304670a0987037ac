"""Clients whose coordinator moves while they request committed offsets."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from penstock.testing import Faults
from penstock.testing.plugin import TopicFactory
from penstock.testing.slowness import patient

DEADLINE_S = 60.0


@pytest.mark.parametrize("error", ["NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"])
def test_a_consumer_retries_its_request_for_committed_offsets(
    error: str, penstock_faults: Faults, penstock_topic: TopicFactory
) -> None:
    """A consumer of librdkafka once read none of the acknowledged records: its only request for
    committed offsets was answered by a broker that was no longer the coordinator."""
    topic = penstock_topic(3)
    producer: Any = Producer({"bootstrap.servers": penstock_faults.bootstrap})
    for number in range(30):
        producer.produce(topic, b"%d" % number, partition=number % 3)
    assert producer.flush(patient(DEADLINE_S)) == 0
    penstock_faults.fail("OffsetFetch", error, times=2)
    consumer: Any = Consumer(
        {
            "bootstrap.servers": penstock_faults.bootstrap,
            "group.id": f"moving-{error}",
            "auto.offset.reset": "earliest",
        }
    )
    found: set[bytes] = set()
    try:
        consumer.subscribe([topic])
        end = time.monotonic() + patient(DEADLINE_S)
        while len(found) < 30 and time.monotonic() < end:
            for message in consumer.consume(100, 0.5):
                if message.error() is None:
                    found.add(message.value())
    finally:
        consumer.close()
    assert found == {b"%d" % number for number in range(30)}
