"""Opens clusters for tests, on real sockets, with short pauses between attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from client.fake_broker import FakeBroker
from penstock.client.address import parse_bootstrap
from penstock.client.cluster import Cluster, ClusterConfig
from penstock.client.connection import ConnectionConfig
from penstock.net.sockets import SocketNetwork
from penstock.runtime import SystemClock, SystemRandom
from penstock.testing.slowness import patient

T = TypeVar("T")


def cluster_of(
    bootstrap: str, *, request_timeout_s: float | None = None, deadline_s: float | None = None
) -> Cluster:
    """The limits are so long that no request fails because the machine is busy, unless others are
    given."""
    limit_s = patient(30.0)
    config = ClusterConfig(
        parse_bootstrap(bootstrap),
        ConnectionConfig(connect_timeout_s=limit_s, request_timeout_s=request_timeout_s or limit_s),
        deadline_s=deadline_s or limit_s,
        retry_backoff_s=0.005,
        retry_backoff_max_s=0.02,
    )
    return Cluster(config, SocketNetwork(), SystemClock(), SystemRandom())


def with_cluster(
    fake: FakeBroker,
    work: Callable[[Cluster], Awaitable[T]],
    *,
    request_timeout_s: float | None = None,
    deadline_s: float | None = None,
) -> T:
    """Runs `work` with an open cluster."""

    async def main() -> T:
        cluster = cluster_of(
            fake.address, request_timeout_s=request_timeout_s, deadline_s=deadline_s
        )
        async with cluster:
            return await work(cluster)

    return asyncio.run(main())
