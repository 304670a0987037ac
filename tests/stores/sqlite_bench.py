"""SQLite stores for tests: real files, real threads, and a clock that the test advances."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from penstock.ports import MetadataStore
from penstock.runtime import Threads
from penstock.stores.sqlite import SqliteConfig, SqliteStore

from .store_bench import StoreBench, put


class HandClock:
    """Stands still until the test advances it. Sleeping is real: it only spaces out retries."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self.wall_offset_ms = 1_700_000_000_000

    def monotonic(self) -> float:
        return self.elapsed_s

    def wall_ms(self) -> int:
        return round(self.elapsed_s * 1000) + self.wall_offset_ms

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SqliteBench(StoreBench):
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = str(directory / "metadata.db")
        self.clock = HandClock()
        self.config = SqliteConfig(poll_ms=5, revisions_kept=1)
        self.threads = Threads(4)

    async def open(self) -> SqliteStore:
        return await SqliteStore.open(self.path, self.threads, self.clock, self.config)

    async def advance(self, seconds: float) -> None:
        self.clock.elapsed_s += seconds

    async def forget_history(self, store: MetadataStore) -> None:
        """Makes enough changes that the store prunes its change log, which it does in intervals."""
        for _ in range(260):
            await put(store, "/forget", b"")

    def fresh(self) -> SqliteBench:
        return SqliteBench(Path(tempfile.mkdtemp(dir=self.directory)))

    def close(self) -> None:
        self.threads.close()
