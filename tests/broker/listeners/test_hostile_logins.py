"""Clients that try to take the broker's time and memory before they are authenticated."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from broker.harness import BrokerHarness, with_harness_of
from penstock.broker.config import BrokerConfig
from penstock.broker.listeners import login_work
from penstock.broker.listeners.login_work import LoginsWaiting, LoginWork, WaitingLogin
from penstock.broker.listeners.sasl_login import LoginService, SaslLogin
from penstock.security.exchange import PasswordHash, Rejected, Wait
from penstock.security.plain import client_message
from penstock.security.sasl_session import OfferedMechanism
from penstock.testing.slowness import patient
from penstock.wire.codec import encode_request
from penstock.wire.errors import ErrorCode, ProtocolError
from penstock.wire.messages import (
    ApiVersionsRequest,
    MetadataRequest,
    MetadataResponse,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from penstock.wire.messages.base import Request

from .connections import SASL_SETTINGS, Connection, add_user

with_logins = with_harness_of(kafka=SASL_SETTINGS)
PASSWORD = "correct horse"


def login_service(harness: BrokerHarness) -> LoginService:
    logins = harness.broker.listeners.logins
    assert logins is not None
    return logins.services["LOGIN"]


def frame_of(request: Request, version: int, tags: int = 0) -> bytes:
    """Returns a request without its length, with tagged fields in its header."""
    frame = bytearray(b"".join(encode_request(request, version, 1, "x"))[4:])
    assert frame[11] == 0
    written = b"".join(bytes([n & 127 | 128, n >> 7 & 127 | 128, n >> 14, 0]) for n in range(tags))
    count = bytes([tags & 127 | 128, tags >> 7 & 127 | 128, tags >> 14])
    frame[11:12] = count + written if tags else b"\0"
    return bytes(frame)


@with_logins
async def test_a_token_with_many_tagged_fields_is_refused(harness: BrokerHarness) -> None:
    """Decoding a hundred thousand of them would take half a second of the event loop."""
    connection = Connection(harness)
    await connection.shake("PLAIN")
    request = SaslAuthenticateRequest(client_message("alice", PASSWORD))
    with pytest.raises(ProtocolError, match="257"):
        await connection.exchange(frame_of(request, 2, tags=257))
    connection = Connection(harness)
    with pytest.raises(ProtocolError, match="257"):
        await connection.exchange(frame_of(ApiVersionsRequest("x", "1"), 3, tags=257))


@with_logins
async def test_a_large_request_during_a_login_is_not_decoded(harness: BrokerHarness) -> None:
    """The connection closes without an answer, and late, as for every failure."""
    connection = Connection(harness)
    await connection.shake("PLAIN")
    wanted = MetadataRequest([MetadataRequest.Topic(name="t") for _ in range(1000)])
    assert await connection.exchange(frame_of(wanted, 12)) is None
    assert connection.is_closed
    assert login_service(harness).failures == 1


@with_logins
async def test_an_unknown_request_during_a_login_gets_no_answer(harness: BrokerHarness) -> None:
    """In particular not a second answer to the handshake."""
    connection = Connection(harness)
    await connection.shake("PLAIN")
    assert await connection.exchange(struct.pack(">hhihx", 999, 0, 7, 0)) is None
    assert connection.is_closed


@with_logins
async def test_a_deadline_whose_timer_fires_early_holds(harness: BrokerHarness) -> None:
    """uvloop rounds timers to milliseconds."""
    object.__setattr__(login_service(harness).settings, "deadline_ms", int(patient(1_000)))
    connection = Connection(harness)
    session = connection.session
    assert isinstance(session, SaslLogin)
    session._on_deadline()
    assert not connection.is_closed
    await harness.until(lambda: connection.is_closed)


class _Stuck:
    """Slow work that does not end."""

    async def run(self, work: Any) -> Any:
        await asyncio.Event().wait()


@with_logins
async def test_a_login_that_waits_is_closed_at_its_deadline(harness: BrokerHarness) -> None:
    """Also while its password waits to be hashed, and it then waits no longer."""
    service = login_service(harness)
    object.__setattr__(service.settings, "deadline_ms", int(patient(2_000)))
    service.work._executor = _Stuck()
    connections = [Connection(harness) for _ in range(3)]
    for each in connections:
        await each.shake("PLAIN")
    token = SaslAuthenticateRequest(client_message("alice", PASSWORD))
    answers = await asyncio.gather(*(each.exchange(frame_of(token, 2)) for each in connections))
    assert answers == [None] * 3
    assert all(each.is_closed for each in connections)
    assert service.work.waiting == 0


@with_logins
async def test_a_client_that_disconnects_waits_no_longer(harness: BrokerHarness) -> None:
    """Otherwise connections that come and go could keep the queue full."""
    service = login_service(harness)
    service.work._executor = _Stuck()
    for _ in range(5):
        connection = Connection(harness)
        await connection.shake("PLAIN")
        token = SaslAuthenticateRequest(client_message("alice", PASSWORD))
        connection.session.on_frame(memoryview(bytearray(frame_of(token, 2))))
        await asyncio.sleep(0)
        connection.session.on_closed()
        assert connection.session._timer is None  # type: ignore[attr-defined]
    assert service.work.waiting == 0


class _Refuses:
    """An exchange that waits for work, which is not done, and then refuses."""

    def step(self, token: bytes, now_ms: int) -> Wait:
        return Wait(PasswordHash("sha256", b"", b"", 1))

    def resume(self, result: bytes | None, now_ms: int) -> Rejected:
        return Rejected("no")


@with_logins
async def test_a_failure_that_is_known_at_once_is_answered(harness: BrokerHarness) -> None:
    """The timer of its delay must not end with the timer of the deadline."""

    class Immediate(LoginWork):
        def hash_password(self, *given: Any) -> WaitingLogin:
            host, work, done, refused = given
            done(None)
            return WaitingLogin(host, work, done, refused)

    service = login_service(harness)
    service.work = Immediate(_Stuck(), lambda _: None)
    service.mechanisms = [OfferedMechanism("PLAIN", _Refuses)]
    connection = Connection(harness)
    await connection.shake("PLAIN")
    async with asyncio.timeout(patient(30)):
        answer = await connection.token(b"token")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert connection.is_closed


@with_logins
async def test_a_session_keeps_no_token(harness: BrokerHarness) -> None:
    """A memory dump of a broker should not have the passwords of its clients."""
    await add_user(harness, "alice", PASSWORD)
    connection = Connection(harness)
    session = connection.session
    await connection.plain("alice", PASSWORD)
    assert session._request is None  # type: ignore[attr-defined]


class _Counted:
    """Finishes work only when told to."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def run(self, work: Any) -> Any:
        await self.ended.wait()
        return b""


