"""A share consumer on a cluster in memory, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.client.queue_options import QueueOptions
from penstock.client.sharing.acknowledgements import AckType
from penstock.client.sharing.leases import Lease
from penstock.client.sharing.share_consumer import ShareConsumer
from penstock.testing.slowness import patient

from .fake_leaders import TOPIC, FakeCluster

LIMIT_S = patient(30.0)


@asynccontextmanager
async def consuming(cluster: FakeCluster) -> AsyncIterator[ShareConsumer]:
    options = QueueOptions.parse("localhost:1", {})
    consumer = ShareConsumer(cast(Cluster, cluster), TOPIC, [TOPIC], options)
    consumer.start()
    try:
        yield consumer
    finally:
        await consumer.close(patient(1.0))


def run(test: Callable[[FakeCluster], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await test(FakeCluster())

    asyncio.run(limited())


async def settle(consumer: ShareConsumer, lease: Lease) -> ClientError | None:
    """Settles a lease as done, and returns the outcome."""
    outcome: asyncio.Future[ClientError | None] = asyncio.get_running_loop().create_future()
    consumer.settle(lease, AckType.ACCEPT, outcome.set_result)
    return await outcome


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - what tests wait for has no event
        await asyncio.sleep(0.001)


async def taken(consumer: ShareConsumer) -> Lease:
    lease = await consumer.take()
    assert lease is not None
    return lease
