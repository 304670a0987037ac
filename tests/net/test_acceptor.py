"""A listener that is over its rate accepts connections later, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.net.open_listener import OpenListener
from penstock.net.session import Peer
from penstock.net.sockets import SocketNetwork

from .fakes import Script, framed
from .test_sockets import Client, Live, on_both_loops, until


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
