"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken."""

from __future__ import annotations

import hashlib
import hmac

from broker.access.clients import Client
from broker.harness import BrokerHarness, with_harness, with_harness_of
from penstock.metadata.image import Changed
from penstock.security.delegation_tokens import RENEWERS_MAX
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from penstock.wire.messages.base import Request, Response

SECRET = "a secret key for tests"
SETTINGS = {"delegation.token.secret.key": SECRET}
HOUR_MS = 3_600_000
with_tokens = with_harness_of(kafka=SETTINGS)

Owner = DescribeDelegationTokenRequest.Owner


async def created(
    client: Client, *renewers: str, max_lifetime_ms: int = -1, version: int = 3
) -> CreateDelegationTokenResponse:
    wanted = [CreateDelegationTokenRequest.Renewer("User", each) for each in renewers]
    request = CreateDelegationTokenRequest(renewers=wanted, max_lifetime_ms=max_lifetime_ms)
    answer = await client.ask(request, version, CreateDelegationTokenResponse)
    assert answer.error_code == 0
    return answer


async def renewed(client: Client, token_hmac: bytes, period_ms: int = -1) -> tuple[int, int]:
    request = RenewDelegationTokenRequest(token_hmac, period_ms)
    answer = await client.ask(request, 2, RenewDelegationTokenResponse)
    return answer.error_code, answer.expiry_timestamp_ms


async def expired(client: Client, token_hmac: bytes, period_ms: int = -1) -> tuple[int, int]:
    request = ExpireDelegationTokenRequest(token_hmac, period_ms)
    answer = await client.ask(request, 2, ExpireDelegationTokenResponse)
    return answer.error_code, answer.expiry_timestamp_ms


async def seen(client: Client, owners: list[Owner] | None = None) -> list[str]:
    request = DescribeDelegationTokenRequest(owners)
    answer = await client.ask(request, 3, DescribeDelegationTokenResponse)
    assert answer.error_code == 0
    return [each.token_id for each in answer.tokens]


@with_tokens
async def test_a_token_is_created_described_renewed_and_expired(harness: BrokerHarness) -> None:
    alice, bob = Client(harness, "User:alice"), Client(harness, "User:bob")
    token = await created(alice, "bob", "bob")
    assert (token.principal_type, token.principal_name) == ("User", "alice")
    assert token.token_requester_principal_name == "alice"
    assert token.expiry_timestamp_ms - token.issue_timestamp_ms == 24 * HOUR_MS
    assert token.max_timestamp_ms - token.issue_timestamp_ms == 168 * HOUR_MS
    expected = hmac.new(SECRET.encode(), token.token_id.encode(), hashlib.sha512).digest()
    assert bytes(token.hmac) == expected
    request = DescribeDelegationTokenRequest(None)
    shown = (await bob.ask(request, 3, DescribeDelegationTokenResponse)).tokens[0]
    assert (shown.token_id, bytes(shown.hmac)) == (token.token_id, expected)
    assert [each.principal_name for each in shown.renewers] == ["bob"]
    code, until_ms = await renewed(bob, expected, HOUR_MS)
    assert code == 0
    assert token.issue_timestamp_ms + HOUR_MS <= until_ms < token.expiry_timestamp_ms
    assert harness.services.image.tokens.by_id[token.token_id].expires_ms == until_ms
    code, gone_ms = await expired(alice, expected)
    assert code == 0 and token.issue_timestamp_ms <= gone_ms < until_ms
    assert not harness.services.image.tokens.by_id
    assert await seen(alice) == []
    assert (await renewed(alice, expected))[0] == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert (await expired(alice, expected))[0] == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


@with_tokens
async def test_older_versions_have_no_requester(harness: BrokerHarness) -> None:
    alice = Client(harness, "User:alice")
    for version in (1, 2):
        token = await created(alice, version=version)
        assert token.principal_name == "alice"
        request = DescribeDelegationTokenRequest(None)
        shown = await alice.ask(request, version, DescribeDelegationTokenResponse)
        assert len(shown.tokens) == version


@with_tokens
async def test_only_the_owner_and_renewers_change_a_token(harness: BrokerHarness) -> None:
    token = await created(Client(harness, "User:alice"), "bob")
    carol, held = Client(harness, "User:carol"), bytes(token.hmac)
    mismatch = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert (await renewed(carol, held))[0] == (await expired(carol, held))[0] == mismatch
    wrong = bytes(64)
    missing = ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert (await renewed(carol, wrong))[0] == (await expired(carol, b""))[0] == missing


@with_tokens
async def test_a_token_that_has_expired_is_not_shown_and_cannot_be_renewed(
    harness: BrokerHarness,
) -> None:
    alice = Client(harness, "User:alice")
    token = await created(alice)
    assert (await expired(alice, bytes(token.hmac), 0))[0] == 0
    assert await seen(alice) == []
    late = ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert (await renewed(alice, bytes(token.hmac)))[0] == late
    assert (await expired(alice, bytes(token.hmac)))[0] == late


@with_harness_of(kafka={**SETTINGS, "delegation.token.expiry.check.interval.ms": "5"})
async def test_expired_tokens_are_removed_from_the_store(harness: BrokerHarness) -> None:
    alice = Client(harness, "User:alice")
    kept = await created(alice)
    await created(alice, max_lifetime_ms=1)
    await harness.until(lambda: [*harness.services.image.tokens.by_id] == [kept.token_id])


