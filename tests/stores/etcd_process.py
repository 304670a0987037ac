"""The other process of `test_etcd_cluster`: python -m tests.stores.etcd_process ADDRESS.

It holds the key /held under a lease, and prints a line for each renewal, until the lease is lost.
"""

from __future__ import annotations

import asyncio
import sys

from penstock.ports import Put
from penstock.runtime import SystemClock, SystemRandom
from penstock.stores.etcd import EtcdStore
from penstock.stores.etcd_address import parse_address
from penstock.stores.etcd_members import EtcdConfig
from penstock.testing.slowness import patient

LEASE_TTL_S = patient(6.0)
CONFIG = EtcdConfig(request_timeout_s=120.0)
"""The holder goes on while etcd elects a leader, however long that takes on a busy machine."""


async def main(address: str) -> None:
    store = await EtcdStore.open(parse_address(address), SystemClock(), SystemRandom(), CONFIG)
    lease = await store.grant_lease(LEASE_TTL_S)
    await store.commit((), [Put("/held", b"", lease)])
    while await store.keep_alive(lease):
        print("renewed", flush=True)
        await asyncio.sleep(LEASE_TTL_S / 5)
    print("lost", flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
