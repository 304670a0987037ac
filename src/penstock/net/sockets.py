"""The real network, on whichever event loop is running.

A receiver is passed directly to the loop, and the loop's transport to the receiver: there is no
layer between a connection and uvloop.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, cast

from penstock.ports import Listener, Receiver, Transport

BACKLOG: Final = 1024


class SocketListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    def address(self) -> tuple[str, int]:
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def close(self) -> None:
        """Accepts no more connections. Open connections belong to their receivers and stay open."""
        self._server.close()


class SocketNetwork:
    """Implements `ports.Network` with asyncio."""

    async def listen(self, host: str, port: int, receiver: Callable[[], Receiver]) -> Listener:
        """Starts listening. An empty host listens on every address of the machine, IPv4 and
        IPv6."""

        def accepted() -> asyncio.BaseProtocol:
            return cast(asyncio.BaseProtocol, receiver())

        server = await asyncio.get_running_loop().create_server(
            cast(Callable[[], asyncio.Protocol], accepted),
            host or None,
            port,
            backlog=BACKLOG,
            reuse_address=True,
        )
        for sock in server.sockets:
            # Accepted connections inherit the options. Use a duplicate: uvloop returns only a
            # socket-like object.
            with socket.fromfd(sock.fileno(), sock.family, sock.type) as duplicate:
                tune(duplicate)
        return SocketListener(server)

    async def connect(
        self, host: str, port: int, receiver: Callable[[], Receiver], timeout_s: float
    ) -> Transport:
        """Connects. Raises OSError, which includes TimeoutError."""
        async with asyncio.timeout(timeout_s):
            transport, _ = await asyncio.get_running_loop().create_connection(
                cast(Callable[[], asyncio.Protocol], receiver), host, port
            )
        sock = transport.get_extra_info("socket")
        with socket.fromfd(sock.fileno(), sock.family, sock.type) as duplicate:
            tune(duplicate)
        return cast(Transport, transport)


def tune(sock: socket.socket) -> None:
    """Sends small answers without delay, and detects peers that vanished without closing.

    Both loops set TCP_NODELAY themselves today, but neither guarantees it.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
