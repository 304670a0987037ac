"""Settings that would leave a broker with less security than they ask for, and files that others
must not read."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from net.fakes import rig
from penstock.broker.config import BrokerConfig, ConfigError
from penstock.net.budget import SMALL_READ_BYTES
from penstock.net.connection import Connection
from penstock.net.open_listener import OpenListener
from penstock.runtime import SystemClock, Threads
from penstock.stores.sqlite import SqliteStore

from .connections import SASL_SETTINGS


def config(**settings: str) -> BrokerConfig:
    """Underscores stand for dots."""
    pairs = {name.replace("_", "."): value for name, value in settings.items()}
    return BrokerConfig(kafka=tuple(pairs.items()))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("listener.security.protocol.map", "PLAINTEXT:SASL_SSL"),
        ("inter.broker.listener.name", "SECURE"),
        ("security.inter.broker.protocol", "SSL"),
        ("ssl.client.auth", "required"),
        ("ssl.keystore.location", "/etc/broker.pem"),
        ("sasl.enabled.mechanisms", "SCRAM-SHA-256"),
        ("sasl.mechanism.inter.broker.protocol", "PLAIN"),
        ("principal.builder.class", "com.example.Builder"),
    ],
)
def test_security_settings_without_a_listener_that_uses_them_are_refused(
    name: str, value: str
) -> None:
    """Otherwise the broker would start in plain text, and everybody would be User:ANONYMOUS."""
    with pytest.raises(ConfigError, match=name.replace(".", "[.]")):
        BrokerConfig(kafka=((name, value),))


def test_classes_of_kafka_are_accepted() -> None:
    builder = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
    config(principal_builder_class=builder)
    config(principal_builder_class="")


def test_a_listener_has_its_own_limits() -> None:
    """Under Kafka's names: of the listener, and of one of its mechanisms."""
    settings = SASL_SETTINGS | {
        "listener.name.login.max.connections": "7",
        "listener.name.login.connections.max.reauth.ms": "2000",
        "listener.name.login.scram-sha-256.connections.max.reauth.ms": "1000",
    }
    found = BrokerConfig(kafka=tuple(settings.items())).listener_security["LOGIN"]
    assert found.max_connections == 7
    assert found.sasl is not None
    assert found.sasl.reauth_ms["SCRAM-SHA-256"] == 1000
    assert found.sasl.reauth_ms["PLAIN"] == 2000


def test_only_its_owner_can_read_a_new_store(tmp_path: Path) -> None:
    """It contains credentials: with them, passwords can be guessed offline."""
    path = tmp_path / "metadata.db"
    before = os.umask(0o022)
    try:

        async def run() -> None:
            threads = Threads(2)
            store = await SqliteStore.open(str(path), threads, SystemClock())
            for name in os.listdir(tmp_path):
                assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o600, name
            await store.close()
            threads.close()

        asyncio.run(run())
    finally:
        os.umask(before)


def test_a_client_that_is_not_authenticated_gets_small_reads() -> None:
    """Its pipelined requests wait in memory while its login does."""

    async def run() -> None:
        server = (await rig()).server
        connection = Connection(server, OpenListener("X", server.new_session))
        whole = len(connection.get_buffer(-1))
        assert whole == server.config.read_buffer_bytes
        connection.frame_bytes_max = server.config.frame_bytes_max // 2
        assert len(connection.get_buffer(-1)) == SMALL_READ_BYTES
        connection.frame_bytes_max = server.config.frame_bytes_max
        assert len(connection.get_buffer(-1)) == whole

    asyncio.run(run())
