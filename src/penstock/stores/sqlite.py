"""The metadata store of all processes of one machine, in one SQLite file.

Each process opens the file itself; SQLite's locks order their transactions, so there is no server
and nothing to elect. Committed means synced to disk. Reads see every commit that was complete when
they began, whoever made it: the store is linearizable.

Nothing blocks the event loop: SQLite runs on the executor's threads, on one connection that writes
and one that reads. Writes that wait for the connection are taken together into one transaction, so
a burst costs one sync; each still has its own revision and its own outcome. The one thing done on
the loop is asking, on a connection of its own that waits for no lock, whether the file has changed:
that takes a few microseconds, less than a hundredth of a trip to a thread and back.

A call that raised has had no effect, with two exceptions. A disk that fails to write or sync leaves
the outcome unknown until the file is opened again; the handle refuses to write from then on. And a
caller that is cancelled, or whose process dies, does not learn the outcome.

Watches read a log of changes. Changes of this handle wake them at once, those of other processes
are looked for every `poll_ms`. The log keeps the last `revisions_kept` revisions. Whoever watches
also sweeps expired leases (see `sqlite_transaction`), as does every write.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, Final, Generic, TypeVar

from penstock.ports import Clock, Committed, Compare, Delete, Executor, KeyValue, Put, WatchEvent
from penstock.stores import sqlite_file
from penstock.stores.errors import StoreBusy, StoreClosed, StoreError, StoreUnavailable
from penstock.stores.sqlite_transaction import (
    Transaction,
    read_changes,
    read_one,
    read_range,
)

T = TypeVar("T")
_OPEN_RETRY_S: Final = 0.02
_CLOCK_JUMP_MS: Final = 500


@dataclass(frozen=True, slots=True)
class SqliteConfig:
    poll_ms: int = 25
    busy_timeout_ms: int = 5000
    revisions_kept: int = 10_000

    def __post_init__(self) -> None:
        if self.poll_ms < 1:
            raise ValueError(f"poll_ms is {self.poll_ms}: set it to 1 or more")
        if self.busy_timeout_ms < 0:
            raise ValueError(f"busy_timeout_ms is {self.busy_timeout_ms}: set it to 0 or more")
        if self.revisions_kept < 1:
            raise ValueError(f"revisions_kept is {self.revisions_kept}: set it to 1 or more")


class SqliteStore:
    """Implements `ports.MetadataStore`; made by `open`."""

    def __init__(
        self,
        writer: _Connection,
        reader: _Connection,
        poller: _Poller,
        *,
        clock: Clock,
        config: SqliteConfig,
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._poller = poller
        self._clock = clock
        self._config = config
        self._requests: deque[_Request[Any]] = deque()
        self._waiting: set[asyncio.Future[None]] = set()
        self._wall_ahead_ms = _wall_ahead_ms(clock)
        self._closed = False

    @classmethod
    async def open(
        cls,
        path: str,
        executor: Executor,
        clock: Clock,
        config: SqliteConfig = SqliteConfig(),  # noqa: B008 -- frozen
    ) -> SqliteStore:
        """Open the file, or make it in a directory that exists."""
        deadline = clock.monotonic() + config.busy_timeout_ms / 1000
        writer = _Connection(path, executor, config, read_only=False)
        reader = _Connection(path, executor, config, read_only=True)
        while True:
            try:
                await writer.open()
                break
            except StoreBusy:
                # SQLite does not wait when several processes make the same file at once.
                if clock.monotonic() >= deadline:
                    raise
                await clock.sleep(_OPEN_RETRY_S)
        try:
            await reader.open()
            poller = await executor.run(partial(_Poller, path, config))
        except BaseException:
            await reader.close()
            await writer.close()
            raise
        return cls(writer, reader, poller, clock=clock, config=config)

    async def get(self, key: str) -> KeyValue | None:
        return await self._reader.run(partial(read_one, key=key))

    async def range(self, prefix: str) -> tuple[list[KeyValue], int]:
        return await self._reader.run(partial(_in_snapshot, partial(read_range, prefix=prefix)))

    async def commit(
        self, compares: Sequence[Compare], changes: Sequence[Put | Delete]
    ) -> Committed:
        """No key may be changed twice in one commit."""
        keys = [change.key for change in changes]
        if len(set(keys)) != len(keys):
            twice = sorted({key for key in keys if keys.count(key) > 1})
            raise ValueError(f"one commit changes {', '.join(twice)} twice: change each key once")
        return await self._transact(lambda transaction: transaction.commit(compares, changes))

    async def grant_lease(self, ttl_s: float) -> int:
        ttl_ms = round(ttl_s * 1000)
        if ttl_ms < 1:
            raise ValueError(f"a lease of {ttl_s} s: ask for a millisecond or more")
        return await self._transact(lambda transaction: transaction.grant_lease(ttl_ms))

    async def keep_alive(self, lease: int) -> bool:
        return await self._transact(lambda transaction: transaction.keep_alive(lease), lease)

    async def revoke_lease(self, lease: int) -> None:
        await self._transact(lambda transaction: transaction.revoke_leases((lease,)))

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        next_revision = from_revision
        while True:
            # Before the read: what comes after it must count as news.
            version = self._poller.version()
            read = partial(read_changes, prefix=prefix, from_revision=next_revision)
            changes = await self._reader.run(partial(_in_snapshot, read))
            next_revision = changes.next_revision
            if changes.events:
                yield changes.events
            if self._is_due(changes.lease_deadline_ms):
                # It may be this process's own, which was held up: its renewal goes first.
                await self._changed_or_poll()
                # Whoever holds the lock sweeps as well; the watch must not end over it.
                with suppress(StoreBusy):
                    await self._transact(lambda _: None)
            elif changes.at_end:
                await self._news(version, changes.lease_deadline_ms)

    async def close(self) -> None:
        """Calls under way are answered, watches and later calls raise `StoreClosed`."""
        if self._closed:
            return
        self._closed = True
        # The writer last: the last connection to close folds the log into the file.
        self._poller.close()
        await self._reader.close()
        await self._writer.close()
        self._wake()

    async def _transact(self, body: Callable[[Transaction], T], renews: int | None = None) -> T:
        request = _Request(body, renews)
        self._requests.append(request)
        try:
            # Most are served with one that came before them, and a renewal must not wait for the
            # turns of a hundred others.
            await self._writer.run_if(lambda: not request.is_served, self._serve_requests)
        except BaseException:
            request.abandoned = True
            raise
        finally:
            self._wake()
        return request.outcome()

    def _serve_requests(self, connection: sqlite3.Connection) -> None:
        """On a thread: all requests that wait, in one transaction. Each gets its own outcome."""
        requests: list[_Request[Any]] = []
        with suppress(IndexError):
            while True:
                requests.append(self._requests.popleft())
        requests = [request for request in requests if not request.abandoned]
        if not requests:
            return
        try:
            with self._writer.translated(), sqlite_file.transaction(connection, "IMMEDIATE"):
                transaction = Transaction(connection, self._clock.wall_ms())
                # The wall clock was set, or the machine slept, since the last transaction.
                wall_ahead_ms = _wall_ahead_ms(self._clock)
                if abs(wall_ahead_ms - self._wall_ahead_ms) > _CLOCK_JUMP_MS:
                    transaction.renew_all_leases()
                transaction.sweep({each.renews for each in requests if each.renews is not None})
                for request in requests:
                    request.run(transaction)
                transaction.finish(self._config.revisions_kept)
        except StoreError as error:
            for request in requests:
                request.error = type(error)(*error.args)
            return
        self._wall_ahead_ms = wall_ahead_ms
        for request in requests:
            request.done = True

    def _is_due(self, deadline_ms: int | None) -> bool:
        return deadline_ms is not None and deadline_ms <= self._clock.wall_ms()

    async def _news(self, version: int | None, lease_deadline_ms: int | None) -> None:
        """Return when the file has changed since `version`, or may have, or a lease ran out."""
        if version is None:
            await self._changed_or_poll()
            return
        while self._poller.version() == version and not self._is_due(lease_deadline_ms):
            await self._changed_or_poll()

    async def _changed_or_poll(self) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.add(waiter)
        timer = loop.call_later(self._config.poll_ms / 1000, _resolve, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiting.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiting:
            _resolve(waiter)


class _Request(Generic[T]):
    """A write that waits for its transaction, then its outcome."""

    __slots__ = ("abandoned", "body", "done", "error", "renews", "result")

    def __init__(self, body: Callable[[Transaction], T], renews: int | None) -> None:
        self.body = body
        self.renews = renews
        self.abandoned = False
        self.done = False
        self.error: StoreError | None = None
        self.result: T | None = None

    @property
    def is_served(self) -> bool:
        return self.done or self.error is not None

    def run(self, transaction: Transaction) -> None:
        # A body raises `StoreError` only before it writes, so the others can go on.
        try:
            self.result = self.body(transaction)
        except StoreError as error:
            self.error = error

    def outcome(self) -> T:
        if self.error is not None:
            raise self.error
        if not self.done:
            raise StoreUnavailable(
                "a request served together with this one failed, and nothing was done: try again"
            )
        return self.result  # type: ignore[return-value] # T may be None


class _Connection:
    """A SQLite connection, used by one thread at a time.

    The asyncio lock keeps waiting calls from filling the executor; the thread lock is for work
    that goes on although its caller was cancelled.
    """

    def __init__(
        self, path: str, executor: Executor, config: SqliteConfig, *, read_only: bool
    ) -> None:
        self._path = path
        self._executor = executor
        self._config = config
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
        """Run it unless there is no need any more when its turn comes."""
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
            if sqlite_file.leaves_outcome_unknown(error) and not self._read_only:
                self._failure = translation
            raise translation from error

    def _connect(self) -> None:
        with self._thread_lock:
            self._raw = sqlite_file.connect(
                self._path, self._config.busy_timeout_ms, read_only=self._read_only
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


class _Poller:
    """Tells whether anybody changed the file, without waiting for anything."""

    def __init__(self, path: str, config: SqliteConfig) -> None:
        self._raw = sqlite_file.connect(path, config.busy_timeout_ms, read_only=True)
        self._raw.execute("PRAGMA busy_timeout = 0")

    def version(self) -> int | None:
        """Differs when the file has changed; None when it cannot be told without waiting."""
        try:
            version: int = self._raw.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            return None
        return version

    def close(self) -> None:
        self._raw.close()


def _in_snapshot(work: Callable[[sqlite3.Connection], T], connection: sqlite3.Connection) -> T:
    with sqlite_file.transaction(connection, "DEFERRED"):
        return work(connection)


def _wall_ahead_ms(clock: Clock) -> float:
    return clock.wall_ms() - clock.monotonic() * 1000


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
