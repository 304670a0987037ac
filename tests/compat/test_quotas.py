"""Quotas limit confluent-kafka: how much it sends and receives, and what it learns of it.

Only upper bounds are asserted: a slow machine sends less. They follow from Kafka's rules. A rate is
measured over at least ten seconds, so a fresh client may use its quota of ten seconds at once. Then
it may use its quota, plus one request, since a request that exceeds the quota is still accepted.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import confluent_kafka as ck
import pytest

from compat.conftest import TopicFactory
from penstock import Admin

Name = Callable[[], str]
BYTES_PER_S = 20_000
MEASURED_S = 11
"""Ten complete windows of a second, and the current one."""
BATCH_BYTES = 16_384
VALUE = b"v" * 1000
RUN_S = 2.0
THROTTLED_S = 60.0
"""By then, even a slow machine has used the quota of ten seconds."""


def bound(seconds: float) -> float:
    return BYTES_PER_S * (seconds + MEASURED_S) + 2 * BATCH_BYTES


class Throttles:
    """Counts how often librdkafka reports a throttle time."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, event: object) -> None:
        self.count += 1


def limit(broker: str, client_id: str, key: str) -> None:
    with Admin(broker) as admin:
        admin.alter_client_quotas({"client-id": client_id}, set_values={key: BYTES_PER_S})
        assert admin.describe_client_quotas({"client-id": client_id})


@pytest.mark.slow
def test_a_producer_sends_no_more_than_its_quota(
    broker: str, topic: TopicFactory, name: Name
) -> None:
    made, client_id, throttles = topic(), name(), Throttles()
    limit(broker, client_id, "producer_byte_rate")
    producer = ck.Producer(
        {
            "bootstrap.servers": broker,
            "client.id": client_id,
            "acks": 1,
            "linger.ms": 1,
            "batch.size": BATCH_BYTES,
            "throttle_cb": throttles,
        }
    )
    delivered = 0

    def on_delivery(error: ck.KafkaError | None, message: ck.Message) -> None:
        nonlocal delivered
        assert error is None, error
        delivered += len(VALUE)

    began = time.monotonic()
    # The client reports throttle times a second apart at most.
    while (elapsed := time.monotonic() - began) < RUN_S or not throttles.count:
        assert elapsed < THROTTLED_S, f"not throttled after {delivered} bytes"
        while len(producer) < 1000:
            producer.produce(made, VALUE, on_delivery=on_delivery)
        producer.poll(0.05)
    sent, elapsed = delivered, time.monotonic() - began
    assert 0 < sent <= bound(elapsed)
    producer.purge(in_queue=True, in_flight=True)


@pytest.mark.slow
def test_a_consumer_receives_no_more_than_its_quota(
    broker: str, topic: TopicFactory, name: Name
) -> None:
    made, client_id, throttles = topic(), name(), Throttles()
    producer = ck.Producer({"bootstrap.servers": broker, "batch.size": BATCH_BYTES})
    for _ in range(2000):
        producer.produce(made, VALUE)
    assert producer.flush(THROTTLED_S) == 0
    limit(broker, client_id, "consumer_byte_rate")
    consumer = ck.Consumer(
        {
            "bootstrap.servers": broker,
            "client.id": client_id,
            "group.id": name(),
            "throttle_cb": throttles,
        }
    )
    received = 0
    try:
        consumer.assign([ck.TopicPartition(made, 0, 0)])
        began = time.monotonic()
        while (elapsed := time.monotonic() - began) < RUN_S or not throttles.count:
            assert elapsed < THROTTLED_S, f"not throttled after {received} bytes"
            messages = consumer.consume(500, timeout=0.05)
            received += sum(len(each.value() or b"") for each in messages)
        assert 0 < received <= bound(time.monotonic() - began)
    finally:
        consumer.close()
