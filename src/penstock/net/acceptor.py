"""Accepts the connections of one listener, a few in each turn of the event loop.

`pace` is asked for each accepted connection, and says for how long no further one is accepted. The
connections that arrive meanwhile wait in the backlog of the socket, as in Kafka: they cost the
broker nothing, and their clients need not connect again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Final

from penstock.ports import Pace

BACKLOG: Final = 1024
ACCEPTS_MAX: Final = 16
"""How many connections are accepted in one turn. After a restart, thousands of clients connect, and
turns are long while others are served."""
ACCEPT_RETRY_S: Final = 0.5
"""How long to wait after an accept that failed, usually because no file descriptor is left."""


class Acceptor:
    """The sockets of one listener."""

    def __init__(
        self,
        sockets: list[socket.socket],
        on_accepted: Callable[[socket.socket, str], None],
        on_error: Callable[[OSError], None],
        pace: Pace | None = None,
        accepts_max: int = ACCEPTS_MAX,
    ) -> None:
        """`on_accepted` gets the socket, which it then owns, and the address of the client. At most
        `accepts_max` connections are accepted in one turn of the event loop."""
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._on_accepted = on_accepted
        self._on_error = on_error
        self._pace = pace
        self._accepts_max = accepts_max
        self._accepting = False
        self._timer: asyncio.TimerHandle | None = None
        self.address: tuple[str, int] = sockets[0].getsockname()[:2]
        self._accept_more()

    def close(self) -> None:
        """Accepts no more connections."""
        self._pause()
        if self._timer is not None:
            self._timer.cancel()
        for sock in self._sockets:
            sock.close()

    def _accept_more(self) -> None:
        self._accepting = True
        for sock in self._sockets:
            self._loop.add_reader(sock.fileno(), self._on_ready, sock)

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            for sock in self._sockets:
                self._loop.remove_reader(sock.fileno())

    def _pause_for(self, seconds: float) -> None:
        self._pause()
        self._timer = self._loop.call_later(seconds, self._accept_more)

    def _on_ready(self, sock: socket.socket) -> None:
        # Also another socket of the listener may pause it in this turn.
        for _ in range(self._accepts_max):
            if not self._accepting or not self._accept(sock):
                return

    def _accept(self, sock: socket.socket) -> bool:
        """Accepts a connection. Returns False if none can be accepted now."""
        try:
            accepted, peer = sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError as error:
            self._on_error(error)
            self._pause_for(ACCEPT_RETRY_S)
            return False
        accepted.setblocking(False)
        wait_s = 0.0 if self._pace is None else self._pace()
        if wait_s > 0:
            self._pause_for(wait_s)
        self._on_accepted(accepted, peer[0] if peer else "")
        return True


async def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Returns sockets that listen on every address of the host.

    An empty host is every address of the machine, IPv4 and IPv6. Raises OSError.
    """
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    with contextlib.ExitStack() as undo:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError:
                continue  # the system has no IPv6
            undo.callback(sock.close)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # With port 0, all addresses get the port that the first one got.
            chosen = sockets[0].getsockname()[1] if sockets else port
            sock.bind((address[0], chosen, *address[2:]))
            sock.listen(BACKLOG)
            sockets.append(sock)
        if not sockets:
            raise OSError(f"{host!r} has no address to listen on")
        undo.pop_all()
    return sockets
