"""A server with TLS on real sockets, and its clients, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest
import uvloop

from penstock.net.config import ServerConfig
from penstock.net.server import Server
from penstock.net.session import Peer
from penstock.net.tls_gate import DEFAULT_LIMITS, HandshakeLimits, TlsGate
from penstock.ports import Clock
from penstock.runtime import SystemClock, Threads
from penstock.security.certificates import Issued
from penstock.testing.slowness import patient

from .fakes import Script, framed
from .test_tls import Pki

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}
LIMIT_S = 60.0
BEGIN = b"\x16\x03\x01\x02\x00\x01"
"""The first bytes of a handshake."""


def on_both_loops(test: Callable[[Live], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs the test on each kind of event loop with a deadline."""

    @wraps(test)
    def run(loop_kind: str) -> None:
        async def main() -> None:
            with contextlib.ExitStack() as stack:
                live = Live(stack)
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
    """A server with TLS, and its clients."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.pki = Pki()
        self.sessions: list[Any] = []
        self.script: Callable[[Peer], Any] = Script
        self._stack = stack
        self.threads = Threads(1)
        stack.callback(self.threads.close)
        self._servers: list[Server] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def start(
        self,
        limits: HandshakeLimits = DEFAULT_LIMITS,
        client_auth: str = "none",
        clock: Clock | None = None,
    ) -> None:
        self.contexts = contexts = self.pki.contexts(ssl_client_auth=client_auth)
        self.gate = TlsGate(
            clock or SystemClock(), contexts.server, contexts.client, self.threads, limits
        )
        config = ServerConfig(host="127.0.0.1", port=0)
        self.server = Server(self.gate, SystemClock(), config, self._session)
        await self.server.start()
        self._servers.append(self.server)

    def _session(self, peer: Peer) -> Any:
        self.sessions.append(self.script(peer))
        return self.sessions[-1]

    async def client(self, issued: Issued | None = None, source: str = "127.0.0.1") -> Client:
        reader, writer = await asyncio.open_connection(
            *self.server.address,
            ssl=self.pki.client(issued),
            server_hostname="localhost",
            local_addr=(source, 0),
            ssl_shutdown_timeout=1,
        )
        self._writers.append(writer)
        return Client(reader, writer)

    def own(self, writer: asyncio.StreamWriter) -> None:
        """Closes the connection when the test ends."""
        self._writers.append(writer)

    async def half_open(self, count: int, source: str = "127.0.0.1") -> list[socket.socket]:
        """Opens connections that never send their part of the handshake."""
        sockets: list[socket.socket] = []
        for _ in range(count):
            sock = self._stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.bind((source, 0))
            await asyncio.get_running_loop().sock_connect(sock, self.server.address)
            sockets.append(sock)
        return sockets

    async def stop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        for server in self._servers:
            await server.stop(timeout_s=0)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, body: bytes) -> bytes:
        self.writer.write(framed(body))
        size = struct.unpack(">i", await self.reader.readexactly(4))[0]
        return await self.reader.readexactly(size)

    def certificate(self) -> str:
        return str(self.writer.get_extra_info("peercert")["serialNumber"])


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0)


async def ended(sock: socket.socket) -> bool:
    """Waits until the server closes a connection. Data that it sent before is ignored."""
    with contextlib.suppress(ConnectionResetError):
        while await asyncio.get_running_loop().sock_recv(sock, 4096):
            pass
    return True
