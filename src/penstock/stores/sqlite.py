"""The metadata store for all processes of one machine, in one SQLite file.

Each process opens the file itself. SQLite's locks order their transactions, so there is no server
and no election. Committed means synced to disk. A read sees every commit, of any process, that was
complete when the read began: the store is linearizable.

Nothing blocks the event loop. SQLite runs on the executor's threads, on one connection for writes
and one for reads; leases are renewed on a third (`sqlite_leases`). The executor should not be
shared, because otherwise the store waits behind other disk work. Writes that wait for the
connection are combined in one transaction, so a burst costs one sync; each write still has its own
revision and its own outcome. The only operation on the event loop is checking whether the file has
changed, on a separate connection that waits for no lock. It takes a few microseconds, less than a
hundredth of a round trip to a thread.

A call that raised had no effect, with two exceptions. If the disk fails to write or sync, the
outcome is unknown until the file is opened again; the handle refuses writes from then on. And a
caller that is cancelled, or whose process dies, does not learn the outcome.

Watches read a log of changes. Changes made through this handle wake them at once; changes by other
processes are polled every `poll_ms`. The log keeps the last `revisions_kept` revisions. A watch
also sweeps expired leases (see `sqlite_transaction`), as does every write.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

from penstock.ports import Clock, Committed, Compare, Delete, Executor, KeyValue, Put, WatchEvent
from penstock.stores import sqlite_file, sqlite_reserve
from penstock.stores.errors import StoreBusy, StoreError, StoreFull, StoreUnavailable
from penstock.stores.sqlite_connection import Connection, Poller
from penstock.stores.sqlite_leases import LeaseRenewer
from penstock.stores.sqlite_transaction import (
    Transaction,
    read_changes,
    read_one,
    read_range,
)

T = TypeVar("T")
_OPEN_RETRY_S: Final = 0.02
_CLOCK_JUMP_MS: Final = 500
UPKEEP_RENEWALS: Final = 128
"""The number of renewals between two rounds of upkeep. Each renewal adds a page to the write-ahead
log."""
UPKEEP_RENEWALS_FULL: Final = 5
_log = logging.getLogger(__name__)


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
    """Implements `ports.MetadataStore`. Created by `open`."""

    def __init__(
        self,
        writer: Connection,
        reader: Connection,
        renewer: LeaseRenewer,
        poller: Poller,
        *,
        executor: Executor,
        clock: Clock,
        config: SqliteConfig,
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._renewer = renewer
        self._poller = poller
        self._executor = executor
        self._clock = clock
        self._config = config
        self._requests: deque[_Request[Any]] = deque()
        self._waiting: set[asyncio.Future[None]] = set()
        self._wall_ahead_ms = _wall_ahead_ms(clock)
        self._upkeep: asyncio.Task[None] | None = None
        # The first renewal shows that a broker uses this store, so upkeep reserves space at once.
        self._renewals = UPKEEP_RENEWALS
        self._full: str | None = None
        self._closed = False

    @classmethod
    async def open(
        cls,
        path: str,
        executor: Executor,
        clock: Clock,
        config: SqliteConfig = SqliteConfig(),  # noqa: B008 -- frozen
    ) -> SqliteStore:
        """Opens the file, or creates it in an existing directory."""
        deadline = clock.monotonic() + config.busy_timeout_ms / 1000
        busy_ms = config.busy_timeout_ms
        writer = Connection(path, executor, busy_ms, read_only=False)
        reader = Connection(path, executor, busy_ms, read_only=True)
        renewer = LeaseRenewer(path, clock, busy_ms)
        while True:
            try:
                await writer.open()
                break
            except StoreBusy:
                # SQLite does not wait if several processes create the same file at once.
                if clock.monotonic() >= deadline:
                    raise
                await clock.sleep(_OPEN_RETRY_S)
        try:
            await reader.open()
            await executor.run(renewer.open)
            poller = await executor.run(partial(Poller, path, busy_ms))
        except BaseException:
            await executor.run(renewer.close)
            await reader.close()
            await writer.close()
            raise
        return cls(writer, reader, renewer, poller, executor=executor, clock=clock, config=config)

    async def get(self, key: str) -> KeyValue | None:
        return await self._reader.run(partial(read_one, key=key))

    async def range(self, prefix: str) -> tuple[list[KeyValue], int]:
        return await self._reader.run(partial(_in_snapshot, partial(read_range, prefix=prefix)))

    async def commit(
        self, compares: Sequence[Compare], changes: Sequence[Put | Delete]
    ) -> Committed:
        """Commits the changes. A key may be changed only once in one commit."""
        keys = [change.key for change in changes]
        if len(set(keys)) != len(keys):
            twice = sorted({key for key in keys if keys.count(key) > 1})
            raise ValueError(f"one commit changes {', '.join(twice)} twice: change each key once")
        return await self._transact(lambda transaction: transaction.commit(compares, changes))

    async def grant_lease(self, ttl_s: float) -> int:
        ttl_ms = round(ttl_s * 1000)
        if ttl_ms < 1:
            raise ValueError(
                f"a lease of {ttl_s} s is not possible: it must be a millisecond or longer"
            )
        return await self._transact(lambda transaction: transaction.grant_lease(ttl_ms))

    async def keep_alive(self, lease: int, carry_s: float = 0.0) -> bool:
        sent_at = self._clock.monotonic()
        ttl_s = await self._executor.run(partial(self._renewer.renew, lease))
        if ttl_s is None:
            self._renewer.release(lease)
            return False
        if carry_s > 0:
            self._renewer.hold(lease, ttl_s, sent_at, carry_s)
        self._renewals += 1
        if self._upkeep_is_due() and self._upkeep is None and not self._closed:
            self._upkeep = asyncio.create_task(self._keep_up())
        return True

    async def revoke_lease(self, lease: int) -> None:
        # Release it first: if the commit fails, the lease must at least expire.
        self._renewer.release(lease)
        await self._transact(lambda transaction: transaction.revoke_leases((lease,)))

    @property
    def full(self) -> str | None:
        return self._full

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        next_revision = from_revision
        while True:
            # Read the version before the data, so that a change made after the read is noticed.
            version = self._poller.version()
            read = partial(
                read_changes,
                prefix=prefix,
                from_revision=next_revision,
                held=self._renewer.held,
            )
            changes = await self._reader.run(partial(_in_snapshot, read))
            next_revision = changes.next_revision
            if changes.events:
                yield changes.events
            if self._is_due(changes.lease_deadline_ms):
                # The expired lease may be this process's own, if the process was delayed. Give its
                # renewal a chance first.
                await self._changed_or_poll()
                # Another process that holds the lock sweeps too, and on a full disk the sweep must
                # wait. Neither may end the watch.
                with suppress(StoreBusy, StoreFull):
                    await self._transact(lambda _: None)
            elif changes.at_end:
                await self._news(version, changes.lease_deadline_ms)

    async def close(self) -> None:
        """Finishes the calls in progress. Watches and later calls raise `StoreClosed`."""
        if self._closed:
            return
        self._closed = True
        # Close the writer last: the last connection to close checkpoints the log into the file.
        if self._upkeep is not None:
            await asyncio.wait([self._upkeep])
        self._poller.close()
        await self._executor.run(self._renewer.close)
        await self._reader.close()
        await self._writer.close()
        self._wake()

    async def _transact(self, body: Callable[[Transaction], T]) -> T:
        """Runs the body in a write transaction, which it may share with other requests."""
        request = _Request(body)
        self._requests.append(request)
        try:
            # Most requests are served together with an earlier one, so a burst needs few round
            # trips.
            await self._writer.run_if(lambda: not request.is_served, self._serve_requests)
        except BaseException:
            request.abandoned = True
            raise
        finally:
            self._wake()
        return request.outcome()

    def _serve_requests(self, connection: sqlite3.Connection) -> None:
        """Runs all waiting requests in one transaction, on a thread. Each gets its own outcome."""
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
                # Detect whether the wall clock was set, or the machine slept, since the last
                # transaction.
                wall_ahead_ms = _wall_ahead_ms(self._clock)
                if abs(wall_ahead_ms - self._wall_ahead_ms) > _CLOCK_JUMP_MS:
                    transaction.renew_all_leases()
                transaction.sweep(self._renewer.held, is_patient=self._renewer.is_patient)
                for request in requests:
                    request.run(transaction)
                transaction.finish(self._config.revisions_kept)
        except StoreError as error:
            if isinstance(error, StoreFull):
                self._full = str(error)
            for request in requests:
                request.error = type(error)(*error.args)
            return
        if transaction.revision != transaction.started_at:
            self._full = None
        self._wall_ahead_ms = wall_ahead_ms
        for request in requests:
            request.done = True

    def _upkeep_is_due(self) -> bool:
        every = UPKEEP_RENEWALS if self._full is None else UPKEEP_RENEWALS_FULL
        return self._renewals >= every

    async def _keep_up(self) -> None:
        """Checkpoints the write-ahead log into the file, and restores the store's reserved
        space."""
        self._renewals = 0
        try:
            await self._writer.run(sqlite_reserve.keep_up)
        except StoreFull as error:
            self._full = str(error)
        except StoreError as error:
            _log.warning(
                "cannot checkpoint the metadata store or restore its reserved space; retrying "
                "later: %s",
                error,
            )
        else:
            self._full = None
        finally:
            self._upkeep = None

    def _is_due(self, deadline_ms: int | None) -> bool:
        return deadline_ms is not None and deadline_ms <= self._clock.wall_ms()

    async def _news(self, version: int | None, lease_deadline_ms: int | None) -> None:
        """Waits until the file has changed since `version`, or may have, or a lease has expired."""
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
    """A write that waits for its transaction, and then holds its outcome."""

    __slots__ = ("abandoned", "body", "done", "error", "result")

    def __init__(self, body: Callable[[Transaction], T]) -> None:
        self.body = body
        self.abandoned = False
        self.done = False
        self.error: StoreError | None = None
        self.result: T | None = None

    @property
    def is_served(self) -> bool:
        return self.done or self.error is not None

    def run(self, transaction: Transaction) -> None:
        # A body raises `StoreError` only before it writes, so the other requests can continue.
        try:
            self.result = self.body(transaction)
        except StoreError as error:
            self.error = error

    def outcome(self) -> T:
        if self.error is not None:
            raise self.error
        if not self.done:
            raise StoreUnavailable(
                "another request in the same transaction failed, and nothing was changed: try again"
            )
        return self.result  # type: ignore[return-value] # T may be None


def _in_snapshot(work: Callable[[sqlite3.Connection], T], connection: sqlite3.Connection) -> T:
    with sqlite_file.transaction(connection, "DEFERRED"):
        return work(connection)


def _wall_ahead_ms(clock: Clock) -> float:
    return clock.wall_ms() - clock.monotonic() * 1000


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
