"""Muted connections: answers are sent, but nothing is read and no request begins (KIP-219)."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass

from penstock.net.connection import Connection
from penstock.net.session import Answer

from .fakes import MemoryTransport, Rig, Script, framed, in_loop, rig, settle

LONG_S = 3600.0


@dataclass
class Throttling(Script):
    """b"m..." is echoed, and mutes the connection for a long time; b"q..." for a short one."""

    def on_frame(self, frame: memoryview, borrowed: bool = False) -> Answer:
        kind = bytes(frame[:1])
        if kind in (b"m", b"q"):
            self.peer.mute(LONG_S if kind == b"m" else 0.01)
        return super().on_frame(frame, borrowed)


async def throttling(**limits: float) -> Rig:
    started = await rig(**limits)
    started.script = Throttling
    return started


def connections() -> int:
    """Returns how many connections are in memory."""
    gc.collect()
    return sum(isinstance(each, Connection) for each in gc.get_objects())


async def until_reading(transport: MemoryTransport) -> None:
    while not transport.is_reading():  # noqa: ASYNC110 - the fake transport has no event
        await asyncio.sleep(0.001)


@in_loop
async def test_a_throttled_request_is_answered_at_once_and_nothing_is_read_after_it() -> None:
    server = await throttling()
    transport, session = server.connect()
    transport.deliver(framed(b"m1"))
    assert transport.answers() == [b"m1"]
    assert not transport.is_reading()
    transport.deliver(framed(b"e2"))
    assert session.frames == [b"m1"]
    assert server.server.counters.connections_muted == 1


@in_loop
async def test_requests_that_were_read_already_wait_until_the_mute_ends() -> None:
    server = await throttling()
    transport, session = server.connect()
    transport.deliver(framed(b"e0", b"q1", b"e2", b"e3"))
    assert session.frames == [b"e0", b"q1"]
    assert transport.answers() == [b"e0", b"q1"]
    await until_reading(transport)
    await settle()
    assert transport.answers() == [b"e0", b"q1", b"e2", b"e3"]
    assert server.server.counters.connections_muted == 0
    assert server.server.budget.used == 0


@in_loop
async def test_an_answer_that_becomes_ready_during_the_mute_is_sent() -> None:
    transport, session = (await throttling()).connect()
    transport.deliver(framed(b"f1", b"m2", b"e3"))
    assert session.frames == [b"f1", b"m2"]
    session.finish(b"f1")
    await settle()
    assert transport.answers() == [b"f1", b"m2"]
    assert not transport.is_reading()


@in_loop
async def test_a_mute_from_outside_of_a_request_stops_reading() -> None:
    """The answer to a fetch is ready long after the request, and only then is it throttled."""
    transport, session = (await throttling()).connect()
    transport.deliver(framed(b"f1"))
    assert transport.is_reading()
    session.peer.mute(0.01)
    session.finish(b"f1")
    assert not transport.is_reading()
    await until_reading(transport)
    assert transport.answers() == [b"f1"]


@in_loop
async def test_the_longer_mute_counts() -> None:
    server = await throttling()
    transport, session = server.connect()
    session.peer.mute(LONG_S)
    session.peer.mute(0.001)
    await asyncio.sleep(0.01)
    assert not transport.is_reading()
    assert server.server.counters.connections_muted == 1
    other, its_session = server.connect()
    its_session.peer.mute(0.001)
    its_session.peer.mute(LONG_S)
    await asyncio.sleep(0.01)
    assert not other.is_reading()
    assert server.server.counters.connections_muted == 2


@in_loop
async def test_a_muted_connection_is_not_idle() -> None:
    server = await throttling(idle_timeout_s=10.0)
    muted, session = server.connect()
    idle, _ = server.connect()
    session.peer.mute(LONG_S)
    await server.ticks(11)
    assert idle.is_lost()
    assert not muted.is_lost()


@in_loop
async def test_nothing_of_a_muted_connection_remains_after_it_is_lost() -> None:
    server = await throttling()
    transport, session = server.connect()
    transport.deliver(framed(b"m1", b"e2"))
    assert server.server.counters.connections_muted == 1
    before = connections()
    transport.lose(ConnectionResetError())
    assert server.server.counters.connections_muted == 0
    assert server.server.budget.used == 0
    session.peer.mute(LONG_S)
    assert server.server.counters.connections_muted == 0
    server.sessions.clear()
    del transport, session
    assert connections() == before - 1, "the timer of a mute still refers to its connection"


@in_loop
async def test_a_muted_connection_is_closed_when_the_server_stops() -> None:
    server = await throttling()
    transport, session = server.connect()
    transport.deliver(framed(b"f1", b"m2"))
    stopping = asyncio.create_task(server.server.stop(LONG_S))
    await settle()
    session.finish(b"f1")
    await stopping
    assert transport.is_lost()
    assert transport.answers() == [b"f1", b"m2"]


@in_loop
async def test_a_client_that_ends_its_side_is_served_after_the_mute() -> None:
    """With acks=0 a producer may close at once. Its requests count nevertheless."""
    transport, session = (await throttling()).connect()
    transport.deliver(framed(b"q1", b"n2"))
    transport.end()
    assert session.frames == [b"q1"]
    while not transport.is_lost():  # noqa: ASYNC110 - the fake transport has no event
        await asyncio.sleep(0.001)
    assert session.frames == [b"q1", b"n2"]
