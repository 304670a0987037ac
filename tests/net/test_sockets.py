"""The server on real sockets, on uvloop and on asyncio's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import socket
import struct
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest
import uvloop

from penstock.net.config import ServerConfig
from penstock.net.connection import Connection
from penstock.net.server import Server
from penstock.net.session import Peer
from penstock.net.sockets import SocketNetwork
from penstock.runtime import SystemClock
from penstock.testing.slowness import patient

from .fakes import Script, framed

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}
LIMIT_S = 100.0


def on_both_loops(test: Callable[[Live], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs the test on each kind of event loop with a deadline. `Live` starts its servers and
    clients.
    """

    @wraps(test)
    def run(loop_kind: str) -> None:
        async def main() -> None:
            live = Live()
            try:
                async with asyncio.timeout(patient(LIMIT_S)):
                    await test(live)
            finally:
                await live.stop()

        with asyncio.Runner(loop_factory=LOOPS[loop_kind]) as runner:
            runner.run(main())

    del run.__wrapped__  # otherwise pytest would look for the arguments of the test itself
    marked: Callable[..., None] = pytest.mark.parametrize("loop_kind", LOOPS)(run)
    return marked


class Live:
    """The servers and clients of one test."""

    def __init__(self) -> None:
        self.sessions: list[Script] = []
        self.script: Callable[[Peer], Script] = Script
        self._servers: list[Server] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def server(self, **limits: Any) -> Server:
        limits = {"host": "127.0.0.1", "port": 0, **limits}
        config = ServerConfig(**limits)
        server = Server(SocketNetwork(), SystemClock(), config, self._session)
        await server.start()
        self._servers.append(server)
        return server

    def _session(self, peer: Peer) -> Script:
        self.sessions.append(self.script(peer))
        return self.sessions[-1]

    async def client(self, server: Server, **options: Any) -> Client:
        reader, writer = await asyncio.open_connection(*server.address, **options)
        self._writers.append(writer)
        return Client(reader, writer)

    async def stop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        for server in self._servers:
            await server.stop(timeout_s=0)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> bytes:
        size = struct.unpack(">i", await self.reader.readexactly(4))[0]
        return await self.reader.readexactly(size)

    async def ended(self) -> bool:
        """Waits for the server to hang up. Returns whether it closed the connection without a
        reset.
        """
        try:
            return await self.reader.read(1) == b""
        except ConnectionResetError:
            return False


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0)


@on_both_loops
async def test_pipelined_requests_are_answered_in_order(live: Live) -> None:
    """The responses become ready in reverse order."""
    client = await live.client(await live.server())
    names = [b"f%d" % number for number in range(20)]
    client.writer.write(framed(*names))
    await until(lambda: bool(live.sessions) and len(live.sessions[0].futures) == 20)
    for name in reversed(names):
        live.sessions[0].finish(name)
        await asyncio.sleep(0)
    assert [await client.answer() for _ in names] == names


@on_both_loops
async def test_requests_may_arrive_one_byte_at_a_time(live: Live) -> None:
    client = await live.client(await live.server())
    for byte in framed(b"e1", b"e-two", b"e3"):
        client.writer.write(bytes([byte]))
        await client.writer.drain()
        await asyncio.sleep(0)
    assert [await client.answer() for _ in range(3)] == [b"e1", b"e-two", b"e3"]


@on_both_loops
async def test_large_requests_and_responses_arrive_complete(live: Live) -> None:
    """Requests larger than one read and responses larger than one write."""
    client = await live.client(await live.server())
    body = b"e" + bytes(range(256)) * 12_000
    client.writer.write(framed(body, b"e2", body))
    assert await client.answer() == body
    assert await client.answer() == b"e2"
    assert await client.answer() == body


