"""Clients log in with delegation tokens."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest

from broker.audit.audited import read_log, written
from broker.harness import BrokerHarness, open_harness, with_harness_of
from penstock.security.scram_credentials import ScramMechanism
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode, ProtocolError
from penstock.wire.messages import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    MetadataRequest,
    MetadataResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
    SaslAuthenticateResponse,
)

from .connections import SASL_SETTINGS, Connection, add_user

SETTINGS = {**SASL_SETTINGS, "delegation.token.secret.key": "a secret key for tests"}
PASSWORD = "correct horse"
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED
with_tokens = with_harness_of(kafka=SETTINGS)
with_three = with_harness_of(brokers=3, kafka=SETTINGS)


async def user(harness: BrokerHarness, name: str = "alice", broker: int = 0) -> Connection:
    """Returns a connection of a user that has logged in with its password."""
    await add_user(harness, name, PASSWORD)
    connection = Connection(harness, broker=broker)
    image = harness.brokers[broker].cluster.image
    await harness.until(lambda: (name, ScramMechanism.SHA_256) in image.users.credentials)
    assert (await connection.scram(name, PASSWORD)).error_code == 0
    return connection


async def created(connection: Connection, lifetime_ms: int = -1) -> CreateDelegationTokenResponse:
    request = CreateDelegationTokenRequest(max_lifetime_ms=lifetime_ms)
    token = await connection.ask(request, 3, CreateDelegationTokenResponse)
    assert token.error_code == 0
    return token


async def expired(connection: Connection, token: CreateDelegationTokenResponse) -> int:
    request = ExpireDelegationTokenRequest(bytes(token.hmac), -1)
    return (await connection.ask(request, 2, ExpireDelegationTokenResponse)).error_code


async def log_in(
    connection: Connection,
    token: CreateDelegationTokenResponse,
    mechanism: ScramMechanism = ScramMechanism.SHA_256,
) -> SaslAuthenticateResponse:
    password = base64.b64encode(token.hmac).decode()
    return await connection.scram(token.token_id, password, mechanism, tokenauth=True)


async def serves(connection: Connection) -> None:
    await connection.ask(MetadataRequest(), 12, MetadataResponse)


@with_tokens
async def test_a_client_with_a_token_acts_as_its_owner(harness: BrokerHarness) -> None:
    token = await created(await user(harness))
    for mechanism in ScramMechanism:
        for _ in range(2):
            connection = Connection(harness)
            answer = await log_in(connection, token, mechanism)
            assert answer.error_code == 0
            assert 0 < answer.session_lifetime_ms <= 24 * 3_600_000
            await serves(connection)
            inner = connection.session._inner  # type: ignore[attr-defined]
            assert inner._identity.principal == "User:alice"
            request = CreateDelegationTokenRequest(max_lifetime_ms=-1)
            refused = await connection.ask(request, 3, CreateDelegationTokenResponse)
            assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


@with_tokens
async def test_a_wrong_token_looks_like_a_wrong_password(harness: BrokerHarness) -> None:
    token = await created(await user(harness))
    right = base64.b64encode(token.hmac).decode()
    answers = [
        await Connection(harness).scram(name, password, tokenauth=tokenauth)
        for name, password, tokenauth in (
            (token.token_id, "wrong", True),
            ("another-id", right, True),
            ("alice", PASSWORD, True),
            (token.token_id, right, False),
        )
    ]
    assert {(each.error_code, bytes(each.auth_bytes)) for each in answers} == {(FAILED, b"")}
    assert len({each.error_message for each in answers}) == 1


@with_tokens
async def test_a_session_ends_when_its_token_is_removed(harness: BrokerHarness) -> None:
    alice = await user(harness)
    token = await created(alice)
    connection = Connection(harness)
    await log_in(connection, token)
    await serves(connection)
    assert await expired(alice, token) == 0
    with pytest.raises(ProtocolError, match="was removed"):
        await serves(connection)
    assert (await log_in(Connection(harness), token)).error_code == FAILED


@with_tokens
async def test_a_token_that_is_renewed_lasts_longer(harness: BrokerHarness) -> None:
    """Its session too, once the client has re-authenticated."""
    alice = await user(harness)
    token = await created(alice)
    short = RenewDelegationTokenRequest(bytes(token.hmac), 600_000)
    await alice.ask(short, 2, RenewDelegationTokenResponse)
    connection = Connection(harness)
    assert 0 < (await log_in(connection, token)).session_lifetime_ms <= 600_000
    longer = RenewDelegationTokenRequest(bytes(token.hmac), -1)
    await alice.ask(longer, 2, RenewDelegationTokenResponse)
    again = await log_in(connection, token)
    assert again.error_code == 0 and again.session_lifetime_ms > 600_000
    await serves(connection)


@with_tokens
async def test_a_token_that_has_expired_cannot_log_in(harness: BrokerHarness) -> None:
    alice = await user(harness)
    token = await created(alice, lifetime_ms=1)
    wall_ms = harness.services.wall_ms
    await harness.until(lambda: wall_ms() > token.expiry_timestamp_ms)
    assert (await log_in(Connection(harness), token)).error_code == FAILED


@with_harness_of(kafka=SASL_SETTINGS)
async def test_without_a_secret_key_no_token_logs_in(harness: BrokerHarness) -> None:
    answer = await Connection(harness).scram("some-id", "x", tokenauth=True)
    assert answer.error_code == FAILED


@with_three
async def test_when_the_answer_comes_all_brokers_know_the_change(harness: BrokerHarness) -> None:
    """A token can be used everywhere once it is created, and nowhere once it is removed."""
    alice = await user(harness)
    for number in range(3):
        token = await created(alice)
        for broker in range(3):
            assert (await log_in(Connection(harness, broker=broker), token)).error_code == 0
        remover = await user(harness, broker=number)
        assert await expired(remover, token) == 0
        for broker in range(3):
            assert (await log_in(Connection(harness, broker=broker), token)).error_code == FAILED


@with_three
async def test_a_broker_that_may_have_lost_its_lease_accepts_no_token(
    harness: BrokerHarness,
) -> None:
    """It may not know that a token was removed. It closes the connection: clients try again."""
    token = await created(await user(harness))
    before = Connection(harness, broker=1)
    assert (await log_in(before, token)).error_code == 0
    await serves(before)
    membership = harness.brokers[1].membership
    held, membership._session_timeout_s = membership._session_timeout_s, 0.0
    with pytest.raises(ProtocolError, match="not sure"):
        await log_in(Connection(harness, broker=1), token)
    with pytest.raises(ProtocolError, match="cannot check it now"):
        await serves(before)
    membership._session_timeout_s = held
    assert (await log_in(Connection(harness, broker=1), token)).error_code == 0


def test_the_audit_record_has_tokens_and_no_hmacs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with asyncio.timeout(patient(100)), open_harness(tmp_path, 1, SETTINGS) as harness:
            alice = await user(harness)
            token = await created(alice)
            assert (await log_in(Connection(harness), token)).error_code == 0
            wrong = base64.b64encode(bytes(64)).decode()
            bad = await Connection(harness).scram(token.token_id, wrong, tokenauth=True)
            assert bad.error_code == FAILED
            renew = RenewDelegationTokenRequest(bytes(token.hmac), -1)
            bob = await user(harness, "bob")
            assert (await bob.ask(renew, 2, RenewDelegationTokenResponse)).error_code == 63
            assert (await alice.ask(renew, 2, RenewDelegationTokenResponse)).error_code == 0
            assert await expired(alice, token) == 0
            assert await expired(alice, token) == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
            events = await written(harness)
            named = f"token:{token.token_id}"
            of_tokens = [each for each in events if each.action.startswith("token.")]
            mismatch, missing = "DELEGATION_TOKEN_OWNER_MISMATCH", "DELEGATION_TOKEN_NOT_FOUND"
            assert sorted(
                (each.action, each.outcome.value, each.user, each.resource, each.rule)
                for each in of_tokens
            ) == [
                ("token.create", "allowed", "alice", named, None),
                ("token.expire", "allowed", "alice", named, None),
                ("token.expire", "failed", "alice", "token:unknown", missing),
                ("token.renew", "allowed", "alice", named, None),
                ("token.renew", "denied", "bob", named, mismatch),
            ]
            logins = {
                (each.outcome.value, each.user, each.detail, each.rule)
                for each in events
                if each.action == "login" and each.detail and "token" in each.detail
            }
            how = f"mechanism SCRAM-SHA-256, delegation token {token.token_id}"
            assert logins == {
                ("allowed", "alice", how, None),
                ("denied", None, how, "delegation token not accepted"),
            }
            text = read_log(harness.disks[0]) + caplog.text
            secret = base64.b64encode(token.hmac).decode()
            for form in (secret, bytes(token.hmac).hex(), SETTINGS["delegation.token.secret.key"]):
                assert form not in text

    asyncio.run(run())
