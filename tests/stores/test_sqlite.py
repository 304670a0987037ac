"""What is specific to the SQLite store: its file, its threads, its clock, its errors."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.ports import Compare, MetadataStore, Put
from penstock.stores import sqlite_file
from penstock.stores.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreUnavailable,
)
from penstock.stores.sqlite import SqliteConfig, SqliteStore
from penstock.testing.slowness import patient

from .sqlite_bench import SqliteBench
from .store_bench import keys_of, put, take


@contextmanager
def write_lock(path: str) -> Iterator[None]:
    """Holds the lock like a process in the middle of a long transaction."""
    connection = sqlite3.connect(path, timeout=patient(60), isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def open_files() -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        # The list itself had a descriptor.
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found


def raw(store: SqliteStore) -> sqlite3.Connection:
    connection = store._writer._raw
    assert connection is not None
    return connection


def test_everything_is_there_after_a_restart(bench: SqliteBench) -> None:
    """Keys, the revision, leases and the change log survive when all handles are closed."""

    async def main() -> None:
        store = await bench.open()
        lease = await store.grant_lease(10.0)
        await put(store, "/a", b"1", lease)
        await put(store, "/b", b"2")
        await store.close()
        store = await bench.open()
        assert (await store.range("/"))[1] == 2
        assert [event.key for event in await take(store, "", 1, 2)] == ["/a", "/b"]
        assert await store.keep_alive(lease)
        await bench.advance(11.0)
        assert await store.grant_lease(10.0) > lease
        assert await keys_of(store) == ["/b"]
        await store.close()

    asyncio.run(main())


def test_the_event_loop_continues_while_another_process_holds_the_lock(bench: SqliteBench) -> None:
    """A write waits on its thread. Reads and everything else do not wait."""

    async def scenario(one: MetadataStore, _two: MetadataStore) -> None:
        await put(one, "/a", b"1")
        with write_lock(bench.path):
            writing = asyncio.create_task(put(one, "/a", b"2"))
            for _ in range(3):
                entry = await one.get("/a")
                assert entry is not None
                assert entry.value == b"1"
            assert not writing.done()
        assert await writing == 2

    bench.run(scenario)


def test_a_lasting_lock_ends_in_an_error_without_changes(bench: SqliteBench) -> None:
    """The error is retriable and says where to look. A retry after the lock is released works."""
    bench.config = SqliteConfig(busy_timeout_ms=int(patient(1000)))

    async def scenario(one: MetadataStore, _two: MetadataStore) -> None:
        with write_lock(bench.path), pytest.raises(StoreBusy, match="locked by another") as caught:
            await put(one, "/a", b"")
        assert caught.value.retriable
        assert await one.get("/a") is None
        assert await put(one, "/a", b"") == 1

    bench.run(scenario)


def test_a_lasting_lock_does_not_end_a_watch(bench: SqliteBench) -> None:
    """The removal of an expired lease has to wait. The watch continues and reports it later."""
    bench.config = SqliteConfig(poll_ms=5, busy_timeout_ms=int(patient(1000)))

    async def scenario(one: MetadataStore, two: MetadataStore) -> None:
        revision = await put(one, "/a", b"", await one.grant_lease(1.0))
        with write_lock(bench.path):
            await bench.advance(1.5)
            watching = asyncio.create_task(take(two, "/", revision + 1, 1))
            with pytest.raises(StoreBusy):
                await two.grant_lease(1.0)
            assert not watching.done()
        assert [event.value for event in await watching] == [None]

    bench.run(scenario)


def test_waiting_writes_are_committed_together(bench: SqliteBench) -> None:
    """A burst needs few syncs, but each commit has its own revision and its own outcome."""

    async def main() -> None:
        store = await bench.open()
        commits: list[str] = []
        raw(store).set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
        absent = [Compare("/0", 0)]
        outcomes = await asyncio.gather(
            *(store.commit(absent if n in (0, 7) else (), [Put(f"/{n}", b"")]) for n in range(50))
        )
        assert sorted(each.revision for each in outcomes if each.succeeded) == list(range(1, 50))
        assert [n for n, each in enumerate(outcomes) if not each.succeeded] == [7]
        assert len(commits) < 10
        await store.close()

    asyncio.run(main())


def test_a_renewal_does_not_wait_for_other_writes_one_by_one(bench: SqliteBench) -> None:
    """Writes that are processed together take one trip to the thread, not one each."""

    async def main() -> None:
        store = await bench.open()
        lease = await store.grant_lease(10.0)
        trips = 0
        run = bench.threads.run

        async def counted(work: Any) -> Any:
            nonlocal trips
            trips += 1
            return await run(work)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bench.threads, "run", counted)
            burst = [store.commit((), [Put(f"/{n}", b"")]) for n in range(100)]
            *_, alive = await asyncio.gather(*burst, store.keep_alive(lease))
        assert alive
        assert trips < 10
        await store.close()

    asyncio.run(main())


def test_a_delayed_holder_may_renew_before_its_own_watch_ends_its_lease(
    bench: SqliteBench,
) -> None:
    """The same stall delays both, and a holder that renews is alive."""

    async def main() -> None:
        store = await bench.open()
        lease = await store.grant_lease(10.0)
        await put(store, "/mine", b"", lease)
        rests, turns = asyncio.Semaphore(0), asyncio.Semaphore(0)

        async def rest() -> None:
            rests.release()
            await turns.acquire()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "_changed_or_poll", rest)
            watching = asyncio.create_task(take(store, "/", 2, 1))
            async with asyncio.timeout(patient(120)):
                await rests.acquire()
                await bench.advance(11.0)
                turns.release()
                # The watch has seen that the lease has expired, and now the holder renews it.
                await rests.acquire()
                assert await store.keep_alive(lease)
                await put(store, "/last", b"")
                turns.release()
                assert [event.key for event in await watching] == ["/last"]
        await store.close()

    asyncio.run(main())


def test_a_write_that_is_canceled_before_it_starts_is_not_made(bench: SqliteBench) -> None:
    """It must not take effect later, when the caller no longer expects it."""

    async def scenario(one: MetadataStore, _two: MetadataStore) -> None:
        with write_lock(bench.path):
            first = asyncio.create_task(put(one, "/first", b""))
            # The writer's thread is in the transaction when the reader has answered.
            await one.get("/first")
            second = asyncio.create_task(put(one, "/second", b""))
            await asyncio.sleep(0)
            second.cancel()
            with suppress(asyncio.CancelledError):
                await second
        await first
        await put(one, "/third", b"")
        assert await keys_of(one) == ["/first", "/third"]

    bench.run(scenario)


def test_a_clock_set_forward_ends_no_lease_of_a_live_holder(bench: SqliteBench) -> None:
    """Nor does a machine that was suspended. A dead holder's lease ends one time to live later."""

    async def scenario(one: MetadataStore, two: MetadataStore) -> None:
        alive, dead = await one.grant_lease(2.0), await one.grant_lease(2.0)
        await put(one, "/alive", b"", alive)
        await put(one, "/dead", b"", dead)
        bench.clock.wall_offset_ms += 3_600_000
        await put(two, "/x", b"")
        assert await one.keep_alive(alive)
        assert await keys_of(two) == ["/alive", "/dead", "/x"]
        await bench.advance(1.5)
        assert await one.keep_alive(alive)
        await bench.advance(1.5)
        assert await one.keep_alive(alive)
        await put(two, "/x", b"")
        assert await keys_of(two) == ["/alive", "/x"]

    bench.run(scenario)