@on_both_loops
async def test_a_slow_reader_costs_a_bounded_amount_of_memory(live: Live) -> None:
    """It asks for 400 MB and reads nothing: few requests are served until it reads."""
    server = await live.server(write_buffer_bytes=100_000)
    client = await live.client(server, limit=1 << 16)
    other = await live.client(server)
    client.writer.write(framed(*[b"b1000000"] * 400))
    await until(lambda: len(live.sessions[0].frames) >= 1)
    other.writer.write(framed(b"e1"))
    assert await other.answer() == b"e1"
    served = len(live.sessions[0].frames)
    assert served < 50
    for _ in range(60):
        assert len(await client.answer()) == 1_000_000
    assert served < len(live.sessions[0].frames) < 110


@on_both_loops
async def test_a_huge_length_closes_the_connection(live: Live) -> None:
    """The response that was due is sent first, and the server goes on."""
    server = await live.server()
    client = await live.client(server)
    client.writer.write(framed(b"e1") + struct.pack(">i", 0x7FFFFFFF))
    assert await client.answer() == b"e1"
    assert await client.ended()
    other = await live.client(server)
    other.writer.write(framed(b"e1"))
    assert await other.answer() == b"e1"


@on_both_loops
async def test_a_half_closed_peer_gets_its_responses(live: Live) -> None:
    """The peer sends, shuts down its sending half and reads. The server serves everything, then
    hangs up.
    """
    client = await live.client(await live.server())
    client.writer.write(framed(b"e1", b"f2", b"n3"))
    client.writer.write_eof()
    assert await client.answer() == b"e1"
    await until(lambda: len(live.sessions[0].frames) == 3)
    live.sessions[0].finish(b"f2")
    assert await client.answer() == b"f2"
    assert await client.ended()
    assert live.sessions[0].closed == 1


@on_both_loops
async def test_a_silent_peer_is_dropped_after_the_idle_timeout(live: Live) -> None:
    """No data and no FIN arrives, so only the server's timer can find it. Its time is so long that
    it does not end before the first request arrives.
    """
    server = await live.server(tick_s=0.01, idle_timeout_s=patient(1.0))
    client = await live.client(server)
    client.writer.write(framed(b"e1"))
    assert await client.answer() == b"e1"
    await client.ended()
    await until(lambda: server.counters.connections == 0)
    assert server.counters.connections_dropped == 1


@on_both_loops
async def test_a_reset_connection_is_forgotten(live: Live) -> None:
    """A peer that resets with requests pending leaves nothing behind."""
    server = await live.server()
    client = await live.client(server)
    client.writer.write(framed(b"f1") + framed(b"e2")[:3])
    await until(lambda: bool(live.sessions) and live.sessions[0].frames == [b"f1"])
    sock = client.writer.get_extra_info("socket")
    with socket.fromfd(sock.fileno(), sock.family, sock.type) as duplicate:
        linger = struct.pack("ii", 1, 0)
        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    client.writer.transport.abort()
    await until(lambda: server.counters.connections == 0)
    assert live.sessions[0].closed == 1
    assert server.budget.used == 0
    live.sessions[0].finish(b"f1")


@on_both_loops
async def test_connections_up_to_the_limit_are_served_and_more_are_closed(live: Live) -> None:
    """Two hundred connections at once, each with its own requests."""
    server = await live.server(connections_max=200)
    clients = [await live.client(server) for _ in range(200)]
    for number, client in enumerate(clients):
        client.writer.write(framed(b"e%d" % number, b"b100"))
    for number, client in enumerate(clients):
        assert await client.answer() == b"e%d" % number
        assert await client.answer() == bytes(100)
    excess = await live.client(server)
    await excess.ended()
    assert server.counters.connections_rejected == 1
    assert server.counters.connections == 200


