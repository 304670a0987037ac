"""The asyncio clients: the same names as in `penstock`, with async methods.

    from penstock import aio

    async with aio.Producer("localhost:9092") as producer:
        await (await producer.send("orders", b"42", key=b"alice"))

    async with aio.Consumer("localhost:9092", topics=["orders"], group_id="billing") as consumer:
        async for record in consumer:
            print(record.key, record.value)

`exactly_once` reads records, calls a handler that turns them into other records, and commits both
together.
"""

from __future__ import annotations

from penstock.client.admin.admin import Admin
from penstock.client.consumer import Consumer
from penstock.client.processing.exactly_once import exactly_once
from penstock.client.producing.deliveries import Delivery
from penstock.client.producing.producer import Producer
from penstock.client.queues.job import Job
from penstock.client.queues.queue import Queue

__all__ = ["Admin", "Consumer", "Delivery", "Job", "Producer", "Queue", "exactly_once"]
