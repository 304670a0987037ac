"""The other process of `test_zk_cluster`: python -m tests.stores.zk_process ADDRESS.

It holds the key /held under a lease, and prints a line for each renewal, until the lease is lost.
"""

from __future__ import annotations

import asyncio
import sys

from penstock.ports import Put
from penstock.runtime import SystemClock, SystemRandom, Threads
from penstock.stores.zk_address import parse_address
from penstock.stores.zk_session import ZooKeeperConfig
from penstock.stores.zookeeper import ZooKeeperStore
from penstock.testing.slowness import patient

LEASE_TTL_S = min(20.0, patient(8.0))
CONFIG = ZooKeeperConfig(request_timeout_s=300.0, attempt_timeout_s=patient(2.0))


async def main(address: str) -> None:
    threads = Threads(2)
    store = await ZooKeeperStore.open(
        parse_address(address), SystemClock(), SystemRandom(), threads, CONFIG
    )
    lease = await store.grant_lease(LEASE_TTL_S)
    await store.commit((), [Put("/held", b"", lease)])
    while await store.keep_alive(lease):
        print("renewed", flush=True)
        await asyncio.sleep(LEASE_TTL_S / 10)
    print("lost", flush=True)
    await store.close()
    threads.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