def test_a_clock_set_back_does_not_prolong_a_lease_for_long(bench: SqliteBench) -> None:
    """A deadline that is now far ahead is reduced to one time to live."""

    async def scenario(one: MetadataStore, two: MetadataStore) -> None:
        await put(one, "/dead", b"", await one.grant_lease(2.0))
        bench.clock.wall_offset_ms -= 3_600_000
        await put(two, "/x", b"")
        await bench.advance(1.5)
        await put(two, "/x", b"")
        assert await keys_of(two) == ["/dead", "/x"]
        await bench.advance(1.0)
        await put(two, "/x", b"")
        assert await keys_of(two) == ["/x"]

    bench.run(scenario)


def test_the_change_log_stays_small(bench: SqliteBench) -> None:
    """Old changes are pruned, so that the file does not grow forever."""
    bench.config = SqliteConfig(revisions_kept=100)

    async def main() -> None:
        store = await bench.open()
        for _ in range(1000):
            await put(store, "/a", b"")
        rows = raw(store).execute("SELECT count(*), max(revision) FROM changes").fetchone()
        assert 100 <= rows[0] < 100 + 256
        assert rows[1] == 1000
        await store.close()

    asyncio.run(main())


def test_closing_leaves_no_thread_and_no_file_open(bench: SqliteBench) -> None:
    """And it merges the write-ahead log into the main file."""

    async def scenario() -> None:
        store = await bench.open()
        await put(store, "/a", b"")
        await store.close()

    threads = set(threading.enumerate())
    asyncio.run(scenario())
    gc.collect()  # What earlier tests left may close its files at any time.
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        asyncio.run(scenario())
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert not [path for path in open_files() if path.startswith(str(bench.directory))]
    # The executor starts its threads as they are needed, and ends them when it closes.
    bench.threads.close()
    assert set(threading.enumerate()) <= threads
    assert [path.name for path in bench.directory.iterdir()] == ["metadata.db"]


