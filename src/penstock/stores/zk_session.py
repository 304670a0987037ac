"""Our connection to a ZooKeeper ensemble: kazoo's client, as coroutines with deadlines.

kazoo runs the connection on a thread of its own: it resolves names, connects, sends, reads, and
goes to the next member when one fails. It calls back on another thread, and from there the result
is handed to the event loop. So nothing here blocks the event loop.

Two things are not left to kazoo. It notices a frozen member only when it has nothing to send for a
while. So a request without an answer within `attempt_timeout_s` ends the connection. And a request
that waits for a connection would still be sent when its caller has given up. So no request is made
without a connection.

The session of ZooKeeper has no meaning for the store, because it makes no ephemeral znodes: when a
session expires, kazoo begins another one, and requests are repeated there.

`repeat` is for requests that may be made twice. `once` raises `Lost` if it is unknown whether the
request was carried out.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    AuthFailedError,
    RolledBackError,
    RuntimeInconsistency,
    ZookeeperError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.security import make_digest_acl

from penstock.ports import Clock, Executor, Random
from penstock.stores.errors import StoreClosed, StoreError, StoreUnreachable
from penstock.stores.zk_address import ZooKeeperAddress
from penstock.stores.zk_failures import is_passing, judge, read_password
from penstock.stores.zk_format import BARRIER, ROOT

_PAUSE_S: Final = 0.02
_PAUSE_MAX_S: Final = 0.5
_STOP_S: Final = 0.5
_log = logging.getLogger(__name__)
_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
# It logs every attempt to connect, and at the finest level every request, and so the password.
_kazoo_log.setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True)
class ZooKeeperConfig:
    """`request_timeout_s` limits every call except a watch. A member that gives no answer for
    `attempt_timeout_s` is left. Before a commit, the connection is checked if nothing was answered
    for `trust_s`. A snapshot is made every `snapshot_revisions` revisions, or when the log has
    grown by `snapshot_bytes`. The log then keeps the last `revisions_kept` revisions."""

    request_timeout_s: float = 8.0
    attempt_timeout_s: float = 2.0
    trust_s: float = 1.0
    session_timeout_s: float = 6.0
    snapshot_revisions: int = 1000
    snapshot_bytes: int = 16 << 20
    revisions_kept: int = 1000

    def __post_init__(self) -> None:
        for name in ("request_timeout_s", "attempt_timeout_s", "session_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: set it to more than 0")
        if self.trust_s < 0:
            raise ValueError(f"trust_s is {self.trust_s}: set it to 0 or more")
        for name in ("snapshot_revisions", "snapshot_bytes", "revisions_kept"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: set it to 1 or more")


class Lost(Exception):
    """The connection failed, or no answer came: it is unknown whether the request was carried
    out."""


class Rejected(Exception):
    """ZooKeeper refused a transaction, and changed nothing, because of its operation `position`."""

    def __init__(self, position: int, error: Exception) -> None:
        super().__init__(f"operation {position}: {error!r}")
        self.position = position
        self.error = error


Ask = Callable[[KazooClient], Any]
"""Sends a request. Returns kazoo's result, which comes later."""
Build = Callable[[TransactionRequest, Callable[[str], str]], None]
"""Adds operations to a transaction. The second argument turns a path of ours into a full one."""


