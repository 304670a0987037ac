"""Connections wait for their turns on real sockets, plain and with TLS."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Protocol

from penstock.net.server import Server

from . import test_sockets, tls_rig
from .fakes import framed

CONNECTIONS = 12
REQUESTS = 20


class Client(Protocol):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def served_in_order(server: Server, connect: Callable[[str], Awaitable[Client]]) -> None:
    """Two tenants send requests, one read for each. Every read seems to take a millisecond."""
    turns = server.turns
    times = count()
    turns.now = lambda: next(times) / 1000
    turns.is_active = True
    sent = [b"e%d" % number for number in range(REQUESTS)]

    async def send(client: Client) -> list[bytes]:
        answers = []
        for body in sent:
            client.writer.write(framed(body))
            size = struct.unpack(">i", await client.reader.readexactly(4))[0]
            answers.append(await client.reader.readexactly(size))
        return answers

    clients = await asyncio.gather(
        *(connect(f"127.0.0.{1 + number % 2}") for number in range(CONNECTIONS))
    )
    answered = await asyncio.gather(*map(send, clients))
    assert answered == [sent] * CONNECTIONS
    assert turns.is_active
    assert turns.waits > CONNECTIONS
    # Connections that close while they wait: some have sent requests, some are new.
    for client in clients:
        client.writer.write(framed(*sent))
        client.writer.transport.abort()
    for client in await asyncio.gather(*(connect("127.0.0.1") for _ in range(CONNECTIONS))):
        client.writer.transport.abort()
    while turns.waiting or turns._closed or turns._share.tenants:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0)


@test_sockets.on_both_loops
async def test_connections_wait_and_are_served_in_order(live: test_sockets.Live) -> None:
    server = await live.server(tick_s=1000.0)
    await served_in_order(server, lambda source: live.client(server, local_addr=(source, 0)))


@tls_rig.on_both_loops
async def test_connections_with_tls_wait_and_are_served_in_order(live: tls_rig.Live) -> None:
    await live.start()
    assert live.server._timer is not None
    live.server._timer.cancel()  # a tick could end the sharing
    await served_in_order(live.server, lambda source: live.client(source=source))
