"""Connections to the SQLite file of a metadata store, each used by one thread at a time."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import TypeVar

from penstock.ports import Executor
from penstock.stores import sqlite_file
from penstock.stores.errors import StoreClosed, StoreError, StoreFull, StoreUnavailable

T = TypeVar("T")


class Connection:
    """A SQLite connection, used by one thread at a time.

    The asyncio lock keeps waiting calls from filling the executor. The thread lock protects against
    work that continues although its caller was cancelled.
    """

    def __init__(
        self, path: str, executor: Executor, busy_timeout_ms: int, *, read_only: bool
    ) -> None:
        self._path = path
        self._executor = executor
        self._busy_timeout_ms = busy_timeout_ms
        self._read_only = read_only
        self._lock = asyncio.Lock()
        self._thread_lock = Lock()
        self._raw: sqlite3.Connection | None = None
        self._failure: StoreError | None = None

    async def open(self) -> None:
        try:
            await self._executor.run(self._connect)
        except BaseException:
            await self.close()
            raise

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        async with self._lock:
            return await self._executor.run(partial(self._run, work))

    async def run_if(
        self, is_needed: Callable[[], bool], work: Callable[[sqlite3.Connection], None]
    ) -> None:
        """Runs the work, unless it is no longer needed when the connection becomes free."""
        async with self._lock:
            if is_needed():
                await self._executor.run(partial(self._run, work))

    async def close(self) -> None:
        async with self._lock:
            await self._executor.run(self._disconnect)

    @contextmanager
    def translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            translation = sqlite_file.translate(self._path, error)
            is_full = isinstance(translation, StoreFull)
            if sqlite_file.leaves_outcome_unknown(error) and not self._read_only and not is_full:
                self._failure = translation
            raise translation from error

    def _connect(self) -> None:
        with self._thread_lock:
            self._raw = sqlite_file.connect(
                self._path, self._busy_timeout_ms, read_only=self._read_only
            )

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._thread_lock:
            if self._raw is None:
                raise StoreClosed(f"the metadata store {self._path} was closed: open it again")
            if self._failure is not None:
                raise StoreUnavailable(*self._failure.args)
            with self.translated():
                return work(self._raw)

    def _disconnect(self) -> None:
        with self._thread_lock:
            if self._raw is not None:
                self._raw.close()
                self._raw = None


class Poller:
    """Detects without waiting whether any process has changed the file."""

    def __init__(self, path: str, busy_timeout_ms: int) -> None:
        self._raw = sqlite_file.connect(path, busy_timeout_ms, read_only=True)
        self._raw.execute("PRAGMA busy_timeout = 0")

    def version(self) -> int | None:
        """Returns a number that differs after the file has changed; None if it cannot be read
        without waiting."""
        try:
            version: int = self._raw.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            return None
        return version

    def close(self) -> None:
        self._raw.close()