EVERY: list[tuple[Request, type[Response]]] = [
    (CreateDelegationTokenRequest(max_lifetime_ms=-1), CreateDelegationTokenResponse),
    (RenewDelegationTokenRequest(b"x", -1), RenewDelegationTokenResponse),
    (ExpireDelegationTokenRequest(b"x", -1), ExpireDelegationTokenResponse),
    (DescribeDelegationTokenRequest(None), DescribeDelegationTokenResponse),
]


async def codes(client: Client) -> set[int]:
    found = set()
    for request, response in EVERY:
        for version in (1, 2):
            answer = await client.ask(request, version, response)
            found.add(answer.error_code)  # type: ignore[attr-defined]
    return found


@with_tokens
async def test_a_client_must_have_logged_in_itself(harness: BrokerHarness) -> None:
    """Not over PLAINTEXT, not as ANONYMOUS, and not with a token."""
    forbidden = {ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED}
    assert await codes(Client(harness, "User:ANONYMOUS")) == forbidden
    assert await codes(Client(harness, "User:alice", by_token=True)) == forbidden
    assert not harness.services.image.tokens.by_id


@with_harness
async def test_there_are_no_tokens_without_a_secret_key(harness: BrokerHarness) -> None:
    disabled = {ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED}
    assert await codes(Client(harness, "User:alice")) == disabled


@with_tokens
async def test_principals_that_are_no_users_are_refused(harness: BrokerHarness) -> None:
    """Without an authorizer everyone may create tokens for others."""
    alice = Client(harness, "User:alice")
    renewer = CreateDelegationTokenRequest.Renewer("Group", "admins")
    for request in (
        CreateDelegationTokenRequest(renewers=[renewer], max_lifetime_ms=-1),
        CreateDelegationTokenRequest("Group", "admins", [], -1),
        CreateDelegationTokenRequest(None, "bob", [], -1),
    ):
        answer = await alice.ask(request, 3, CreateDelegationTokenResponse)
        assert answer.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
    many = [
        CreateDelegationTokenRequest.Renewer("User", str(each)) for each in range(RENEWERS_MAX + 1)
    ]
    for request in (
        CreateDelegationTokenRequest(renewers=many, max_lifetime_ms=-1),
        CreateDelegationTokenRequest("User", "ANONYMOUS", [], -1),
    ):
        answer = await alice.ask(request, 3, CreateDelegationTokenResponse)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert not harness.services.image.tokens.by_id


@with_tokens
async def test_a_request_can_ask_for_the_tokens_of_some_users(harness: BrokerHarness) -> None:
    """Null means all, an empty list means none, as in Kafka."""
    alice, bob = Client(harness, "User:alice"), Client(harness, "User:bob")
    first = (await created(alice)).token_id
    second = (await created(bob, "alice")).token_id
    # Without an authorizer everyone sees everything.
    assert await seen(alice) == [first, second]
    assert await seen(alice, []) == []
    assert await seen(alice, [Owner("User", "bob")]) == [second]
    assert await seen(alice, [Owner("User", "alice")]) == [first, second]
    assert await seen(alice, [Owner("Group", "bob"), Owner("User", "carol")]) == []


@with_harness_of(kafka={**SETTINGS, "authorizer.class.name": "penstock", "super.users": "User:su"})
async def test_a_user_sees_tokens_that_concern_it_and_those_it_has_a_right_to(
    harness: BrokerHarness,
) -> None:
    alice, bob, admin = (Client(harness, f"User:{each}") for each in ("alice", "bob", "su"))
    mine, theirs = (await created(alice)).token_id, (await created(bob, "carol")).token_id
    assert await seen(alice) == [mine]
    assert await seen(alice, [Owner("User", "bob")]) == []
    assert await seen(Client(harness, "User:carol")) == [theirs]
    assert await seen(admin) == [mine, theirs]
    request = CreateDelegationTokenRequest("User", "alice", [], -1)
    made = await admin.ask(request, 3, CreateDelegationTokenResponse)
    assert (made.error_code, made.principal_name) == (0, "alice")
    assert made.token_requester_principal_name == "su"
    refused = await bob.ask(request, 3, CreateDelegationTokenResponse)
    assert refused.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert not refused.token_id and not refused.hmac
    mismatch = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert (await expired(admin, bytes(made.hmac)))[0] == mismatch


@with_harness_of(brokers=2, kafka=SETTINGS)
async def test_a_broker_with_an_old_image_removes_a_token_that_was_created_since(
    harness: BrokerHarness,
) -> None:
    """It must not say that there is no such token: clients could still log in with it."""
    late = harness.brokers[1].cluster
    late.image.apply = lambda *_: Changed()  # type: ignore[method-assign] # Its watch lags.
    token = await created(Client(harness, "User:alice"))
    code, _ = await expired(Client(harness, "User:alice", broker=1), bytes(token.hmac))
    assert code == 0
    assert not harness.services.image.tokens.by_id


@with_tokens
async def test_no_text_form_of_a_message_shows_an_hmac(harness: BrokerHarness) -> None:
    alice = Client(harness, "User:alice")
    token = await created(alice)
    request = DescribeDelegationTokenRequest(None)
    shown = repr(await alice.ask(request, 3, DescribeDelegationTokenResponse)) + repr(token)
    shown += repr(RenewDelegationTokenRequest(bytes(token.hmac), 1))
    assert token.token_id in shown
    for form in (bytes(token.hmac).hex(), repr(bytes(token.hmac))):
        assert form not in shown
