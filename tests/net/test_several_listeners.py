"""One server with several listeners: each has its own sessions and its own limit."""

from __future__ import annotations

import pytest

from penstock.net.open_listener import OpenListener
from penstock.net.session import Peer, SessionRefused

from .fakes import MemoryNetwork, Rig, Script, framed, rig, settle

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def opened(
    started: Rig, connections_max: int | None = None
) -> tuple[OpenListener, MemoryNetwork]:
    """Opens a second listener, on a network of its own."""
    network = MemoryNetwork()

    def session(peer: Peer) -> Script:
        started.sessions.append(Script(peer))
        return started.sessions[-1]

    listener = OpenListener("SECOND", session, connections_max)
    await started.server.open(listener, network, "127.0.0.1", 9093)
    return listener, network


async def test_connections_of_all_listeners_belong_to_one_server() -> None:
    started = await rig()
    listener, network = await opened(started)
    assert [*started.server.listeners] == ["first", "SECOND"]
    started.connect()
    network.open("10.1.1.1", 1 << 30)
    assert started.server.counters.connections == 2
    assert listener.connections == 1
    await started.server.stop(1.0)
    await settle()
    assert started.server.counters.connections == 0
    assert listener.connections == 0


async def test_a_listener_can_have_a_limit_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    started = await rig()
    listener, network = await opened(started, connections_max=1)
    network.open("10.1.1.1", 1 << 30)
    refused = network.open("10.1.1.1", 1 << 30)
    assert refused.aborted
    assert "SECOND has 1 connections" in caplog.text
    started.connect()
    assert (started.server.counters.connections, listener.connections) == (2, 1)
    assert started.server.admission.addresses == 1


async def test_a_client_that_may_have_no_session_is_logged_and_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its certificate does not map to a user, for example. The log has no traceback."""
    started = await rig()

    def refusing(peer: Peer) -> Script:
        raise SessionRefused("its certificate does not map to a user")

    started.server.new_session = refusing
    transport = started.network.open("10.1.1.1", 1 << 30)
    assert transport.aborted
    assert "its certificate does not map to a user" in caplog.text
    assert "Traceback" not in caplog.text
    assert (started.server.counters.connections, started.server.admission.addresses) == (0, 0)


async def test_the_listener_of_brokers_is_not_refused_when_clients_use_all_connections(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The connection of a client that is idle for the longest time is closed for it."""
    caplog.set_level("INFO")
    started = await rig(connections_max=3)
    listener, network = await opened(started)
    listener.is_protected = True
    clients = [started.network.open("10.1.1.1", 1 << 30) for _ in range(3)]
    assert started.network.open("10.1.1.1", 1 << 30).aborted
    started.clock.now += 5
    started.server.tick()
    for index in (0, 2):
        clients[index].deliver(framed(b"e1"))
    broker = network.open("10.1.1.2", 1 << 30)
    await settle()
    assert not broker.aborted
    assert [each.aborted for each in clients] == [False, True, False]
    assert "another broker has connected" in caplog.text
    assert started.server.counters.connections_displaced == 1
    assert started.server.counters.connections == 3
    others = [network.open("10.1.1.2", 1 << 30) for _ in range(3)]
    await settle()
    assert all(each.aborted for each in clients)
    assert not any(each.aborted for each in (broker, *others)), "no connection of a broker"
    assert started.server.counters.connections_displaced == 3