@pytest.mark.parametrize("make", ["missing directory", "directory in its place"])
def test_a_path_that_cannot_be_opened_is_reported(bench: SqliteBench, make: str) -> None:
    """With the path and what to check."""
    if make == "missing directory":
        bench.path = str(bench.directory / "no" / "metadata.db")
    else:
        os.mkdir(bench.path)
    with pytest.raises(StoreUnavailable, match=r"metadata\.db cannot be opened: make sure"):
        asyncio.run(bench.open())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_reported(bench: SqliteBench) -> None:
    """The error says that the broker's user must be able to write there."""
    bench.directory.chmod(0o500)
    try:
        with pytest.raises(StoreUnavailable, match="may write"):
            asyncio.run(bench.open())
    finally:
        bench.directory.chmod(0o700)


def test_a_file_that_is_not_a_database_is_reported(bench: SqliteBench) -> None:
    """It is not changed."""
    Path(bench.path).write_bytes(b"not a database, " * 100)
    with pytest.raises(StoreCorrupt, match="restore it from a backup"):
        asyncio.run(bench.open())
    assert Path(bench.path).read_bytes() == b"not a database, " * 100


def test_damage_found_later_is_reported(bench: SqliteBench) -> None:
    """Pages that were overwritten while the store was closed are noticed when they are read."""

    async def fill() -> None:
        store = await bench.open()
        await store.commit((), [Put(f"/{number}", bytes(1000)) for number in range(100)])
        await store.close()

    async def read() -> None:
        store = await bench.open()
        try:
            await store.range("/")
        finally:
            await store.close()

    asyncio.run(fill())
    with Path(bench.path).open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096 * 20)
    with pytest.raises(StoreCorrupt, match="damaged"):
        asyncio.run(read())


def test_another_programs_database_is_left_alone(bench: SqliteBench) -> None:
    """A wrong path in a config must not add tables to other data."""
    connection = sqlite3.connect(bench.path)
    connection.execute("CREATE TABLE mine (x)")
    connection.commit()
    connection.close()
    with pytest.raises(StoreCorrupt, match="another program"):
        asyncio.run(bench.open())


