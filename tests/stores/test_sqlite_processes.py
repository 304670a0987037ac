"""Real processes that share one file."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from penstock.ports import WatchEvent
from penstock.runtime import SystemClock, Threads
from penstock.stores.sqlite import SqliteStore
from penstock.testing.slowness import patient

from .sqlite_process import INCREMENTS

ROOT = Path(__file__).resolve().parents[2]


def start(path: str, role: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.stores.sqlite_process", path, role],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_racing_processes_lose_no_update(tmp_path: Path) -> None:
    """Three create the same file at the same time and increment the same number."""
    path = str(tmp_path / "metadata.db")
    processes = [start(path, "increment") for _ in range(3)]
    assert [
        process.communicate(timeout=patient(120)) and process.returncode for process in processes
    ] == [
        0,
        0,
        0,
    ]

    async def main() -> None:
        threads = Threads(2)
        store = await SqliteStore.open(path, threads, SystemClock())
        entry = await store.get("/n")
        assert entry is not None
        assert (int(entry.value), entry.modify_revision) == (3 * INCREMENTS, 3 * INCREMENTS)
        await store.close()
        threads.close()

    asyncio.run(main())


def test_the_keys_of_a_killed_process_are_deleted(tmp_path: Path) -> None:
    """While it renews its lease they stay, much longer than the time to live. After a kill they
    are deleted."""
    path = str(tmp_path / "metadata.db")

    async def main(holder: subprocess.Popen[str]) -> None:
        threads = Threads(2)
        store = await SqliteStore.open(path, threads, SystemClock())
        entry = await store.get("/held")
        assert entry is not None
        holder.kill()
        holder.communicate()
        async with asyncio.timeout(patient(120)):
            async for events in store.watch("/held", entry.modify_revision + 1):
                assert events == (WatchEvent("/held", None, entry.modify_revision + 1),)
                break
        assert await store.get("/held") is None
        await store.close()
        threads.close()

    with start(path, "hold") as holder:
        assert holder.stdout is not None
        for _ in range(8):
            assert holder.stdout.readline() == "renewed\n"
        asyncio.run(main(holder))
