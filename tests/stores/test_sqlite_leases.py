"""Leases that survive a slow event loop, disk or machine of their holder."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from penstock.ports import MetadataStore
from penstock.runtime import SystemClock, Threads
from penstock.stores.sqlite import SqliteStore
from penstock.testing.slowness import patient

from .sqlite_bench import SqliteBench
from .store_bench import keys_of, put, take
from .test_sqlite import write_lock


def test_a_holder_never_ends_its_own_lease(bench: SqliteBench) -> None:
    """However late it is: its writes and its watch leave the lease alone, and a renewal
    succeeds."""

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


def test_other_handles_end_the_lease_of_a_late_holder(bench: SqliteBench) -> None:
    """They see its keys deleted, and the holder learns of it when it renews."""

    async def scenario(one: MetadataStore, two: MetadataStore) -> None:
        lease = await one.grant_lease(2.0)
        await put(one, "/mine", b"", lease)
        assert await one.keep_alive(lease, carry_s=0.001)
        await bench.advance(2.5)
        await put(two, "/other", b"")
        assert await keys_of(one) == ["/other"]
        assert not await one.keep_alive(lease, carry_s=0.001)

    bench.run(scenario)


def test_a_revoked_lease_is_not_carried(bench: SqliteBench) -> None:
    """Even if revoking it failed: then it expires like any other."""

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
        # The machine seems to have stalled, so the lease gets more time, but not forever.
        await put(store, "/other", b"")
        assert await keys_of(store) == ["/other"]
        await store.close()

    asyncio.run(main())


def test_a_busy_event_loop_does_not_lose_the_lease(tmp_path: Path) -> None:
    """A thread renews it meanwhile, so other handles find nothing to end."""

    async def main() -> None:
        threads, clock = Threads(4), SystemClock()
        path = str(tmp_path / "metadata.db")
        one = await SqliteStore.open(path, threads, clock)
        two = await SqliteStore.open(path, threads, clock)
        session_s = patient(3.0)
        lease = await one.grant_lease(session_s)
        await put(one, "/mine", b"", lease)
        assert await one.keep_alive(lease, 20 * session_s)
        # The event loop does nothing else for longer than the session.
        time.sleep(session_s + 2.0)  # noqa: ASYNC251
        await put(two, "/other", b"")
        assert await keys_of(two) == ["/mine", "/other"]
        await one.close()
        await two.close()
        threads.close()

    asyncio.run(main())


def test_an_event_loop_that_hangs_loses_the_lease_in_the_end(bench: SqliteBench) -> None:
    """The thread renews it only for the given time."""

    async def scenario(one: MetadataStore, two: MetadataStore) -> None:
        assert isinstance(one, SqliteStore)
        lease = await one.grant_lease(2.0)
        assert await one.keep_alive(lease, carry_s=3.0)
        await bench.advance(3.0)
        # More than one interval of the thread.
        await asyncio.sleep(0.6)
        await put(two, "/other", b"")
        assert not await two.keep_alive(lease)

    bench.run(scenario)


def test_a_renewal_waits_for_the_lock(bench: SqliteBench) -> None:
    """Another process holds it for a moment. Then the renewal succeeds."""

    async def scenario(one: MetadataStore, _two: MetadataStore) -> None:
        lease = await one.grant_lease(2.0)
        with write_lock(bench.path):
            renewing = asyncio.create_task(one.keep_alive(lease))
            await one.get("/")
            assert not renewing.done()
        assert await renewing

    bench.run(scenario)


def test_a_renewal_does_not_wait_for_the_disk(bench: SqliteBench) -> None:
    """Its connection commits without a sync. The one for metadata syncs at every commit."""

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
    """There may be no other writes for days, so the log is merged into the file now and then."""

    async def main() -> None:
        store = await bench.open()
        lease = await store.grant_lease(2.0)
        for _ in range(1500):
            assert await store.keep_alive(lease)
        log_bytes = os.path.getsize(f"{bench.path}-wal")  # noqa: ASYNC240 - a test
        assert log_bytes < 4 << 20
        await store.close()

    asyncio.run(main())
