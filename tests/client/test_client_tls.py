"""Tests TLS in the clients: who is accepted, and what the errors say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from client import fake_tls
from client.fake_broker import FakeBroker
from client.fake_sasl import FakeSasl
from penstock import Admin, Consumer, Producer, aio
from penstock.client.errors import ClientError, ConnectFailed, NotKafka, OptionError, TlsFailed

TLS: dict[str, Any] = {"security_protocol": "SSL", "ssl_ca": fake_tls.CA.certificate}
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}
on_both_loops = pytest.mark.parametrize("loop", LOOPS)


def use(address: str, loop: str, **options: Any) -> None:
    async def main() -> None:
        async with aio.Admin(address, **options) as admin:
            await admin.describe_cluster()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


@on_both_loops
def test_a_client_connects_with_tls(loop: str) -> None:
    with FakeBroker(tls=fake_tls.context()) as fake:
        use(fake.address, loop, **TLS)


@on_both_loops
def test_a_client_shows_its_certificate(loop: str) -> None:
    """From one PEM text each, or with the key in the same text."""
    with FakeBroker(tls=fake_tls.context(asks=True)) as fake:
        alice = fake_tls.ALICE
        use(fake.address, loop, **TLS, ssl_certificate=alice.certificate, ssl_key=alice.key)
        use(fake.address, loop, **TLS, ssl_certificate=alice.certificate + alice.key)


def test_an_encrypted_key_needs_its_password() -> None:
    alice = fake_tls.SECRET_ALICE
    pair = {"ssl_certificate": alice.certificate, "ssl_key": alice.key}
    with FakeBroker(tls=fake_tls.context(asks=True)) as fake:
        use(fake.address, "asyncio", **TLS, **pair, ssl_key_password="milk")
        with pytest.raises(OptionError, match="ssl_key: the key cannot be used") as failed:
            use(fake.address, "asyncio", **TLS, **pair, ssl_key_password="not-milk")
        assert "not-milk" not in str(failed.value)


def test_certificates_are_read_from_files_and_again_when_they_change(tmp_path: Path) -> None:
    """A client that runs for long uses the new file for its next connection."""
    authority = tmp_path / "ca.pem"
    authority.write_text(fake_tls.CA.certificate)
    options: dict[str, Any] = {"security_protocol": "SSL", "ssl_ca": str(authority)}
    with FakeBroker(tls=fake_tls.context()) as fake, Admin(fake.address, **options) as admin:
        authority.write_text(fake_tls.OTHER_CA.certificate)
        fake.reset_connections()
        with pytest.raises(TlsFailed, match="set ssl_ca"):
            while True:
                admin.list_topics()
        authority.write_text(fake_tls.CA.certificate)
        admin.list_topics()


def test_a_file_that_is_missing_is_named() -> None:
    with FakeBroker(tls=fake_tls.context()) as fake:
        missing = {**TLS, "ssl_ca": "/nowhere/ca.pem"}
        with pytest.raises(OptionError, match="ssl_ca: cannot read /nowhere/ca"):
            use(fake.address, "asyncio", **missing)


@on_both_loops
@pytest.mark.parametrize("problem", ["authority", "expired", "host name"])
def test_a_certificate_that_is_not_accepted_is_explained(problem: str, loop: str) -> None:
    """Each with what to do. It is not retried."""
    served = {
        "authority": fake_tls.context(),
        "expired": fake_tls.context(fake_tls.expired_server()),
        "host name": fake_tls.context(fake_tls.server(("broker.example",))),
    }[problem]
    says = {
        "authority": "not trusted: set ssl_ca",
        "expired": "has expired",
        "host name": r"is not for 127\.0\.0\.1: .*ssl_check_hostname=False",
    }[problem]
    options = {"security_protocol": "SSL"} if problem == "authority" else TLS
    with FakeBroker(tls=served) as fake, pytest.raises(TlsFailed, match=says) as failed:
        use(fake.address, loop, **options)
    assert not failed.value.retriable


def test_the_host_name_is_not_checked_if_the_option_says_so() -> None:
    served = fake_tls.context(fake_tls.server(("broker.example",)))
    with FakeBroker(tls=served) as fake:
        use(fake.address, "asyncio", **TLS, ssl_check_hostname=False)


@on_both_loops
@pytest.mark.parametrize("issued", [None, fake_tls.STRANGER, fake_tls.EXPIRED_ALICE])
def test_a_broker_that_refuses_the_certificate_is_explained(issued: Any, loop: str) -> None:
    """In TLS 1.3 the refusal arrives after the client's part of the handshake. If the broker closes
    the connection too early, the reason is lost, but not the advice."""
    pair = {}
    if issued is not None:
        pair = {"ssl_certificate": issued.certificate, "ssl_key": issued.key}
    with (
        FakeBroker(tls=fake_tls.context(asks=True)) as fake,
        pytest.raises(ConnectFailed, match="ssl_certificate and ssl_key"),
    ):
        use(fake.address, loop, **TLS, **pair)


@on_both_loops
def test_a_broker_without_tls_is_explained(fake: FakeBroker, loop: str) -> None:
    """It reads the handshake as a frame that is too long."""
    with pytest.raises(ClientError, match="security_protocol") as failed:
        use(fake.address, loop, **TLS)
    assert isinstance(failed.value, ConnectFailed)


@on_both_loops
def test_a_client_without_tls_is_told_that_the_broker_has_it(loop: str) -> None:
    """Also if the broker says nothing before it closes the connection."""
    with (
        FakeBroker(tls=fake_tls.context()) as fake,
        pytest.raises((NotKafka, ConnectFailed), match=r"TLS.* set security_protocol to SSL"),
    ):
        use(fake.address, loop)


def test_every_client_works_with_tls_and_a_login() -> None:
    """Records there and back."""
    sasl = FakeSasl()
    login: dict[str, Any] = {
        **TLS,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_username": "alice",
        "sasl_password": "tea",
    }
    with FakeBroker(tls=fake_tls.context(), sasl=sasl) as fake:
        fake.model.add_topic("a")
        with Producer(fake.address, **login) as producer:
            producer.send("a", b"1").result()
        with Consumer(fake.address, topics="a", auto_offset_reset="earliest", **login) as consumer:
            assert [record.value for record in consumer.poll(timeout_ms=60_000)] == [b"1"]
        with Admin(fake.address, **login) as admin:
            assert [topic.name for topic in admin.list_topics()] == ["a"]
    assert set(sasl.logins) == {"alice"}
