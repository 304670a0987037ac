"""Clients log in with SASL before a broker serves them."""

from __future__ import annotations

import asyncio

import pytest

from broker.harness import BrokerHarness, with_harness_of
from penstock.security.plain import client_message
from penstock.security.scram_credentials import ScramMechanism
from penstock.wire.codec import encode_request
from penstock.wire.errors import ErrorCode, ProtocolError
from penstock.wire.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    MetadataRequest,
    MetadataResponse,
    SaslAuthenticateResponse,
)

from .connections import SASL_SETTINGS, Connection, add_user

with_logins = with_harness_of(kafka=SASL_SETTINGS)
PASSWORD = "correct horse"


async def serves(connection: Connection) -> MetadataResponse:
    return await connection.ask(MetadataRequest(), 12, MetadataResponse)


def principal(connection: Connection) -> str:
    return str(connection.session._identity.principal)  # type: ignore[attr-defined]


@with_logins
async def test_a_client_is_served_once_it_has_logged_in(harness: BrokerHarness) -> None:
    """With each mechanism. The response has the endpoints of the listener."""
    for mechanism in ScramMechanism:
        await add_user(harness, "alice", PASSWORD, mechanism)
    for mechanism in ScramMechanism:
        connection = Connection(harness)
        assert (await connection.scram("alice", PASSWORD, mechanism)).error_code == 0
        assert principal(connection) == "User:alice"
        assert [each.port for each in (await serves(connection)).brokers] == [9192]
    connection = Connection(harness)
    assert (await connection.plain("alice", PASSWORD)).error_code == 0
    assert principal(connection) == "User:alice"
    assert [each.port for each in (await serves(connection)).brokers] == [9192]
    assert [each.port for each in (await serves(Connection(harness, "PLAINTEXT"))).brokers] == [
        9092
    ]


@with_logins
async def test_a_wrong_password_and_an_unknown_user_look_the_same(harness: BrokerHarness) -> None:
    await add_user(harness, "alice", PASSWORD)
    answers: list[SaslAuthenticateResponse] = []
    for user, password in (("alice", "wrong"), ("nobody", PASSWORD), ("nobody", "wrong")):
        for login in (Connection.plain, Connection.scram):
            connection = Connection(harness)
            answers.append(await login(connection, user, password))
            assert connection.is_closed
            assert connection.frame_bytes_max <= 512 << 10
    assert {each.error_code for each in answers} == {ErrorCode.SASL_AUTHENTICATION_FAILED}
    assert len({(each.error_message, bytes(each.auth_bytes)) for each in answers}) == 1


@with_logins
async def test_nothing_is_served_before_the_login(harness: BrokerHarness) -> None:
    """ApiVersions may be asked for, once. A large frame is not accepted."""
    connection = Connection(harness)
    assert connection.frame_bytes_max == 512 << 10
    versions = await connection.ask(ApiVersionsRequest("test", "1"), 3, ApiVersionsResponse)
    assert {17, 36} <= {each.api_key for each in versions.api_keys}
    with pytest.raises(ProtocolError, match="API 18 before authentication"):
        await connection.ask(ApiVersionsRequest("test", "1"), 3, ApiVersionsResponse)
    with pytest.raises(ProtocolError, match="API 3 before authentication"):
        await serves(Connection(harness))
    with pytest.raises(ProtocolError, match="before SaslHandshake"):
        await Connection(harness).token(b"a token")
    with pytest.raises(ProtocolError):
        await Connection(harness).exchange(b"abc")


@with_logins
async def test_a_request_during_the_login_is_refused_in_its_own_response(
    harness: BrokerHarness,
) -> None:
    connection = Connection(harness)
    await connection.shake("PLAIN")
    answer = await connection.ask(MetadataRequest([]), 13, MetadataResponse)
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert connection.is_closed


@with_logins
async def test_a_client_may_try_another_mechanism_on_the_same_connection(
    harness: BrokerHarness,
) -> None:
    """franz-go does this."""
    await add_user(harness, "alice", PASSWORD)
    connection = Connection(harness)
    refused = await connection.shake("GSSAPI")
    assert refused.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert refused.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert (await connection.plain("alice", PASSWORD)).error_code == 0


@with_logins
async def test_old_clients_send_tokens_without_a_request_header(harness: BrokerHarness) -> None:
    """SaslHandshake version 0. A failure closes the connection without an answer."""
    await add_user(harness, "alice", PASSWORD)
    connection = Connection(harness)
    assert (await connection.shake("PLAIN", version=0)).error_code == 0
    assert await connection.exchange(client_message("alice", PASSWORD)) == b""
    assert principal(connection) == "User:alice"
    connection = Connection(harness)
    await connection.shake("PLAIN", version=0)
    assert await connection.exchange(client_message("alice", "wrong")) is None
    assert connection.is_closed