def test_a_database_created_by_another_broker_meanwhile_is_accepted(
    bench: SqliteBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers of a new cluster start together: one may create the tables while another one
    checks."""
    genuine = sqlite_file._identity
    others: list[bool] = []

    def looked_at_slowly(connection: sqlite3.Connection) -> tuple[int, int]:
        found = genuine(connection)
        if not others:
            others.append(True)
            with suppress(StoreBusy):
                sqlite_file.connect(bench.path, 0, read_only=False).close()
        return found

    monkeypatch.setattr(sqlite_file, "_identity", looked_at_slowly)

    async def main() -> None:
        store = await bench.open()
        assert (await store.commit([], [Put("/a", b"1")])).succeeded
        await store.close()

    asyncio.run(main())
    assert others


def test_a_newer_format_is_refused(bench: SqliteBench) -> None:
    """An older version cannot know what it would break."""

    async def create() -> None:
        await (await bench.open()).close()

    asyncio.run(create())
    connection = sqlite3.connect(bench.path)
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(StoreUnavailable, match="run the newer version"):
        asyncio.run(bench.open())


def test_a_full_disk_fails_the_whole_commit_and_is_temporary(bench: SqliteBench) -> None:
    """No part of the commit is kept. Once there is space the store continues."""

    async def main() -> None:
        store = await bench.open()
        pages = raw(store).execute("PRAGMA page_count").fetchone()[0]
        raw(store).execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(StoreUnavailable, match="no space left"):
            await store.commit((), [Put("/a", b""), Put("/b", bytes(4_000_000))])
        assert await keys_of(store) == []
        raw(store).execute("PRAGMA max_page_count = 100000")
        assert await put(store, "/b", bytes(100_000)) == 1
        await store.close()

    asyncio.run(main())


def test_after_a_failed_sync_nothing_more_is_written(
    bench: SqliteBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reached the disk is unknown until the file is opened again. The error says so."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = "SQLITE_IOERR_FSYNC"

    @contextmanager
    def failing(_connection: sqlite3.Connection, mode: str) -> Iterator[None]:
        yield
        if mode == "IMMEDIATE":
            raise error

    async def main() -> None:
        store = await bench.open()
        with monkeypatch.context() as patch:
            patch.setattr(sqlite_file, "transaction", failing)
            with pytest.raises(StoreUnavailable, match="unknown"):
                await store.grant_lease(1.0)
        with pytest.raises(StoreUnavailable, match="restart the broker"):
            await put(store, "/a", b"")
        await store.close()
        store = await bench.open()
        assert await put(store, "/a", b"") == 1
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "kind", "advice"),
    [
        ("SQLITE_BUSY_SNAPSHOT", StoreBusy, "try again"),
        ("SQLITE_READONLY_DIRECTORY", StoreUnavailable, "write permission"),
        ("SQLITE_CANTOPEN_ISDIR", StoreUnavailable, "directory exists"),
        ("SQLITE_CORRUPT_INDEX", StoreCorrupt, "backup"),
        ("SQLITE_FULL", StoreFull, "free some"),
        ("SQLITE_IOERR_WRITE", StoreUnavailable, "check the disk"),
        ("", StoreUnavailable, "check the disk"),
    ],
)
def test_every_error_says_what_to_do(name: str, kind: type[Exception], advice: str) -> None:
    """And quotes SQLite's message, for those who look it up."""
    error = sqlite3.OperationalError("the words of SQLite")
    if name:
        error.sqlite_errorname = name
    translation = sqlite_file.translate("/data/metadata.db", error)
    assert type(translation) is kind
    for part in (advice, "/data/metadata.db", "the words of SQLite", name):
        assert part in str(translation)


@pytest.mark.parametrize("field", ["poll_ms", "revisions_kept"])
def test_an_invalid_config_is_refused(field: str) -> None:
    """When it is created, not when it is first used."""
    with pytest.raises(ValueError, match=field):
        SqliteConfig(**{field: 0})


def test_a_lease_needs_a_time_to_live(bench: SqliteBench) -> None:
    """Without one it would have expired before its id arrives."""

    async def scenario(one: MetadataStore, _two: MetadataStore) -> None:
        with pytest.raises(ValueError, match="millisecond"):
            await one.grant_lease(0.0)

    bench.run(scenario)