def test_an_address_with_many_logins_delays_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The addresses take turns, and when the queue is full, the one with the most gives way."""
    monkeypatch.setattr(login_work, "WAITING_MAX", 10)
    order: list[str] = []
    refused: list[str] = []

    async def run() -> None:
        executor = _Counted()
        tasks: list[asyncio.Task[None]] = []
        queue = LoginWork(executor, lambda work: tasks.append(asyncio.create_task(work)))
        hash_of = PasswordHash("sha256", b"", b"", 1)

        def add(host: str) -> None:
            queue.hash_password(
                host, hash_of, lambda _: order.append(host), lambda _: refused.append(host)
            )

        for number in range(10):
            add(f"2001:db8::{number}")
        with pytest.raises(LoginsWaiting):
            add("2001:db8::ffff")
        add("192.0.2.1")
        add("192.0.2.2")
        assert refused == ["2001:db8::9", "2001:db8::8"]
        assert queue.waiting == 10
        executor.ended.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert order[:3] == ["2001:db8::0", "192.0.2.1", "192.0.2.2"]
    assert len(order) == 10


@with_logins
async def test_a_second_handshake_or_a_request_during_a_login_ends_it(
    harness: BrokerHarness,
) -> None:
    for request, version in ((SaslHandshakeRequest("PLAIN"), 1), (MetadataRequest([]), 12)):
        connection = Connection(harness)
        await connection.shake("PLAIN")
        answer = await connection.exchange(b"".join(encode_request(request, version, 5, "x"))[4:])
        assert answer is not None and answer[:4] == struct.pack(">i", 5)
        assert connection.is_closed
        with pytest.raises((ProtocolError, AssertionError)):
            await connection.ask(MetadataRequest([]), 12, MetadataResponse)


def test_the_text_of_a_configuration_has_no_secrets() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="S3cret";'
    settings = {**SASL_SETTINGS, "listener.name.login.plain.sasl.jaas.config": jaas}
    config = BrokerConfig(kafka=tuple(settings.items()))
    assert "S3cret" not in repr(config)
    assert "S3cret" not in repr(config.listener_security)
