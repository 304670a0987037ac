"""The real network, on whichever event loop is running.

A receiver is passed directly to the loop, and the loop's transport to the receiver: there is no
layer between a connection and uvloop.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from asyncio.trsock import TransportSocket
from collections.abc import Callable
from typing import Final, cast

from penstock.net.acceptor import Acceptor, bound_sockets
from penstock.net.throttled_log import ThrottledLog
from penstock.ports import Listener, Pace, Receiver, Transport

_log: Final = logging.getLogger(__name__)


class SocketListener:
    """The sockets of one listener, and the connections whose transport is being created."""

    def __init__(
        self,
        sockets: list[socket.socket],
        receiver: Callable[[], Receiver],
        pace: Pace | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._receiver = cast(Callable[[], asyncio.Protocol], receiver)
        self._opening: set[asyncio.Task[None]] = set()
        self._log = ThrottledLog(_log)
        self._acceptor = Acceptor(sockets, self._on_accepted, self._on_error, pace)

    def address(self) -> tuple[str, int]:
        return self._acceptor.address

    async def close(self) -> None:
        """Accepts no more connections. Open connections belong to their receivers and stay open.

        When this returns, the receiver of every accepted connection was called, and the connections
        that the receivers refused are closed."""
        self._acceptor.close()
        await asyncio.gather(*self._opening, return_exceptions=True)
        await asyncio.sleep(0)  # refused connections are closed

    def _on_accepted(self, accepted: socket.socket, host: str) -> None:
        task = self._loop.create_task(self._open(accepted))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket) -> None:
        """Creates the transport, which owns the socket from then on."""
        try:
            await self._loop.connect_accepted_socket(self._receiver, accepted)
        except OSError as error:  # The client has disconnected, or no memory is left.
            self._on_error(error)

    def _on_error(self, error: OSError) -> None:
        self._log.warn(f"a connection could not be accepted: {error}", self._loop.time())


class SocketNetwork:
    """Implements `ports.Network` with asyncio."""

    async def listen(
        self, host: str, port: int, receiver: Callable[[], Receiver], pace: Pace | None = None
    ) -> Listener:
        """Starts listening. An empty host listens on every address of the machine, IPv4 and
        IPv6."""
        return SocketListener(await tuned_sockets(host, port), receiver, pace)

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


async def tuned_sockets(host: str, port: int) -> list[socket.socket]:
    """Returns sockets that listen on every address of the host. Accepted connections inherit their
    options. Raises OSError."""
    sockets = await bound_sockets(host, port)
    try:
        for sock in sockets:
            tune(sock)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


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
