"""Many connections, or many addresses, that try to take all memory or all handshakes."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pytest

from penstock.net.tls import CONTEXT_USES_MAX, peer_certificate
from penstock.net.tls_gate import GRACE_MIN_S, TURNS, HandshakeLimits, TlsGate
from penstock.ports import Executor, Listener
from penstock.runtime import SystemClock
from penstock.testing.slowness import patient

from .test_tls import ALICE, NOW_MS, HasTls, Pki, shake_hands
from .test_tls_gate import Quiet
from .tls_rig import Live, ended, on_both_loops, until

T = TypeVar("T")
RECORD = b"\x16\x03\x01\x00\x01\x01"
"""A whole record, which contains the first byte of a handshake."""


class HandClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return NOW_MS

    async def sleep(self, seconds: float) -> None: ...


def _one_byte_each(address: tuple[str, int], count: int) -> list[socket.socket]:
    """Connects from `count` addresses. Each connection sends one byte and no more."""
    sockets = []
    for number in range(count):
        sock = socket.create_connection(address, source_address=(f"127.0.1.{number + 1}", 0))
        sock.sendall(b"\x16")
        sock.setblocking(False)
        sockets.append(sock)
    return sockets


@on_both_loops
async def test_the_more_connections_wait_the_sooner_handshakes_make_room(live: Live) -> None:
    await live.start()
    clock = HandClock()
    limits = HandshakeLimits(total=4, grace_s=1000.0, timeout_s=2000.0)
    gate = TlsGate(clock, live.contexts.server, live.contexts.client, live.threads, limits)
    listener = await gate.listen("127.0.0.1", 0, Quiet)
    sockets = _one_byte_each(listener.address(), 44)
    try:
        await until(lambda: gate.counters.waiting == 40)
        clock.now = 101.0  # 40 wait for 4 places: the grace is a tenth
        async with asyncio.timeout(patient(30.0)):
            await until(lambda: gate.counters.evicted == 4 and gate.counters.waiting == 36)
        assert gate.counters.pending == 4
    finally:
        await listener.close()
    for sock in sockets:
        assert await ended(sock)
        sock.close()


@pytest.mark.parametrize(
    ("waiting", "places", "grace_s"),
    [
        (1, 128, 2.0),
        (128, 128, 2.0),
        (256, 128, 1.0),
        (640, 128, 0.4),
        (2048, 128, GRACE_MIN_S),
        (256, 64, 0.5),
        (10**9, 1, GRACE_MIN_S),
    ],
)
def test_the_grace_gets_shorter_as_more_connections_wait(
    waiting: int, places: int, grace_s: float
) -> None:
    assert HandshakeLimits().grace(places, waiting) == grace_s


def test_a_grace_that_is_set_shorter_than_the_shortest_stays() -> None:
    assert HandshakeLimits(grace_s=0.01).grace(1, 1000) == 0.01


@on_both_loops
async def test_a_connection_that_gets_no_context_is_closed(live: Live) -> None:
    await live.start()
    kept: list[BaseException] = []  # so that the garbage collector does not close the socket

    def no_context() -> ssl.SSLContext:
        kept.append(RuntimeError("no context"))
        raise kept[-1]

    gate = TlsGate(SystemClock(), no_context, live.contexts.client, live.threads)
    listener = await gate.listen("127.0.0.1", 0, Quiet)
    with socket.create_connection(listener.address()) as sock:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(sock, RECORD)
        await until(lambda: gate.counters.failed == 1)
        async with asyncio.timeout(patient(30.0)):
            assert await ended(sock)
    await listener.close()


class HeldThreads:
    """Threads that work only after the test lets them."""

    def __init__(self, threads: Executor) -> None:
        self.steps = 0
        self.open = self.open_max = 0
        self.go_on = threading.Event()
        self._threads = threads

    async def run(self, work: Callable[[], T]) -> T:
        def wait_and_work() -> T:
            assert self.go_on.wait(patient(60.0))
            return work()

        self.steps += 1
        self.open += 1
        self.open_max = max(self.open, self.open_max)
        try:
            return await self._threads.run(wait_and_work)
        finally:
            self.open -= 1


def _connecting(
    live: Live, listener: Listener
) -> asyncio.Task[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    return asyncio.create_task(
        asyncio.open_connection(
            *listener.address(), ssl=live.pki.client(), server_hostname="localhost"
        )
    )


@on_both_loops
async def test_few_handshakes_of_a_burst_are_processed_at_a_time(live: Live) -> None:
    await live.start()
    threads = HeldThreads(live.threads)
    gate = TlsGate(SystemClock(), live.contexts.server, live.contexts.client, threads)
    listener = await gate.listen("127.0.0.1", 0, Quiet)
    count = 4 * TURNS
    connecting = [_connecting(live, listener) for _ in range(count)]
    await until(lambda: threads.steps == TURNS and gate.counters.pending == count)
    threads.go_on.set()
    for each in connecting:
        live.own((await each)[1])
    await until(lambda: gate.counters.completed == count)
    assert threads.open_max == TURNS
    await listener.close()


@on_both_loops
async def test_a_listener_closes_while_a_thread_computes_a_handshake(live: Live) -> None:
    await live.start()
    threads = HeldThreads(live.threads)
    gate = TlsGate(SystemClock(), live.contexts.server, live.contexts.client, threads)
    listener = await gate.listen("127.0.0.1", 0, Quiet)
    connecting = [_connecting(live, listener) for _ in range(TURNS + 1)]
    await until(lambda: threads.steps == TURNS and gate.counters.pending == TURNS + 1)
    closing = asyncio.create_task(listener.close())
    await asyncio.sleep(0)
    threads.go_on.set()
    await closing
    for each in connecting:
        with pytest.raises(OSError, match=r".*"):
            await each
    counters = gate.counters
    assert (counters.pending, counters.completed) == (0, 0)


def test_a_context_keeps_few_sessions() -> None:
    """OpenSSL keeps the session of each client of TLS 1.2 with all certificates that it sent."""
    pki = Pki()
    contexts = pki.contexts(ssl_client_auth="required")
    client = pki.client(ALICE, ssl_enabled_protocols="TLSv1.2")
    session, used = None, dict[ssl.SSLContext, None]()
    for _ in range(3 * CONTEXT_USES_MAX):
        server = contexts.server()
        there, here = shake_hands(server, client, session)
        assert there.session_reused == (session is not None and server in used)
        assert peer_certificate(HasTls(there), NOW_MS)
        used[server] = None
        session = here.session
        for side in (here, there, here):  # otherwise OpenSSL forgets the session
            with suppress(ssl.SSLWantReadError):
                side.unwrap()
    assert len(used) >= 3
    assert contexts.server().session_stats()["number"] <= CONTEXT_USES_MAX


@pytest.mark.parametrize(
    ("client_auth", "protocols"), [("required", "TLSv1.3"), ("none", "TLSv1.2")]
)
def test_contexts_that_keep_no_certificates_of_clients_are_not_replaced(
    client_auth: str, protocols: str
) -> None:
    contexts = Pki().contexts(ssl_client_auth=client_auth, ssl_enabled_protocols=protocols)
    assert len({contexts.server() for _ in range(3 * CONTEXT_USES_MAX)}) == 1
