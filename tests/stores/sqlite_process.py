"""The other process of `test_sqlite_processes`: python -m tests.stores.sqlite_process PATH ROLE."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

from penstock.ports import Compare, Put
from penstock.runtime import SystemClock, Threads
from penstock.stores.errors import StoreBusy
from penstock.stores.sqlite import SqliteStore
from penstock.testing.slowness import patient

INCREMENTS = 60
LEASE_TTL_S = patient(3.0)


async def increment(store: SqliteStore) -> None:
    """Increments a shared number by compare and set."""
    done = 0
    while done < INCREMENTS:
        entry = await store.get("/n")
        count, seen = (int(entry.value), entry.modify_revision) if entry else (0, 0)
        change = Put("/n", b"%d" % (count + 1))
        # Another process may hold the lock for long while the machine does not run it. Such a
        # commit changed nothing.
        with suppress(StoreBusy):
            done += (await store.commit([Compare("/n", seen)], [change])).succeeded


async def hold(store: SqliteStore) -> None:
    """Keeps a key alive, and prints a line for each renewal, until killed."""
    lease = await store.grant_lease(LEASE_TTL_S)
    await store.commit((), [Put("/held", b"", lease)])
    while await store.keep_alive(lease):
        print("renewed", flush=True)
        await asyncio.sleep(LEASE_TTL_S / 4)


async def main(path: str, role: str) -> None:
    threads = Threads(2)
    store = await SqliteStore.open(path, threads, SystemClock())
    try:
        await {"increment": increment, "hold": hold}[role](store)
    finally:
        await store.close()
        threads.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
