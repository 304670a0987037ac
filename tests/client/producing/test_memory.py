"""Tests that a producer stays within its memory limit when the brokers accept nothing."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pyarrow as pa
import pytest

from client.fake_broker import SILENCE, FakeBroker
from client.producing.open_producers import producer_of, run
from penstock.client.errors import BufferExhausted
from penstock.testing import Broker
from penstock.testing.slowness import patient
from penstock.wire.api import ApiKey

BUFFER = 1 << 20
MARGIN = 256 << 10
"""Allows for connections, the fake broker's copies of requests, and the tests themselves."""


@pytest.mark.parametrize("size", [20, 1000])
@pytest.mark.parametrize("partitions", [1, 50])
def test_unsent_records_stay_within_the_buffer_memory(
    fake: FakeBroker, size: int, partitions: int
) -> None:
    """Measures actual memory, with small and large records, few and many partitions."""
    fake.model.add_topic("pets", partitions)

    async def main() -> tuple[int, int]:
        options: dict[str, Any] = {"buffer_memory": BUFFER, "max_request_size": 16 << 10}
        producer = producer_of(fake.address, **options)
        async with producer:
            await producer.partitions_for("pets")
            fake.next(ApiKey.PRODUCE, *[SILENCE] * 1000)
            gc.collect()
            tracemalloc.start()
            sent = 0
            with pytest.raises(BufferExhausted):
                while True:
                    producer.send_nowait("pets", sent.to_bytes(size, "big"))
                    sent += 1
            held, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert producer.metrics().buffered_bytes <= BUFFER
            await producer.close(0)
            return held, sent * size

    held, payload = run(main())
    assert held <= BUFFER + MARGIN
    assert payload >= BUFFER * (0.4 if size == 20 else 0.7)


def test_an_unsent_table_stays_within_the_buffer_memory(fake: FakeBroker) -> None:
    """Includes Arrow's memory."""
    fake.model.add_topic("pets", 4)
    table = pa.table({"value": [bytes(100)] * 200_000})

    async def main() -> int:
        options: dict[str, Any] = {"buffer_memory": BUFFER, "max_block_ms": int(patient(3_000))}
        producer = producer_of(fake.address, **options)
        async with producer:
            await producer.partitions_for("pets")
            fake.next(ApiKey.PRODUCE, *[SILENCE] * 1000)
            gc.collect()
            before = pa.total_allocated_bytes()
            with pytest.raises(BufferExhausted):
                await producer.send_table("pets", table)
            held: int = pa.total_allocated_bytes() - before
            await producer.close(0)
            return held

    assert run(main()) <= BUFFER + MARGIN


def test_a_frozen_broker_costs_no_more_than_the_buffer_memory(own_broker: Broker) -> None:
    """Requests that the socket does not accept are held in memory only once."""
    topic = own_broker.new_topic(4)
    buffer = 24 << 20

    async def main() -> int:
        options: dict[str, Any] = {
            "buffer_memory": buffer,
            "batch_size": 512 << 10,
            "max_block_ms": int(patient(3_000)),
        }
        async with producer_of(own_broker.bootstrap, **options) as producer:
            await producer.partitions_for(topic)
            await (await producer.send(topic, b"x"))
            own_broker.freeze()
            gc.collect()
            tracemalloc.start()
            with pytest.raises(BufferExhausted):
                while True:
                    await producer.send(topic, bytes(50_000))
            held, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            own_broker.thaw()
            await producer.close(0)
            return held

    assert run(main()) <= buffer + (2 << 20)
