"""The real network, on whichever event loop is running.

A receiver is passed directly to the loop, and the loop's transport to the receiver: there is no
layer between a connection and uvloop.
"""

from __future__ import annotations

import asyncio
import socket
from asyncio.trsock import TransportSocket
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
        await close_server(self._server)


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
        try:
            for sock in server.sockets:
                tune(sock)  # accepted connections inherit the options
        except BaseException:
            server.close()
            raise
        return SocketListener(server)

    async def connect(
        self, host: str, port: int, receiver: Callable[[], Receiver], timeout_s: float
    ) -> Transport:
        """Connects. Raises OSError, which includes TimeoutError."""
        async with asyncio.timeout(timeout_s):
            transport, _ = await asyncio.get_running_loop().create_connection(
                cast(Callable[[], asyncio.Protocol], receiver), host, port
            )
        try:
            tune(transport.get_extra_info("socket"))
        except BaseException:
            transport.abort()
            raise
        return cast(Transport, transport)


async def close_server(server: asyncio.Server) -> None:
    """Stops listening. When this returns, the receiver of every accepted connection was called, and
    the connections that the receivers refused are closed.

    asyncio takes a step of the loop from accepting a connection to creating its transport, and
    cannot create it for a closed server. The connection would stay open, and its peer would wait,
    until the garbage collector finds the socket. So this stops accepting before it closes the
    server. uvloop takes no such step, and ignores `remove_reader` here.
    """
    loop = server.get_loop()
    for sock in server.sockets:
        loop.remove_reader(sock.fileno())
    await asyncio.sleep(0)  # transports are created
    server.close()
    await asyncio.sleep(0)  # receivers are called
    await asyncio.sleep(0)  # refused connections are closed


def tune(sock: TransportSocket | socket.socket) -> None:
    """Sends small answers without delay, and detects peers that vanished without closing.

    Both loops set TCP_NODELAY themselves today, but neither guarantees it. Raises OSError if the
    process has no file descriptor left.
    """
    # Use a duplicate: uvloop returns only a socket-like object.
    with socket.fromfd(sock.fileno(), sock.family, sock.type) as duplicate:
        duplicate.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