class _Handler(SequentialThreadingHandler):  # type: ignore[misc] # kazoo has no types
    """Remembers the socket of the connection, to be able to end it, and the thread it runs on."""

    def __init__(self, connect_timeout_s: float) -> None:
        super().__init__()
        self._connect_timeout_s = connect_timeout_s
        self._loop_thread: threading.Thread | None = None
        self.socket_now: socket.socket | None = None
        self.problem = ""
        """Why the last attempt to connect failed; empty if it succeeded."""
        self.login_refused = False

    @property
    def has_ended(self) -> bool:
        """Whether the client will not connect any more."""
        return self._loop_thread is not None and not self._loop_thread.is_alive()

    def spawn(self, func: Callable[..., Any], *args: Any, **options: Any) -> threading.Thread:
        thread: threading.Thread = super().spawn(func, *args, **options)
        if getattr(func, "__name__", "") == "zk_loop":
            self._loop_thread = thread
        return thread

    def create_connection(self, *args: Any, **options: Any) -> Any:
        # kazoo would give a member that is switched off the timeout of a whole session.
        options["timeout"] = self._connect_timeout_s
        try:
            self.socket_now = super().create_connection(*args, **options)
        except OSError as error:
            self.problem = f"{options.get('hostname')}: {error}"
            raise
        self.problem = ""
        return self.socket_now

    def drop(self, connection: socket.socket | None) -> None:
        """Ends this connection. kazoo then connects to the next member."""
        if connection is not None and connection is self.socket_now:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class ZooKeeperSession:
    def __init__(
        self,
        address: ZooKeeperAddress,
        clock: Clock,
        random: Random,
        executor: Executor,
        config: ZooKeeperConfig,
    ) -> None:
        self.root = address.namespace + ROOT
        self.address = address
        self._clock = clock
        self._executor = executor
        self._config = config
        # Brokers begin with different members, so that the first one does not get all the load.
        first = random.below(len(address.endpoints))
        self._hosts = ",".join((*address.endpoints[first:], *address.endpoints[:first]))
        self._loop = asyncio.get_running_loop()
        self._handler: _Handler | None = None
        self._client: KazooClient | None = None
        self._making = asyncio.Lock()
        self._connected = asyncio.Event()
        self._answered_at: float | None = None
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.closing = asyncio.Event()

    def path(self, path: str) -> str:
        """Returns the full path of a znode of this store."""
        return self.root + path

    @property
    def _attempt_s(self) -> float:
        """How long a member may take to answer, or to accept a connection."""
        return min(self._config.attempt_timeout_s, self._config.request_timeout_s)

    @property
    def is_trusted(self) -> bool:
        """Whether ZooKeeper answered a moment ago."""
        at = self._answered_at
        return at is not None and self._clock.monotonic() - at <= self._config.trust_s

    def require_open(self) -> None:
        if self.closing.is_set():
            raise StoreClosed(f"the metadata store {self.address} was closed: open it again")

    @contextmanager
    def call(self) -> Iterator[None]:
        """Surrounds a call of the store. `close` waits for it."""
        self.require_open()
        with self._counted():
            yield

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._under_way += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    def deadline(self) -> float:
        return self._clock.monotonic() + self._config.request_timeout_s

    async def repeat(self, ask: Ask, deadline_s: float) -> Any:
        """Repeats the request until it is answered. Not for requests that must not be made
        twice."""
        failures = 0
        while True:
            try:
                return await self.once(ask, deadline_s)
            except Lost as error:
                failures += 1
                await self.pause(failures)
                self.require_open()
                if self._clock.monotonic() >= deadline_s:
                    raise self.unreachable(error) from error

    async def once(self, ask: Ask, deadline_s: float) -> Any:
        """Sends the request once. Raises kazoo's error if ZooKeeper answered with one."""
        return (await self._send((ask,), deadline_s))[0]

    async def transact(self, build: Build, deadline_s: float) -> list[Any]:
        """Carries out a transaction, once. Raises `Rejected` if it changed nothing."""

        def ask(client: KazooClient) -> Any:
            transaction = client.transaction()
            build(transaction, self.path)
            return transaction.commit_async()

        results: list[Any] = await self.once(ask, deadline_s)
        for position, result in enumerate(results):
            if isinstance(result, Exception) and not isinstance(
                result, RolledBackError | RuntimeInconsistency
            ):
                raise Rejected(position, result)
        return results

    async def fresh(self, asks: Sequence[Ask], deadline_s: float) -> list[Any]:
        """Reads what a majority has: everything that was committed before this call.

        ZooKeeper carries out the requests of a session in order. So the reads follow a write, which
        only a majority can confirm. ZooKeeper's own `sync` would not do: a leader that was
        replaced, and does not know it yet, answers that too.
        """
        failures = 0
        while True:
            try:
                return (await self._send((self._write_barrier, *asks), deadline_s))[1:]
            except Lost as error:
                failures += 1
                await self.pause(failures)
                self.require_open()
                if self._clock.monotonic() >= deadline_s:
                    raise self.unreachable(error) from error

    async def pause(self, failures: int) -> None:
        """Waits a little. `close` ends the wait."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(_PAUSE_S * 2 ** (failures - 1), _PAUSE_MAX_S)):
                await self.closing.wait()

    async def close(self) -> None:
        """Ends the connection. Calls in progress are answered or time out."""
        if not self.closing.is_set():
            self.closing.set()
            await self._idle.wait()
            async with self._making:
                await self._discard()
        await self._idle.wait()

    def translated(self, error: Exception) -> StoreError:
        """Returns the error to raise for one of kazoo's that is no answer to the request."""
        return error if isinstance(error, StoreError) else judge(error, self.address)

    def unreachable(self, last: BaseException | None) -> StoreUnreachable:
        reasons = [str(last) if last else "", self._handler.problem if self._handler else ""]
        because = f" ({'; '.join(filter(None, reasons))})" if any(reasons) else ""
        return StoreUnreachable(
            f"{self.address} did not answer within {self._config.request_timeout_s} s, and "
            f"nothing was changed{because}: check that a majority of its members is running and "
            "can be reached from this broker"
        )

    def _write_barrier(self, client: KazooClient) -> Any:
        return client.set_async(self.path(BARRIER), b"")

    async def _send(self, asks: Sequence[Ask], deadline_s: float) -> list[Any]:
        """Sends requests, one right after the other, in one session."""
        with self._counted():
            client, handler = await self._connection(deadline_s)
            left_s = deadline_s - self._clock.monotonic()
            if left_s <= 0:
                raise self.unreachable(None)
            connection, session = handler.socket_now, client.client_id
            pending = [self._answer(ask(client)) for ask in asks]
            try:
                async with asyncio.timeout(min(left_s, self._config.attempt_timeout_s)):
                    answers = await asyncio.gather(*pending, return_exceptions=True)
            except TimeoutError:
                # A caller in a hurry proves nothing: the connection may be new and good.
                if left_s >= self._attempt_s:
                    handler.drop(connection)
                raise Lost("no answer in time") from None
            for answer in answers:
                if isinstance(answer, ZookeeperError) and not is_passing(answer):
                    continue
                if isinstance(answer, BaseException):
                    raise Lost(repr(answer)) from answer
            self._answered_at = self._clock.monotonic()
            # In another session, a request may have reached a member that is behind.
            if len(asks) > 1 and (session is None or session != client.client_id):
                raise Lost("the session ended in the meantime")
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
            return answers

    async def _connection(self, deadline_s: float) -> tuple[KazooClient, _Handler]:
        """Waits for a connection."""
        while True:
            client, handler = self._client, self._handler
            if client is not None and handler is not None and client.connected:
                return client, handler
            self.require_open()
            async with self._making:
                # A client that still resolves names has not ended, though it is not connected.
                if self._handler is None or self._handler.has_ended:
                    refused = self._handler is not None and self._handler.login_refused
                    await self._discard()
                    if refused:
                        raise judge(AuthFailedError(), self.address)
                    await self._make()
            left_s = deadline_s - self._clock.monotonic()
            if left_s <= 0:
                raise self.unreachable(None)
            self._connected.clear()
            if self._client is not None and self._client.connected:
                continue
            with suppress(TimeoutError):
                # Not longer at once: a client that has ended by itself is replaced.
                async with asyncio.timeout(min(left_s, _PAUSE_MAX_S)):
                    await self._connected.wait()

    async def _make(self) -> None:
        address = self.address
        options: dict[str, Any] = {}
        if address.user:
            password = await self._executor.run(partial(read_password, address))
            options["auth_data"] = [("digest", f"{address.user}:{password}")]
            options["default_acl"] = [make_digest_acl(address.user, password, all=True)]
        if address.ca:
            options |= {"use_ssl": True, "verify_certs": True, "check_hostname": True}
            options |= {"ca": address.ca, "certfile": address.cert or None}
            options["keyfile"] = address.key or None
        handler = _Handler(self._attempt_s)
        client = KazooClient(
            hosts=self._hosts,
            timeout=self._config.session_timeout_s,
            handler=handler,
            randomize_hosts=False,
            read_only=False,
            connection_retry={
                "max_tries": -1,
                "delay": 0.05,
                "max_delay": 0.5,
                "max_jitter": 0.1,
                "ignore_expire": True,
            },
            logger=_kazoo_log,
            **options,
        )

        def on_state(state: str) -> None:
            if client.client_state == KeeperState.AUTH_FAILED:
                handler.login_refused = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._on_state, client, state)

        client.add_listener(on_state)
        self._client, self._handler = client, handler
        try:
            await self._executor.run(client.start_async)
        except Exception:
            await self._discard()
            raise

    def _on_state(self, client: KazooClient, state: str) -> None:
        if client is not self._client:
            return
        if state == KazooState.CONNECTED:
            self._connected.set()
            _log.info("connected to %s", self.address)
        else:
            self._connected.clear()
            if not self.closing.is_set():
                _log.warning("the connection to %s was lost: connecting again", self.address)

    async def _discard(self) -> None:
        client, handler = self._client, self._handler
        self._client = self._handler = None
        self._connected.clear()
        if client is None or handler is None:
            return
        stopping = asyncio.ensure_future(self._executor.run(partial(_stop, client)))
        done, _ = await asyncio.wait([stopping], timeout=_STOP_S)
        if not done:
            handler.drop(handler.socket_now)
        await stopping

    async def _answer(self, result: Any) -> Any:
        """Waits for a result of kazoo."""
        loop = self._loop
        future: asyncio.Future[Any] = loop.create_future()

        def settle(result: Any) -> None:
            if future.done():
                return
            if result.exception is not None:
                future.set_exception(result.exception)
            else:
                future.set_result(result.value)

        def on_result(result: Any) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result)

        result.rawlink(on_result)
        return await future


def _stop(client: KazooClient) -> None:
    try:
        client.stop()
        client.close()
    except Exception as error:  # noqa: BLE001 -- nothing depends on how it ends
        _log.warning("could not end the connection to ZooKeeper cleanly: %r", error)
