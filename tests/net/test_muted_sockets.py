"""Muted connections on real sockets: a client that has disconnected is noticed."""

from __future__ import annotations

import asyncio
import socket
import struct

from penstock.net.server import Server
from penstock.testing.slowness import patient

from .fakes import framed
from .test_muting import Throttling
from .test_sockets import Client, Live, on_both_loops, until

RESET = struct.pack("ii", 1, 0)
"""With this option, closing a socket sends a reset."""


async def muted(live: Live, **limits: float) -> tuple[Server, Client]:
    """Returns a server, and a client that is muted for a long time. Its request was answered."""
    live.script = Throttling
    server = await live.server(**limits)
    client = await live.client(server)
    client.writer.write(framed(b"m1", b"e2"))
    assert await client.answer() == b"m1"
    assert server.counters.connections_muted == 1
    return server, client


@on_both_loops
async def test_a_muted_connection_whose_client_resets_it_is_dropped(live: Live) -> None:
    server, client = await muted(live, tick_s=0.01)
    connected = client.writer.get_extra_info("socket")
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.writer.transport.abort()
    await until(lambda: server.counters.connections == 0)
    assert server.counters.connections_muted == 0
    assert live.sessions[0].frames == [b"m1"]


@on_both_loops
async def test_a_muted_connection_whose_client_closes_it_is_dropped(live: Live) -> None:
    """After the time that a client without a quota has, too."""
    server, client = await muted(live, tick_s=0.01, eof_timeout_s=0.05)
    client.writer.close()
    await until(lambda: server.counters.connections == 0)
    assert server.counters.connections_muted == 0


@on_both_loops
async def test_a_muted_connection_that_stays_open_is_kept(live: Live) -> None:
    """However often it is checked, and whatever its client sends."""
    # A shorter time could end before the request arrives that mutes the connection.
    idle_s = patient(1.0)
    server, client = await muted(live, tick_s=0.001, eof_timeout_s=0.001, idle_timeout_s=idle_s)
    client.writer.write(framed(b"e3"))
    before = server.now
    await until(lambda: server.now > before + 2 * idle_s)
    assert server.counters.connections == 1
    assert not client.reader.at_eof()
    await asyncio.sleep(0)
    assert live.sessions[0].frames == [b"m1"]
