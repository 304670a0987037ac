"""Brokers that log in to each other, and a running cluster that changes to TLS and logins."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from broker.three_brokers import ThreeBrokers, three_brokers
from penstock.broker.config import BrokerConfig, ConfigError
from penstock.broker.listeners.peer_security import peer_security
from penstock.broker.peers.connection import PeerLost, PeerSecurity, connect_peer
from penstock.net.sockets import SocketNetwork
from penstock.ports import Env
from penstock.runtime import SystemClock, SystemRandom, Threads
from penstock.security.certificates import Subject, new_authority, new_server
from penstock.security.client_login import PasswordLogin
from penstock.testing.slowness import patient

TIMEOUT_S = 100
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
BOTH = "PLAINTEXT://127.0.0.1:PORT,SECURE://127.0.0.1:SECOND"


def tls_settings(directory: Path) -> dict[str, str]:
    """Writes the certificate of a broker. Returns settings that use it."""
    now_ms, random_bytes = SystemClock().wall_ms(), SystemRandom().bytes
    authority = new_authority(Subject("test authority"), now_ms, random_bytes)
    broker = new_server(authority, Subject("broker"), ["127.0.0.1"], now_ms, random_bytes)
    (directory / "broker.pem").write_text(broker.key + broker.certificate)
    (directory / "ca.pem").write_text(authority.certificate)
    return {
        "ssl.keystore.location": str(directory / "broker.pem"),
        "ssl.truststore.location": str(directory / "ca.pem"),
    }


def listeners(protocol: str, inter_broker: str = "SECURE") -> dict[str, str]:
    return {
        "listeners": BOTH,
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,SECURE:{protocol}",
        "inter.broker.listener.name": inter_broker,
    }


def password_settings(password: str = "pw") -> dict[str, str]:
    return {
        "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": (
            f'{PLAIN_MODULE} required username="broker" password="{password}" user_broker="pw";'
        ),
    }


async def replicates(cluster: ThreeBrokers, value: bytes) -> None:
    """Asserts that a record reaches all three brokers."""
    await cluster.until(lambda: len(cluster.partition().isr) == 3)
    await cluster.produce(value)
    assert (await cluster.all_equal())[-1] == value


def secured(cluster: ThreeBrokers) -> list[int]:
    """Returns how many connections each broker has on its secured listener."""
    return [
        each.broker.server.listeners["SECURE"].connections
        for each in cluster.nodes
        if each.broker is not None
    ]


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_brokers_replicate_over_secured_connections(tmp_path: Path, protocol: str) -> None:
    """With certificates of both sides, or with a password, or both."""
    settings = listeners(protocol)
    if protocol != "SASL_PLAINTEXT":
        settings |= tls_settings(tmp_path)
    if protocol != "SSL":
        settings |= password_settings()
    else:
        settings["listener.name.secure.ssl.client.auth"] = "required"

    async def run() -> None:
        async with (
            asyncio.timeout(patient(TIMEOUT_S)),
            three_brokers(tmp_path, settings) as cluster,
        ):
            await cluster.create(min_insync_replicas="3")
            await replicates(cluster, b"secret")
            leader = cluster.partition().leader
            await cluster.until(lambda: secured(cluster)[leader] >= 2)

    asyncio.run(run())


def test_a_broker_with_a_wrong_password_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays out of the ISR, and the others go on."""
    settings = listeners("SASL_PLAINTEXT") | password_settings()

    async def run() -> None:
        async with (
            asyncio.timeout(patient(TIMEOUT_S)),
            three_brokers(tmp_path, settings) as cluster,
        ):
            await cluster.create(min_insync_replicas="2")
            await replicates(cluster, b"before")
            follower = next(each for each in range(3) if each != cluster.partition().leader)
            await cluster.nodes[follower].kill()
            with caplog.at_level(logging.WARNING):
                await cluster.start(follower, password_settings("wrong"))
                await cluster.until(lambda: "refused the login of this broker" in caplog.text)
            await cluster.produce(b"after")
            assert follower not in cluster.partition().isr
            assert "wrong" not in caplog.text.replace("the password is wrong", "")

    asyncio.run(run())


def test_a_login_where_none_is_asked_for_is_explained(tmp_path: Path) -> None:
    """A broker without SASL answers ILLEGAL_SASL_STATE, as Kafka does."""

    async def run() -> None:
        threads = Threads(1)
        security = PeerSecurity(
            SystemRandom(), threads, None, PasswordLogin("PLAIN", "alice", "pw")
        )
        async with (
            asyncio.timeout(patient(TIMEOUT_S)),
            three_brokers(tmp_path, brokers=1) as cluster,
        ):
            with pytest.raises(PeerLost, match="asks for no login on this port"):
                await connect_peer(
                    SocketNetwork(),
                    ("127.0.0.1", cluster.nodes[0].port),
                    client_id="test",
                    timeout_s=TIMEOUT_S,
                    response_bytes_max=1 << 20,
                    security=security,
                )
        threads.close()

    asyncio.run(run())


def test_a_running_cluster_changes_from_plain_text_to_tls_and_logins(tmp_path: Path) -> None:
    """Broker by broker: first all get the new listener, then they connect to each other through
    it. Records are written and replicated after every step."""
    plain = {"listeners": "PLAINTEXT://127.0.0.1:PORT"}
    more = tls_settings(tmp_path) | password_settings()
    added = listeners("SASL_SSL", inter_broker="PLAINTEXT") | more
    moved = listeners("SASL_SSL") | more

    async def run() -> None:
        async with (
            asyncio.timeout(patient(2 * TIMEOUT_S)),
            three_brokers(tmp_path, plain) as cluster,
        ):
            await cluster.create(min_insync_replicas="2")
            await replicates(cluster, b"plain")
            for settings in (added, moved):
                for broker_id in range(3):
                    await cluster.nodes[broker_id].stop()
                    await cluster.start(broker_id, settings)
                    await replicates(cluster, f"restarted {broker_id}".encode())
            leader = cluster.partition().leader
            await cluster.until(lambda: secured(cluster)[leader] >= 2)
            values = await cluster.all_equal()
            assert len(values) == 7 and len({*values}) == 4

    asyncio.run(run())


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"}, "set it to one of PLAIN"),
        ({"listener.name.secure.plain.sasl.jaas.config": ""}, "no username and password"),
        (
            {"listener.name.secure.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_a="b";'},
            "no username and password",
        ),
        ({"listener.name.secure.plain.sasl.jaas.config": "nonsense"}, "jaas.config"),
    ],
)
def test_a_broker_that_could_not_log_in_to_others_does_not_start(
    changed: dict[str, str], problem: str
) -> None:
    settings = listeners("SASL_PLAINTEXT") | password_settings() | changed
    settings = {
        name: text.replace("PORT", "9092").replace("SECOND", "9093")
        for name, text in settings.items()
        if text
    }
    config = BrokerConfig(kafka=tuple(settings.items()))
    with pytest.raises(ConfigError, match=problem):
        peer_security(config, cast(Env, SimpleNamespace(random=None, executor=None)), None)
