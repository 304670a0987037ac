"""A metadata store on a full disk: a real file system of a few megabytes."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.ports import Put
from penstock.runtime import SystemClock, Threads
from penstock.stores import sqlite_reserve
from penstock.stores.errors import StoreFull
from penstock.stores.sqlite import SqliteStore
from penstock.testing.slowness import patient

from .store_bench import keys_of, put

DISK_BYTES = 24 << 20
HOG = "hog"


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory on a separate file system."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    topic_partition = tmp_path / "disk"
    topic_partition.mkdir()
    if request.param == "tmpfs":
        command = [
            "mount",
            "-t",
            "tmpfs",
            "-o",
            f"size={DISK_BYTES}",
            "tmpfs",
            str(topic_partition),
        ]
    else:
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("mkfs.ext4 is not installed")
        image = tmp_path / "image"
        with open(image, "wb") as file:
            file.truncate(DISK_BYTES)
        made = subprocess.run(
            ["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image)],
            check=False,
            capture_output=True,
        )
        if made.returncode:
            pytest.skip(f"no ext4 here: {made.stderr!r}")
        command = ["mount", "-o", "loop", str(image), str(topic_partition)]
    mounted = subprocess.run(command, check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr!r}")
    try:
        yield topic_partition
    finally:
        subprocess.run(["umount", "--lazy", str(topic_partition)], check=True)


def fill(topic_partition: Path) -> None:
    """Uses all free space, as another program would."""
    with open(topic_partition / HOG, "ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


def is_full(topic_partition: Path) -> bool:
    try:
        (topic_partition / "probe").write_bytes(bytes(8192))
    except OSError as error:
        return error.errno == errno.ENOSPC
    finally:
        with suppress(OSError):
            (topic_partition / "probe").unlink()
    return False


def log_bytes(path: str) -> int:
    return os.path.getsize(f"{path}-wal")


def refuses(store: SqliteStore) -> bool:
    return store.full is not None


async def opened(topic_partition: Path, threads: Threads) -> tuple[SqliteStore, int]:
    """Returns a store with a carried lease and with its reserve allocated."""
    store = await SqliteStore.open(str(topic_partition / "metadata.db"), threads, SystemClock())
    lease = await store.grant_lease(60.0)
    await put(store, "/mine", b"", lease)
    assert await store.keep_alive(lease, 60.0)
    while store._upkeep is not None:
        await asyncio.wait([store._upkeep])
        await asyncio.sleep(0)
    return store, lease


def test_leases_and_small_changes_continue_when_the_disk_is_full(small_disk: Path) -> None:
    """The store has reserved space inside its own files, which no other program can use."""

    async def main() -> None:
        threads = Threads(4)
        store, lease = await opened(small_disk, threads)
        fill(small_disk)
        assert is_full(small_disk)
        for number in range(600):
            assert await store.keep_alive(lease, 60.0)
            if number % 10 == 0:
                await put(store, "/leader", b"%d" % number)
        assert not refuses(store)
        assert await keys_of(store) == ["/leader", "/mine"]
        await store.close()
        threads.close()

    asyncio.run(main())


def test_a_full_store_keeps_reading_and_writes_again_when_there_is_space(
    small_disk: Path,
) -> None:
    """Refused commits changed nothing, and the lease can still be renewed afterwards."""

    async def main() -> None:
        threads = Threads(4)
        store, lease = await opened(small_disk, threads)
        fill(small_disk)
        before = await keys_of(store)
        written = 0
        with pytest.raises(StoreFull, match="free some space"):
            while True:
                await put(store, f"/entry/{written:04}", os.urandom(50_000))
                written += 1
        assert written * 50_000 >= sqlite_reserve.RESERVE_BYTES // 4
        assert refuses(store)
        assert await keys_of(store) == [f"/entry/{n:04}" for n in range(written)] + before
        with pytest.raises(StoreFull):
            await store.commit((), [Put("/large", os.urandom(4 << 20))])
        for _ in range(20):
            with suppress(StoreFull):
                await store.keep_alive(lease, 60.0)
        (small_disk / HOG).unlink()
        await put(store, "/room", os.urandom(50_000))
        assert not refuses(store)
        assert await store.keep_alive(lease, 60.0)
        await store.close()
        threads.close()

    asyncio.run(main())


def test_the_reserve_is_allocated_when_there_is_space(small_disk: Path) -> None:
    """The disk was full from the start, so there was no reserve."""

    async def main() -> None:
        threads = Threads(4)
        path = str(small_disk / "metadata.db")
        store = await SqliteStore.open(path, threads, SystemClock())
        lease = await store.grant_lease(60.0)
        fill(small_disk)
        with suppress(StoreFull):
            await store.keep_alive(lease, 60.0)
        (small_disk / HOG).unlink()
        async with asyncio.timeout(patient(150)):
            while log_bytes(path) < sqlite_reserve.RESERVE_BYTES:
                await store.keep_alive(lease, 60.0)
        await store.close()
        threads.close()

    asyncio.run(main())
