"""The handshake of one connection: peers that misbehave, and owners that lose interest."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Literal, TypeVar

import pytest

from penstock.net.tls_handshake import Secured, TlsHandshake
from penstock.testing.slowness import patient

from .test_tls import ALICE, NOW_MS, STRANGER, Pki, broker
from .tls_rig import LOOPS, until

T = TypeVar("T")
ALERT = bytes([0x15, 3, 3, 0, 2, 2, 40])
"""The peer has failed to negotiate."""


class CountedSteps:
    """An executor that works at once, or when the test says so."""

    def __init__(self) -> None:
        self.steps = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def run(self, work: Callable[[], T]) -> T:
        self.steps += 1
        await self.gate.wait()
        return work()


class CountedTurns(asyncio.Semaphore):
    """Turns that count how often one was asked for."""

    asked = 0

    async def acquire(self) -> Literal[True]:
        self.asked += 1
        return await super().acquire()


class Peers:
    """The side of the server on one end of a socket, and a client in memory on the other."""

    def __init__(self, **settings: str) -> None:
        self.pki = Pki()
        self.contexts = self.pki.contexts(is_inter_broker=False, **settings)
        self.sock, self.there = socket.socketpair()
        self.sock.setblocking(False)
        self.there.setblocking(False)
        self.executor = CountedSteps()
        self._task: asyncio.Task[Secured] | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = self._client()

    def _client(self, **more: Any) -> ssl.SSLObject:
        context = self.pki.client(**more)
        return context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    def use(self, **more: Any) -> None:
        """Sets how the client connects."""
        self.client = self._client(**more)

    def begin(self, turns: asyncio.Semaphore | None = None) -> asyncio.Task[Secured]:
        handshake = TlsHandshake(self.sock, self.contexts.server)
        self._task = asyncio.create_task(handshake.run(self.executor, turns))
        return self._task

    def flight(self) -> bytes:
        """Returns what the client sends next."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.client.do_handshake()
        return self._outgoing.read()

    async def send(self, data: bytes, piece_bytes: int = 1 << 20) -> None:
        loop = asyncio.get_running_loop()
        for begin in range(0, len(data), piece_bytes):
            await loop.sock_sendall(self.there, data[begin : begin + piece_bytes])
            if piece_bytes < len(data):
                await asyncio.sleep(0)

    async def receive(self) -> int:
        """Passes what the server sent to the client."""
        data = await asyncio.get_running_loop().sock_recv(self.there, 1 << 16)
        self._incoming.write(data)
        return len(data)

    def records(self, *parts: bytes) -> bytes:
        for part in parts:
            self.client.write(part)
        return self._outgoing.read()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self.sock.close()
        self.there.close()