@with_logins
async def test_a_login_that_takes_too_long_is_closed(harness: BrokerHarness) -> None:
    logins = harness.broker.listeners.logins
    assert logins is not None
    service = logins.services["LOGIN"]
    object.__setattr__(service.settings, "deadline_ms", 20)
    connection = Connection(harness)
    await harness.until(lambda: connection.is_closed)
    assert service.failures == 1


@with_logins
async def test_a_second_login_is_refused_if_sessions_do_not_expire(harness: BrokerHarness) -> None:
    await add_user(harness, "alice", PASSWORD)
    connection = Connection(harness)
    await connection.plain("alice", PASSWORD)
    assert (await connection.shake("PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert (await connection.token(b"x")).error_code == ErrorCode.ILLEGAL_SASL_STATE
    await serves(connection)


@with_harness_of(kafka={**SASL_SETTINGS, "connections.max.reauth.ms": "3600000"})
async def test_a_session_that_is_not_renewed_ends(harness: BrokerHarness) -> None:
    """A session can be renewed by the same user only (KIP-368)."""
    await add_user(harness, "alice", PASSWORD)
    await add_user(harness, "bob", PASSWORD)
    connection = Connection(harness)
    login = await connection.plain("alice", PASSWORD)
    assert login.session_lifetime_ms == 3_600_000
    await serves(connection)
    assert (await connection.plain("alice", PASSWORD)).error_code == 0
    await serves(connection)
    connection.session._machine._expires_ms = 0  # type: ignore[attr-defined]
    with pytest.raises(ProtocolError, match="expired"):
        await serves(connection)
    other = Connection(harness)
    await other.plain("alice", PASSWORD)
    assert (await other.plain("bob", PASSWORD)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert other.is_closed


@with_logins
async def test_a_deleted_user_cannot_log_in_again(harness: BrokerHarness) -> None:
    """A connection that is open stays, as in Kafka."""
    await add_user(harness, "alice", PASSWORD)
    connection = Connection(harness)
    assert (await connection.scram("alice", PASSWORD)).error_code == 0
    deletion = AlterUserScramCredentialsRequest.Deletion("alice", ScramMechanism.SHA_256)
    request = AlterUserScramCredentialsRequest([deletion], [])
    answer = await harness.ask(request, 0, AlterUserScramCredentialsResponse)
    assert [each.error_code for each in answer.results] == [0]
    failed = await Connection(harness).scram("alice", PASSWORD)
    assert failed.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    await serves(connection)
    described = await harness.ask(
        DescribeUserScramCredentialsRequest(None), 0, DescribeUserScramCredentialsResponse
    )
    assert described.results == []


@with_logins
async def test_many_logins_wait_for_their_turn(harness: BrokerHarness) -> None:
    """Passwords are hashed one at a time."""
    await add_user(harness, "alice", PASSWORD)
    connections = [Connection(harness) for _ in range(20)]
    answers = await asyncio.gather(
        *(each.plain("alice", PASSWORD if i % 2 else "no") for i, each in enumerate(connections))
    )
    assert [bool(each.error_code) for each in answers] == [True, False] * 10


@with_logins
async def test_a_pipelined_request_is_served_after_the_login(harness: BrokerHarness) -> None:
    """Also by the old session, which may still get frames that had arrived before."""
    await add_user(harness, "alice", PASSWORD)
    connection = Connection(harness)
    before = connection.session
    await connection.plain("alice", PASSWORD)
    assert connection.session is not before
    frame = b"".join(encode_request(MetadataRequest(), 12, 7, "x"))[4:]
    answer = before.on_frame(memoryview(bytearray(frame)))
    assert answer is not None


@with_harness_of(
    kafka={
        **SASL_SETTINGS,
        "listener.name.login.plain.sasl.jaas.config": (
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_carol="pw";'
        ),
    }
)
async def test_plain_checks_the_users_in_the_settings_if_there_are_any(
    harness: BrokerHarness,
) -> None:
    await add_user(harness, "alice", PASSWORD)
    carol = Connection(harness)
    assert (await carol.plain("carol", "pw")).error_code == 0
    assert principal(carol) == "User:carol"
    failed = await Connection(harness).plain("alice", PASSWORD)
    assert failed.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
