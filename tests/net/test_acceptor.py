"""A listener that is over its rate accepts connections later, on real sockets."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from penstock.net.acceptor import ACCEPTS_MAX, Acceptor
from penstock.net.open_listener import OpenListener
from penstock.net.session import Peer
from penstock.net.sockets import SocketNetwork

from .fakes import Script, framed
from .test_sockets import LOOPS, Client, Live, on_both_loops, until


class Gate:
    """A pace that lets `free` connections through, and then one for each `wait_s`."""

    def __init__(self, free: int, wait_s: float) -> None:
        self.free = free
        self.wait_s = wait_s
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return 0.0 if self.asked < self.free else self.wait_s


async def paced(live: Live, pace: Callable[[], float]) -> OpenListener:
    """Opens another listener of a server, with this pace."""
    server = await live.server()

    def session(peer: Peer) -> Script:
        live.sessions.append(Script(peer))
        return live.sessions[-1]

    opened = OpenListener("PACED", session, pace=pace)
    await server.open(opened, SocketNetwork(), "127.0.0.1", 0)
    return opened


async def connected(opened: OpenListener) -> Client:
    assert opened.listener is not None
    return Client(*await asyncio.open_connection(*opened.listener.address()))


@on_both_loops
async def test_connections_over_the_rate_wait_in_the_backlog_and_are_served_later(
    live: Live,
) -> None:
    """None is refused, and none has to connect again."""
    gate = Gate(free=2, wait_s=0.05)
    opened = await paced(live, gate)
    clients = [await connected(opened) for _ in range(6)]
    for client in clients:
        client.writer.write(framed(b"e1"))
    assert [await client.answer() for client in clients] == [b"e1"] * 6
    assert gate.asked == 6
    for client in clients:
        client.writer.close()


@on_both_loops
async def test_a_listener_that_waits_accepts_nothing(live: Live) -> None:
    gate = Gate(free=1, wait_s=1000.0)
    opened = await paced(live, gate)
    first, second = await connected(opened), await connected(opened)
    for client in (first, second):
        client.writer.write(framed(b"e1"))
    assert await first.answer() == b"e1"
    # Round trips on the first connection, in each of which the second one could be accepted.
    for _ in range(20):
        first.writer.write(framed(b"e2"))
        assert await first.answer() == b"e2"
    assert (gate.asked, opened.connections) == (1, 1)
    first.writer.close()
    second.writer.close()


@on_both_loops
async def test_a_listener_that_waits_can_be_closed(live: Live) -> None:
    opened = await paced(live, Gate(free=1, wait_s=1000.0))
    client = await connected(opened)
    await until(lambda: opened.connections == 1)
    assert opened.listener is not None
    await opened.listener.close()
    client.writer.close()


class NoDescriptors(socket.socket):
    """A socket that cannot accept connections for a while, because no file descriptor is left."""

    failures = 0

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def listening(failures: int = 0) -> NoDescriptors:
    sock = NoDescriptors()
    sock.setblocking(False)
    sock.bind(("127.0.0.1", 0))
    sock.listen(100)
    sock.failures = failures
    return sock


class Accepted:
    """What an acceptor has accepted, and its errors."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []
        self.errors: list[OSError] = []

    def start(self, sock: socket.socket, **options: Any) -> Acceptor:
        return Acceptor(
            [sock], lambda sock, host: self.sockets.append(sock), self.errors.append, **options
        )

    def close(self) -> None:
        for each in self.sockets:
            each.close()


@on_both_loops
async def test_a_listener_accepts_again_after_accepts_failed(live: Live) -> None:
    accepted = Accepted()
    sock = listening(failures=2)
    acceptor = accepted.start(sock)
    with socket.create_connection(acceptor.address):
        await until(lambda: bool(accepted.sockets))
    assert [each.errno for each in accepted.errors] == [errno.EMFILE] * 2
    acceptor.close()
    accepted.close()


@on_both_loops
async def test_a_listener_closes_its_socket_also_after_an_accept_failed(live: Live) -> None:
    accepted = Accepted()
    sock = listening(failures=1)
    acceptor = accepted.start(sock)
    with socket.create_connection(acceptor.address):
        await until(lambda: bool(accepted.errors))
        acceptor.close()
        assert sock.fileno() == -1
        # A timer that accepts again would use the closed socket.
        assert acceptor._timer is not None
        assert acceptor._timer.cancelled()
    assert not accepted.sockets


@pytest.mark.parametrize("accepts_max", [1, 3, ACCEPTS_MAX])
def test_a_few_connections_are_accepted_in_one_turn(accepts_max: int) -> None:
    @on_both_loops
    async def run(live: Live) -> None:
        accepted = Accepted()
        sock = listening()
        clients = [socket.create_connection(sock.getsockname()) for _ in range(3 * accepts_max)]
        acceptor = accepted.start(sock, accepts_max=accepts_max)
        sizes = [0]
        while sizes[-1] < len(clients):
            await asyncio.sleep(0)
            sizes.append(len(accepted.sockets))
        assert max(after - before for before, after in pairwise(sizes)) == accepts_max
        acceptor.close()
        accepted.close()
        for client in clients:
            client.close()

    for kind in LOOPS:
        run(kind)
