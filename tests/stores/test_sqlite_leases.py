"""Leases that their holder keeps although its event loop, its disk or its machine is slow."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from penstock.ports import MetadataStore
from penstock.runtime import SystemClock, Threads
from penstock.stores.sqlite import SqliteStore

from .bench import SqliteBench
from .handles import keys_of, put, take
from .test_sqlite import write_lock


def test_a_holder_never_ends_its_own_lease(bench: SqliteBench) -> None:
    """However late it is: its writes and its watch leave the lease alone, and renewing succeeds."""

    async def main() -> None:
        store = await bench.open()
        lease = await store.grant_lease(2.0)
        revision = await put(store, "/mine", b"", lease)
        assert await store.keep_alive(lease, 10.0)
        watching = asyncio.create_task(take(store, "/", revision + 1, 2))
        await bench.advance(100.0)
        for _ in range(2):
            await put(store, "/other", b"")
        assert [event.key for event in await watching] == ["/other", "/other"]
        assert await keys_of(store) == ["/mine", "/other"]
        assert await store.keep_alive(lease, 10.0)
        await store.close()

    asyncio.run(main())


def test_others_end_the_lease_of_a_holder_that_is_late(bench: SqliteBench) -> None:
    """Rivals see it go, and the holder is told when it renews."""

    async def scenario(one: MetadataStore, two: MetadataStore) -> None:
        lease = await one.grant_lease(2.0)
        await put(one, "/mine", b"", lease)
        assert await one.keep_alive(lease, carry_s=0.001)
        await bench.advance(2.5)
        await put(two, "/other", b"")
        assert await keys_of(one) == ["/other"]
        assert not await one.keep_alive(lease, carry_s=0.001)

    bench.run(scenario)


def test_a_lease_that_was_given_back_is_not_held(bench: SqliteBench) -> None:
    """Even if giving it back failed: then it runs out like any other."""

    async def main() -> None:
        store = await bench.open()
        lease = await store.grant_lease(2.0)
        await put(store, "/mine", b"", lease)
        assert await store.keep_alive(lease, 10.0)

        async def fail(_body: object) -> None:
            raise OSError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "_transact", fail)
            with pytest.raises(OSError):
                await store.revoke_lease(lease)
        await bench.advance(60.0)
        # The machine seems to have stalled, so the lease gets more time, but not for ever.
        await put(store, "/other", b"")
        assert await keys_of(store) == ["/other"]
        await store.close()

    asyncio.run(main())


def test_a_busy_event_loop_does_not_cost_the_lease(tmp_path: Path) -> None:
    """A thread renews meanwhile, so that a rival finds nothing to end."""

    async def main() -> None:
        threads, clock = Threads(4), SystemClock()
        path = str(tmp_path / "metadata.db")
        one = await SqliteStore.open(path, threads, clock)
        two = await SqliteStore.open(path, threads, clock)
        lease = await one.grant_lease(3.0)
        await put(one, "/mine", b"", lease)
        assert await one.keep_alive(lease, 60.0)
        time.sleep(5.0)  # noqa: ASYNC251 - the event loop does nothing else for this long
        await put(two, "/other", b"")
        assert await keys_of(two) == ["/mine", "/other"]
        await one.close()
        await two.close()
        threads.close()

    asyncio.run(main())


def test_an_event_loop_that_hangs_loses_the_lease_in_the_end(bench: SqliteBench) -> None:
    """The thread renews only for the time it was told."""

    async def scenario(one: MetadataStore, two: MetadataStore) -> None:
        assert isinstance(one, SqliteStore)
        lease = await one.grant_lease(2.0)
        assert await one.keep_alive(lease, carry_s=3.0)
        await bench.advance(3.0)
        await asyncio.sleep(0.6)  # More than one turn of the thread.
        await put(two, "/other", b"")
        assert not await two.keep_alive(lease)

    bench.run(scenario)


def test_a_renewal_waits_for_a_busy_lock(bench: SqliteBench) -> None:
    """Another process holds it for a moment, and the renewal gets its turn."""

    async def scenario(one: MetadataStore, _two: MetadataStore) -> None:
        lease = await one.grant_lease(2.0)
        with write_lock(bench.path):
            renewing = asyncio.create_task(one.keep_alive(lease))
            await one.get("/")
            assert not renewing.done()
        assert await renewing

    bench.run(scenario)


def test_a_renewal_does_not_wait_for_the_disk(bench: SqliteBench) -> None:
    """Its connection commits without a sync; the one for metadata syncs at every commit."""

    async def main() -> None:
        store = await bench.open()
        lease = await store.grant_lease(2.0)
        await store.keep_alive(lease)
        renewing, writing = store._renewer._raw, store._writer._raw
        assert renewing is not None
        assert writing is not None
        normal, full = 1, 2
        assert renewing.execute("PRAGMA synchronous").fetchone() == (normal,)
        assert writing.execute("PRAGMA synchronous").fetchone() == (full,)
        await store.close()

    asyncio.run(main())


def test_renewals_do_not_grow_the_write_ahead_log(bench: SqliteBench) -> None:
    """Nobody else may write for days: the log is folded into the file now and then."""

    async def main() -> None:
        store = await bench.open()
        lease = await store.grant_lease(2.0)
        for _ in range(1500):
            assert await store.keep_alive(lease)
        log_bytes = os.path.getsize(f"{bench.path}-wal")  # noqa: ASYNC240 - a test
        assert log_bytes < 4 << 20
        await store.close()

    asyncio.run(main())
