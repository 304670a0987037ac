"""Connections between brokers with TLS and SASL, against a broker with the same machines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from client import fake_tls
from client.fake_broker import FakeBroker
from client.fake_sasl import FakeSasl
from penstock.broker.peers.connection import Peer, PeerLost, PeerSecurity, connect_peer
from penstock.client.loop_threads import LoopThreads
from penstock.net.sockets import SocketNetwork
from penstock.net.tls import client_context
from penstock.runtime import SystemRandom
from penstock.security.client_login import PasswordLogin
from penstock.security.listener_security import parse_client_tls
from penstock.testing.slowness import patient
from penstock.wire.messages import MetadataRequest, MetadataResponse

LOGIN = PasswordLogin("SCRAM-SHA-512", "alice", "tea")


def secured(login: PasswordLogin | None = LOGIN, ca: str | None = None) -> PeerSecurity:
    tls = None
    if ca is not None:
        context = client_context(
            parse_client_tls({"ssl.truststore.certificates": ca}), lambda _: b""
        )
        tls = lambda: context  # noqa: E731
    return PeerSecurity(SystemRandom(), LoopThreads(), tls, login)


async def connected(fake: FakeBroker, security: PeerSecurity | None) -> Peer:
    host, _, port = fake.address.partition(":")
    return await connect_peer(
        SocketNetwork(),
        (host, int(port)),
        client_id="test",
        timeout_s=30,
        response_bytes_max=1 << 20,
        security=security,
    )


def use(fake: FakeBroker, security: PeerSecurity | None, until_logins: int = 0) -> None:
    async def case() -> None:
        async with asyncio.timeout(patient(120)):
            peer = await connected(fake, security)
            try:
                await peer.ask(MetadataRequest([]), 13, MetadataResponse, 30)
                while fake.sasl is not None and len(fake.sasl.logins) < until_logins:
                    await peer.ask(MetadataRequest([]), 13, MetadataResponse, 30)
            finally:
                peer.close()
                await asyncio.sleep(0)

    asyncio.run(case())


def test_a_broker_logs_in_at_another() -> None:
    sasl = FakeSasl()
    with FakeBroker(sasl=sasl) as fake:
        use(fake, secured())
    assert sasl.logins == ["alice"]


def test_a_broker_connects_with_tls_and_logs_in() -> None:
    sasl = FakeSasl()
    with FakeBroker(sasl=sasl, tls=fake_tls.context()) as fake:
        use(fake, secured(ca=fake_tls.CA.certificate))
    assert sasl.logins == ["alice"]


def test_a_session_between_brokers_is_renewed_before_it_ends() -> None:
    """On the same connection: the other broker never closes it."""
    sasl = FakeSasl(told_ms=1_200)
    with FakeBroker(sasl=sasl) as fake:
        use(fake, secured(), until_logins=3)
        assert fake.connections == 1
    assert sasl.closes == []


@pytest.mark.parametrize(
    ("login", "ca", "says"),
    [
        (PasswordLogin("SCRAM-SHA-512", "alice", "coffee-77"), None, "refused the login"),
        (LOGIN, fake_tls.OTHER_CA.certificate, "set ssl.truststore.location"),
    ],
)
def test_a_refusal_says_what_to_do(login: PasswordLogin, ca: Any, says: str) -> None:
    """Without the password."""
    tls = None if ca is None else fake_tls.context()
    with (
        FakeBroker(sasl=FakeSasl(), tls=tls) as fake,
        pytest.raises(PeerLost, match=says) as lost,
    ):
        use(fake, secured(login, ca))
    assert "coffee-77" not in str(lost.value)
