"""Limits on how fast clients open connections, by address."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from broker.harness import BrokerHarness, HarnessPeer, with_harness
from penstock.broker.listeners.connection_rates import ConnectionRates, RefusedConnection
from penstock.metadata.quotas import alter_quotas
from penstock.net.config import ServerConfig
from penstock.net.server import Server
from penstock.net.session import Peer, Session
from penstock.net.sockets import SocketNetwork
from penstock.runtime import SystemClock
from penstock.security.quotas import QuotaAlteration
from penstock.wire.errors import ErrorCode, ProtocolError

CONFIG = ServerConfig(host="127.0.0.1", port=0)
BURST_S = 10
"""A fresh address may use its rate of this many seconds at once."""


class ClosingPeer(HarnessPeer):
    def __init__(self, host: str = "192.0.2.1") -> None:
        super().__init__()
        self.host = host
        self.closed = asyncio.Event()

    def close(self) -> None:
        self.closed.set()


def rates_of(harness: BrokerHarness) -> ConnectionRates:
    def new_session(peer: Peer) -> Session:
        return harness.broker.server.new_session(peer)

    return ConnectionRates(new_session, harness.services.quotas)


async def limit(harness: BrokerHarness, address: str | None, rate: float) -> None:
    entry = QuotaAlteration((("ip", address),), (("connection_creation_rate", rate),))
    results = await harness.services.controller.decide(lambda image: alter_quotas(image, [entry]))
    assert results[0].code == ErrorCode.NONE, results[0].message


def is_refused(rates: ConnectionRates, peer: Peer) -> bool:
    session = rates.session(peer)
    session.on_closed()
    return isinstance(session, RefusedConnection)


@with_harness
async def test_an_address_over_its_quota_is_refused_and_others_are_not(
    harness: BrokerHarness,
) -> None:
    await limit(harness, "192.0.2.1", 1.0)
    rates = rates_of(harness)
    refused = [is_refused(rates, ClosingPeer()) for _ in range(100)]
    assert not any(refused[:BURST_S])
    assert refused.count(True) > 50
    assert not any(is_refused(rates, ClosingPeer("192.0.2.2")) for _ in range(100))
    assert harness.services.quotas.throttled["connection_creation_rate"].count == refused.count(
        True
    )


@with_harness
async def test_a_refused_connection_is_not_read_and_closed_after_a_while(
    harness: BrokerHarness,
) -> None:
    peer = ClosingPeer()
    session = RefusedConnection(peer, 0.01)
    assert peer.mutes == [0.02]
    assert not session.may_overlap(memoryview(b""))
    with pytest.raises(ProtocolError):
        session.on_frame(memoryview(b""))
    await peer.closed.wait()


@with_harness
async def test_nothing_remains_of_a_refused_connection_that_the_client_closes(
    harness: BrokerHarness,
) -> None:
    peer = ClosingPeer()
    session = RefusedConnection(peer, 0.001)
    session.on_closed()
    await asyncio.sleep(0.01)
    assert not peer.closed.is_set()


def test_a_refused_connection_is_closed_by_a_real_server() -> None:
    """It counts as open until then, and what its client sends is not read."""

    async def scenario() -> None:
        server = Server(
            SocketNetwork(), SystemClock(), CONFIG, lambda p: RefusedConnection(p, 0.02)
        )
        await server.start()
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(bytes(100))
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        assert server.counters.requests == server.counters.bytes_in == 0
        assert server.counters.connections_failed == 0
        assert server.counters.connections_muted == 0
        await server.stop(1.0)

    asyncio.run(scenario())