@on_both_loops
async def test_stop_sends_a_pending_response_and_closes_idle_connections(live: Live) -> None:
    """New connections are refused meanwhile."""
    server = await live.server()
    idle = await live.client(server)
    busy = await live.client(server)
    busy.writer.write(framed(b"f1"))
    await until(lambda: len(live.sessions) == 2 and bool(live.sessions[1].futures))
    address = server.address
    stopping = asyncio.ensure_future(server.stop(timeout_s=LIMIT_S))
    assert await idle.ended()
    with pytest.raises(ConnectionError):
        await asyncio.open_connection(*address)
    live.sessions[1].finish(b"f1")
    assert await busy.answer() == b"f1"
    assert await busy.ended()
    await stopping
    assert server.counters.connections == 0


@on_both_loops
async def test_stop_closes_a_connection_that_was_accepted_just_before(live: Live) -> None:
    """The loop takes several steps from accepting a connection to calling its receiver. In
    whichever step the server stops, the peer sees the end of the connection.
    """
    gc.disable()  # it would close a forgotten socket
    try:
        for steps in range(8):
            server = await live.server()
            with socket.create_connection(server.address, timeout=LIMIT_S) as peer:
                for _ in range(steps):
                    await asyncio.sleep(0)
                await server.stop(timeout_s=LIMIT_S)
                with contextlib.suppress(ConnectionResetError):
                    assert peer.recv(1) == b"", f"{steps} steps"
    finally:
        gc.enable()


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@on_both_loops
async def test_a_session_knows_the_address_of_its_ipv4_or_ipv6_peer(live: Live) -> None:
    for host in ["127.0.0.1", "::1"] if has_ipv6() else ["127.0.0.1"]:
        client = await live.client(await live.server(host=host))
        client.writer.write(framed(b"e1"))
        assert await client.answer() == b"e1"
        own = client.writer.get_extra_info("sockname")
        peer = live.sessions[-1].peer
        assert (peer.host, peer.port) == own[:2]


class Listening:
    """A minimal receiver, without a base class of asyncio."""

    def __init__(self) -> None:
        self.received = b""
        self.lost = False

    def connection_made(self, transport: object) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


@on_both_loops
async def test_the_network_connects_with_nodelay_and_fails_with_oserror(live: Live) -> None:
    server = await live.server()
    receiver = Listening()
    network = SocketNetwork()
    transport = await network.connect(*server.address, lambda: receiver, timeout_s=5)
    sock = transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    transport.write(framed(b"e1"))
    await until(lambda: receiver.received == framed(b"e1"))
    transport.close()
    await until(lambda: receiver.lost)
    await server.stop(timeout_s=1)
    with pytest.raises(OSError, match=r"."):
        await network.connect("127.0.0.1", 1, lambda: receiver, timeout_s=5)


@on_both_loops
async def test_a_connection_without_a_file_descriptor_for_its_options_is_closed(live: Live) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    server = await live.server()
    receiver = Listening()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "fromfd", fail)
        with pytest.raises(OSError, match="Too many open files"):
            await SocketNetwork().connect(*server.address, lambda: receiver, timeout_s=LIMIT_S)
        await until(lambda: receiver.lost)
        with pytest.raises(OSError, match="Too many open files"):
            await SocketNetwork().listen("127.0.0.1", 0, Listening)


@on_both_loops
async def test_a_closed_connection_is_forgotten_at_once(live: Live) -> None:
    """It holds the data of its last request, so it must not wait for the cyclic garbage
    collector.
    """

    server = await live.server()
    gc.collect()
    gc.disable()
    try:
        client = await live.client(server)
        client.writer.write(framed(b"e1") + struct.pack(">i", 50_000_000) + bytes(1_000_000))
        assert await client.answer() == b"e1"
        (connection,) = server._connections
        number = id(connection)
        assert type(connection) is Connection
        del connection
        client.writer.transport.abort()
        await until(lambda: not server.counters.connections)
        live.sessions.clear()

        def is_kept() -> bool:
            return any(type(each) is Connection and id(each) == number for each in gc.get_objects())

        await until(lambda: not is_kept())
    finally:
        gc.enable()
