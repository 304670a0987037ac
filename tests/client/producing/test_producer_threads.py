"""Tests a producer that several threads and event loops use."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from client.fake_broker import SILENCE, FakeBroker
from client.producing.open_producers import run, written
from penstock.client.errors import (
    Closed,
    RequestTimedOut,
)
from penstock.client.model import RecordMetadata
from penstock.client.producing.producer import Producer
from penstock.wire.api import ApiKey


def test_with_a_lock_any_thread_may_send(fake: FakeBroker) -> None:
    """The records of each thread arrive in its order; callbacks run on the loop."""
    fake.model.add_topic("pets", 2)
    freed: list[int] = []
    each = 2_000

    async def main() -> None:
        producer: Producer[Any, Any] = Producer(fake.address, linger_ms=1, lock=threading.Lock())
        async with producer:
            await producer.partitions_for("pets")
            producer.add_room_listener(lambda: freed.append(1))
            loop_thread = threading.get_ident()
            wrong: list[int] = []

            def told(metadata: object, error: object) -> None:
                if threading.get_ident() != loop_thread:
                    wrong.append(1)

            def work(number: int) -> None:
                for n in range(each):
                    value = b"%d %d" % (number, n)
                    producer.send_nowait("pets", value, partition=n % 2, on_delivery=told)

            await asyncio.gather(*(asyncio.to_thread(work, number) for number in range(4)))
            await producer.flush()
            assert not wrong

    run(main())
    assert freed
    for partition in range(2):
        values = [value.split() for value in written(fake, "pets", partition)]
        for number in range(4):
            own = [int(n) for owner, n in values if int(owner) == number]
            assert own == list(range(partition, each, 2))


def test_a_thread_may_wait_for_a_delivery(fake: FakeBroker) -> None:
    """With a timeout. On an event loop, the error says to use `await` instead."""
    fake.model.add_topic("pets")

    async def main() -> None:
        producer: Producer[Any, Any] = Producer(fake.address, linger_ms=1, lock=threading.Lock())
        async with producer:
            await producer.partitions_for("pets")
            delivery = producer.send_nowait("pets", b"x")
            with pytest.raises(RuntimeError, match="await the delivery"):
                delivery.result()
            assert (await asyncio.to_thread(delivery.result)).offset == 0
            fake.next(ApiKey.PRODUCE, SILENCE)
            stuck = producer.send_nowait("pets", b"y")
            with pytest.raises(RequestTimedOut, match="still on its way"):
                await asyncio.to_thread(stuck.result, 0.05)
            await producer.close(0)
            with pytest.raises(Closed):
                await asyncio.to_thread(stuck.result)

    run(main())


def test_a_delivery_may_be_awaited_on_another_loop(fake: FakeBroker) -> None:
    """The loop may run on another thread than the producer's."""

    async def main() -> None:
        producer: Producer[Any, Any] = Producer(fake.address, linger_ms=50, lock=threading.Lock())
        async with producer:
            await producer.partitions_for("pets")
            delivery = producer.send_nowait("pets", b"x")

            async def wait() -> RecordMetadata:
                return await delivery

            assert (await asyncio.to_thread(asyncio.run, wait())).offset == 0

    run(main())