def with_peers(
    **settings: str,
) -> Callable[[Callable[[Peers], Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Runs the test on each kind of event loop with a deadline."""

    def decorate(test: Callable[[Peers], Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @wraps(test)
        def run(loop_kind: str) -> None:
            async def main() -> None:
                peers = Peers(**settings)
                try:
                    async with asyncio.timeout(patient(60)):
                        await test(peers)
                finally:
                    await peers.close()

            with asyncio.Runner(loop_factory=LOOPS[loop_kind]) as runner:
                runner.run(main())

        del run.__wrapped__  # otherwise pytest would look for the arguments of the test itself
        marked: Callable[..., None] = pytest.mark.parametrize("loop_kind", LOOPS)(run)
        return marked

    return decorate


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize(("piece_bytes", "steps"), [(1, 4), (7, 4), (1 << 20, 2)])
def test_messages_that_come_byte_by_byte_take_few_steps(
    version: str, piece_bytes: int, steps: int
) -> None:
    """Each record is a step at most. The last flight of TLS 1.2 has three."""

    @with_peers()
    async def run(peers: Peers) -> None:
        peers.use(ssl_enabled_protocols=version)
        begun = peers.begin()
        await peers.send(peers.flight(), piece_bytes)
        await peers.receive()
        await peers.send(peers.flight(), piece_bytes)
        secured = await begun
        assert secured.tls.version() == version
        assert secured.early == b""
        assert peers.executor.steps <= steps

    for kind in LOOPS:
        run(kind)


@with_peers()
async def test_all_that_comes_with_the_end_of_the_handshake_is_kept(peers: Peers) -> None:
    begun = peers.begin()
    await peers.send(peers.flight())
    await peers.receive()
    last = peers.flight()
    records = peers.records(b"a" * 3000, b"b", b"c" * 2000)
    await peers.send(last + records[:-1])
    secured = await begun
    assert secured.early == records[:-1]


@with_peers()
async def test_a_peer_that_sends_an_alert_ends_the_handshake(peers: Peers) -> None:
    begun = peers.begin()
    await peers.send(peers.flight())
    await peers.receive()
    await peers.send(ALERT)
    with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
        await begun


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x80\x2e\x01\x03\x01", b"\0\0\0", b"\xff" * 70_000]
)
def test_what_is_not_tls_fails_at_once(sent: bytes) -> None:
    @with_peers()
    async def run(peers: Peers) -> None:
        begun = peers.begin()
        await peers.send(sent)
        with pytest.raises(OSError, match=r"SSL|is not using TLS"):
            await begun
        assert peers.executor.steps == 1

    for kind in LOOPS:
        run(kind)


@with_peers()
async def test_garbage_inside_of_records_fails(peers: Peers) -> None:
    begun = peers.begin()
    await peers.send(b"\x16\x03\x01\x00\x05hello" * 1000)
    with pytest.raises(ssl.SSLError):
        await begun
    assert peers.executor.steps == 1


@with_peers()
async def test_a_peer_that_closes_in_the_middle_ends_the_handshake(peers: Peers) -> None:
    begun = peers.begin()
    await peers.send(peers.flight()[:100])
    peers.there.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionResetError):
        await begun
    assert peers.executor.steps == 0


@with_peers(ssl_client_auth="required")
async def test_a_client_learns_why_it_is_refused(peers: Peers) -> None:
    peers.use(issued=STRANGER, ssl_enabled_protocols="TLSv1.2")
    begun = peers.begin()
    await peers.send(peers.flight())
    await peers.receive()
    await peers.send(peers.flight())
    with pytest.raises(ssl.SSLCertVerificationError):
        await begun
    await peers.receive()
    with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
        peers.client.do_handshake()


@with_peers()
async def test_a_socket_may_be_closed_while_the_handshake_is_computed(peers: Peers) -> None:
    peers.executor.gate.clear()
    begun = peers.begin()
    await peers.send(peers.flight())
    await until(lambda: peers.executor.steps == 1)
    peers.sock.close()
    peers.executor.gate.set()
    with pytest.raises((OSError, ValueError)):
        await begun


@with_peers()
async def test_a_handshake_may_be_cancelled_while_it_is_computed(peers: Peers) -> None:
    peers.executor.gate.clear()
    begun = peers.begin()
    await peers.send(peers.flight())
    await until(lambda: peers.executor.steps == 1)
    begun.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begun
    peers.executor.gate.set()
    peers.sock.close()
    assert await peers.receive() == 0


@with_peers(ssl_client_auth="required")
async def test_a_handshake_keeps_the_certificate_with_which_it_began(peers: Peers) -> None:
    peers.use(issued=ALICE)
    begun = peers.begin()
    await peers.send(peers.flight())
    await peers.receive()
    peers.pki.put("server", broker())
    assert peers.contexts.reload(NOW_MS)
    await peers.send(peers.flight())
    secured = await begun
    assert secured.context is not peers.contexts.server()
    assert secured.tls.getpeercert(binary_form=True)


@with_peers()
async def test_a_handshake_has_a_turn_only_while_it_is_processed(peers: Peers) -> None:
    turns = asyncio.Semaphore(1)
    peers.executor.gate.clear()
    begun = peers.begin(turns)
    hello = peers.flight()
    await peers.send(hello[:7], 1)
    assert not turns.locked(), "the message is not complete"
    await peers.send(hello[7:])
    await until(turns.locked)
    assert peers.executor.steps == 1
    peers.executor.gate.set()
    await peers.receive()
    await until(lambda: not turns.locked())  # it waits for the client
    await peers.send(peers.flight())
    await begun
    assert not turns.locked()


@with_peers()
async def test_a_handshake_waits_for_its_turn(peers: Peers) -> None:
    turns = CountedTurns(1)
    await turns.acquire()
    begun = peers.begin(turns)
    await peers.send(peers.flight())
    await until(lambda: turns.asked == 2)
    assert peers.executor.steps == 0
    turns.release()
    await peers.receive()
    await peers.send(peers.flight())
    assert (await begun).early == b""


@with_peers()
async def test_a_handshake_that_ends_gives_its_turn_back(peers: Peers) -> None:
    turns = asyncio.Semaphore(1)
    peers.executor.gate.clear()
    begun = peers.begin(turns)
    await peers.send(peers.flight())
    await until(turns.locked)
    begun.cancel()
    await asyncio.wait([begun])
    assert not turns.locked()


@with_peers()
async def test_a_refused_handshake_gives_its_turn_back(peers: Peers) -> None:
    turns = asyncio.Semaphore(1)
    begun = peers.begin(turns)
    await peers.send(ALERT)
    with pytest.raises(OSError):
        await begun
    assert not turns.locked()
