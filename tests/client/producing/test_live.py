"""Tests the producer with a real broker that is killed, frozen and restarted."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from client.producing.open_producers import producer_of, read_back, run
from penstock.client.errors import DeliveryTimedOut
from penstock.testing import Broker
from penstock.testing.slowness import patient

PARTITIONS = 3
SENDING_S = 1.2


async def steadily(producer: Any, topic: str, stop: asyncio.Event, sent: list[Any]) -> list[Any]:
    """Sends records to all partitions until `stop` is set. Adds their values and deliveries
    to `sent` and returns it."""
    while not stop.is_set():
        for _ in range(20):
            number = len(sent)
            value = b"%d" % number
            delivery = await producer.send(topic, value, partition=number % PARTITIONS)
            sent.append((value, delivery))
        await asyncio.sleep(0.002)
    return sent


async def under(trouble: Any, producer: Any, topic: str, *, after_s: float = 0.3) -> list[Any]:
    """Returns the records that were sent before, during and after the fault."""
    stop = asyncio.Event()
    # Once a record is acknowledged, the producer has all metadata to send without waiting.
    first = await producer.send(topic, b"0", partition=0)
    await first
    sending = asyncio.ensure_future(steadily(producer, topic, stop, [(b"0", first)]))
    await asyncio.sleep(after_s)
    await asyncio.to_thread(trouble)
    await asyncio.sleep(after_s)
    stop.set()
    return await sending


def check(sent: list[Any], found: list[list[Any]]) -> None:
    """Checks that each record is stored once, in order, at its acknowledged offset."""
    for partition in range(PARTITIONS):
        values = [record.value for record in found[partition]]
        assert values == [value for value, _ in sent][partition::PARTITIONS]
    for value, delivery in sent:
        metadata = delivery.outcome()
        record = found[metadata.partition][metadata.offset]
        assert record.value == value
        assert record.timestamp == metadata.timestamp


@pytest.mark.parametrize("trouble", ["restart", "kill", "freeze"])
def test_no_record_is_lost_duplicated_or_reordered(own_broker: Broker, trouble: str) -> None:
    """With acks=all and idempotence, through a restart, a crash and a pause."""
    topic = own_broker.new_topic(PARTITIONS)

    def make_trouble() -> None:
        if trouble == "restart":
            own_broker.restart()
        elif trouble == "kill":
            own_broker.kill()
            own_broker.start()
        else:
            own_broker.freeze()
            threading.Event().wait(3.0)
            own_broker.thaw()

    async def main() -> None:
        options = {"request_timeout_ms": 2_000, "delivery_timeout_ms": int(patient(90_000))}
        async with producer_of(own_broker.bootstrap, linger_ms=1, **options) as producer:
            sent = await under(make_trouble, producer, topic)
            await producer.flush()
            if trouble == "freeze":
                assert producer.metrics().retries > 0
        check(sent, await read_back(own_broker.bootstrap, topic, PARTITIONS))

    run(main())


def test_tables_survive_a_crash(own_broker: Broker) -> None:
    """Sent while the broker crashes and restarts: every row is stored once, in order."""
    topic = own_broker.new_topic(PARTITIONS)
    rows = 60_000
    table = pa.table(
        {
            "value": [b"%d" % number for number in range(rows)],
            "partition": [number % PARTITIONS for number in range(rows)],
        }
    )

    async def main() -> None:
        options = {
            "buffer_memory": 400_000,
            "max_request_size": 40_000,
            "delivery_timeout_ms": int(patient(90_000)),
            "max_block_ms": int(patient(90_000)),
        }
        async with producer_of(own_broker.bootstrap, **options) as producer:
            await producer.partitions_for(topic)

            def crash() -> None:
                own_broker.kill()
                own_broker.start()

            crashing = asyncio.ensure_future(asyncio.to_thread(crash))
            metadata = await (await producer.send_table(topic, table))
            await crashing
            assert metadata.records == rows
        found = await read_back(own_broker.bootstrap, topic, PARTITIONS)
        for partition in range(PARTITIONS):
            values = [int(record.value) for record in found[partition]]
            assert values == list(range(partition, rows, PARTITIONS))

    run(main())


def test_every_record_fails_in_time_if_the_broker_stays_away(own_broker: Broker) -> None:
    """Nothing hangs: deliveries fail, `flush` and `close` return."""
    topic = own_broker.new_topic(PARTITIONS)

    async def main() -> None:
        options = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 3_000}
        async with producer_of(own_broker.bootstrap, **options) as producer:
            is_known = False
            while not is_known:
                with suppress(DeliveryTimedOut):  # This may happen on a busy machine.
                    await (await producer.send(topic, b"x"))
                    is_known = True
            await asyncio.to_thread(own_broker.kill)
            deliveries = [await producer.send(topic, b"y") for _ in range(100)]
            async with asyncio.timeout(patient(120)):
                await producer.flush()
            for delivery in deliveries:
                assert isinstance(delivery.error(), DeliveryTimedOut)
            assert producer.metrics().buffered_bytes == 0

    run(main())


@pytest.mark.parametrize("acks", [0, 1])
def test_other_acks_work_on_a_real_broker(live_broker: Broker, acks: Any) -> None:
    """All records are stored in order. With acks=0 there are no offsets to compare."""
    topic = live_broker.new_topic(PARTITIONS)

    async def main() -> None:
        async with producer_of(live_broker.bootstrap, acks=acks) as producer:
            for number in range(1_000):
                await producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
            await producer.flush()
        found = await read_back(live_broker.bootstrap, topic, PARTITIONS, at_least=1_000)
        for partition in range(PARTITIONS):
            values = [int(record.value) for record in found[partition]]
            assert values == list(range(partition, 1_000, PARTITIONS))

    run(main())


def test_batches_are_split_for_a_topic_with_a_small_limit(live_broker: Broker) -> None:
    """Uses the real MESSAGE_TOO_LARGE of a broker."""
    topic = live_broker.new_topic(configs={"max.message.bytes": "2000"})

    async def main() -> None:
        async with producer_of(live_broker.bootstrap, linger_ms=5) as producer:
            deliveries = [
                await producer.send(topic, b"%03d" % number + bytes(97)) for number in range(300)
            ]
            for number, delivery in enumerate(deliveries):
                assert (await delivery).offset == number
            assert producer.metrics().splits > 0
        (found,) = await read_back(live_broker.bootstrap, topic, 1)
        assert [int(record.value[:3]) for record in found] == list(range(300))

    run(main())
