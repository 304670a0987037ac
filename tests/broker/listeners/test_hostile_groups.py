"""Hostile clients of a whole broker, by group. The numbers are those of the list of attacks.

| group | attack                         | end to end, here              | in detail               |
|-------|--------------------------------|-------------------------------|-------------------------|
| 1     | frame lengths, slow bytes,     | test_bad_lengths_...,         | net/test_tls_gate*,     |
|       | half-open logins               | test_slow_..., test_many_...  | test_hostile_logins     |
| 2     | requests before the login      | test_produce_before_...       | test_sasl_login         |
| 3     | SCRAM                          | test_scram_...                | security/test_scram_*   |
| 4     | tokens                         | test_bad_tokens_...           | security/test_tokens    |
| 5     | re-authentication              | test_requests_in_flight_...   | test_sasl_login         |
| 6     | certificates of clients        | test_bad_certificates_...     | net/test_tls            |
| 7     | a bad certificate at a reload  | test_a_bad_reload_...         | net/test_tls            |
| 8     | a DENY for a live fetch        | test_a_deny_...               | access/test_revocation  |
| 9     | what exists                    | test_absent_and_forbidden_... | access/test_rights,     |
|       |                                |                               | test_refusal_work       |
| 10    | requests of brokers            | test_requests_of_brokers_...  | access/test_rights      |
| 11    | empty prefix, mapped addresses | test_an_empty_prefix_...,     | security/test_acls      |
|       |                                | test_a_mapped_address_...     |                         |
| 12    | quotas that are no numbers     | -                             | security/test_quotas    |
| 13    | long client ids                | test_a_long_client_id_...     | -                       |
| 14    | a user deleted while connected | test_sasl_login               | security/test_sasl_*    |

The tests with sockets are in `test_hostile_sockets`.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from broker.access.clients import AUTHORIZER, create, entry
from broker.access.test_revocation import ALICE, DENIED, DENY, READ, TOPIC, fetch, produce
from broker.harness import BrokerHarness, open_harness, with_harness_of
from penstock.broker.metrics.scrape import Scrapes
from penstock.security.acls import AclOperation, PatternType, ResourceType
from penstock.security.oauthbearer import client_message as token_message
from penstock.security.scram import ScramClient, nonce_text
from penstock.security.scram_credentials import ScramMechanism
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode, ProtocolError
from penstock.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from security.signed_tokens import CLAIMS, base64url, encode, jwk, make

from .connections import SASL_SETTINGS, Connection, add_user
from .test_hostile_logins import login_service

PASSWORD = "correct horse"
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED
with_logins = with_harness_of(kafka=SASL_SETTINGS)
with_access = with_harness_of(kafka=SASL_SETTINGS | AUTHORIZER)


async def logged_in(harness: BrokerHarness, user: str = "alice", host: str = "") -> Connection:
    await add_user(harness, user, PASSWORD)
    connection = Connection(harness)
    connection.host = host or connection.host
    assert (await connection.scram(user, PASSWORD)).error_code == 0
    return connection


@with_logins
async def test_many_half_open_logins_end_at_their_deadline(harness: BrokerHarness) -> None:
    """Group 1. No timer and no task stays."""
    object.__setattr__(login_service(harness).settings, "deadline_ms", 200)
    tasks = len(asyncio.all_tasks())
    half = [Connection(harness) for _ in range(1000)]
    for each in half[::2]:
        # On a busy machine, some have ended before their turn.
        with suppress(ProtocolError):
            await each.shake("SCRAM-SHA-256")
    await harness.until(lambda: all(each.is_closed for each in half))
    assert all(each.session._timer is None for each in half)  # type: ignore[attr-defined]
    assert len(asyncio.all_tasks()) <= tasks + 1


@with_logins
async def test_produce_before_the_login_writes_nothing(harness: BrokerHarness) -> None:
    """Group 2."""
    await harness.create("t")
    with pytest.raises(ProtocolError, match="before authentication"):
        await Connection(harness).ask(produce("t"), 9, ProduceResponse)
    during = Connection(harness)
    await during.shake("PLAIN")
    answer = await during.ask(produce("t"), 9, ProduceResponse)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert harness.hosted("t").log.end_offset == 0


@with_logins
async def test_scram_messages_cannot_be_replayed_or_changed(harness: BrokerHarness) -> None:
    """Group 3."""
    await add_user(harness, "alice", PASSWORD)
    client = ScramClient(ScramMechanism.SHA_256, "alice", PASSWORD, nonce_text(bytes(24)))
    recorded = Connection(harness)
    await recorded.shake("SCRAM-SHA-256")
    first = await recorded.token(client.first())
    final = client.final(client.on_server_first(bytes(first.auth_bytes)).run())
    assert (await recorded.token(final)).error_code == 0
    replay = Connection(harness)
    await replay.shake("SCRAM-SHA-256")
    again = await replay.token(client.first())
    assert bytes(again.auth_bytes) != bytes(first.auth_bytes)
    assert (await replay.token(final)).error_code == FAILED
    for message in (
        b"n,a=bob,n=alice,r=abcdefghijkl",
        b"p=tls-unique,,n=alice,r=abcdefghijkl",
        b"n,,n=alice,r=",
        b"n,,n=al=ice,r=abcdefghijkl",
        b"n,,m=x,n=alice,r=abcdefghijkl",
        b"",
    ):
        bad = Connection(harness)
        await bad.shake("SCRAM-SHA-256")
        assert (await bad.token(message)).error_code == FAILED
        assert bad.is_closed


@with_logins
async def test_scram_names_with_signs_of_the_protocol_are_users(harness: BrokerHarness) -> None:
    """Group 3: a comma and an equals sign in a name are escaped."""
    connection = await logged_in(harness, "a,n=admin=2C")
    principal = connection.session._identity.principal  # type: ignore[attr-defined]
    assert principal == "User:a,n=admin=2C"


def token_settings(keys: Path) -> dict[str, str]:
    prefix = "listener.name.login.oauthbearer.sasl.oauthbearer."
    return SASL_SETTINGS | {
        "listener.name.login.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{prefix}jwks.endpoint.url": f"file://{keys}",
        f"{prefix}expected.issuer": CLAIMS["iss"],
        f"{prefix}expected.audience": CLAIMS["aud"],
    }


async def token_login(harness: BrokerHarness, token: bytes) -> int:
    """Returns the error of a login with this token."""
    connection = Connection(harness)
    await connection.shake("OAUTHBEARER")
    first = await connection.token(token_message(token.decode()))
    if first.error_code == 0 and first.auth_bytes:
        assert json.loads(bytes(first.auth_bytes))["status"] == "invalid_token"
        first = await connection.token(b"\x01")
        assert connection.is_closed
    return first.error_code


def bad_tokens(now_s: int) -> list[bytes]:
    good = {**CLAIMS, "iat": now_s - 10, "exp": now_s + 600}
    text = json.dumps(good)

    def changed(**claims: Any) -> bytes:
        kept = {**good, **claims}
        return make({name: value for name, value in kept.items() if value is not None})

    return [
        encode('{"alg":"none"}', text, lambda _: b""),
        encode('{"alg":"none","kid":"k1"}', text, lambda _: b"x"),
        encode('{"alg":"HS256","kid":"k1"}', text, lambda data: data[:32]),
        changed(exp=str(now_s + 600)),
        changed(iat=None),
        changed(exp=None),
        changed(exp=now_s - 31),
        changed(iss="https://other.example"),
        changed(aud="other"),
        changed(sub=""),
        *(make(good, kid=f"unknown-{number}") for number in range(20)),
        make(good, kid="k" * 5000),
        base64url(b"{}").encode(),
    ]


@pytest.mark.parametrize("keys_exist", [True, False])
def test_bad_tokens_are_refused(tmp_path: Path, keys_exist: bool) -> None:
    """Group 4. Also while the keys of the issuer cannot be read."""
    keys = tmp_path / "keys.json"
    if keys_exist:
        keys.write_text(json.dumps({"keys": [jwk("RS256")]}))

    async def run() -> None:
        async with (
            asyncio.timeout(patient(100)),
            open_harness(tmp_path, kafka=token_settings(keys)) as harness,
        ):
            now_s = login_service(harness).clock.wall_ms() // 1000
            for token in bad_tokens(now_s):
                assert await token_login(harness, token) == FAILED
            good = make({**CLAIMS, "iat": now_s - 10, "exp": now_s + 600})
            assert await token_login(harness, good) == (0 if keys_exist else FAILED)

    asyncio.run(run())


@with_harness_of(kafka=SASL_SETTINGS | {"connections.max.reauth.ms": "3600000"})
async def test_requests_in_flight_at_the_expiry_are_answered(harness: BrokerHarness) -> None:
    """Group 5. The next one closes the connection."""
    await harness.create("t")
    connection = await logged_in(harness)
    waits = asyncio.create_task(connection.ask(fetch("t", wait_ms=300), 12, FetchResponse))
    await asyncio.sleep(0)
    connection.session._machine._expires_ms = 0  # type: ignore[attr-defined]
    with pytest.raises(ProtocolError, match="expired"):
        await connection.ask(MetadataRequest([]), 12, MetadataResponse)
    assert (await waits).responses[0].partitions[0].error_code == 0


@with_access
async def test_a_deny_ends_a_live_fetch_session(harness: BrokerHarness) -> None:
    """Group 8, for a user that has logged in."""
    await harness.create("t")
    await create(harness, [entry(ALICE, TOPIC, "t", READ)])
    alice = await logged_in(harness)
    first = await alice.ask(fetch("t", session=(0, 0)), 12, FetchResponse)
    assert first.responses[0].partitions[0].error_code == 0
    await create(harness, [entry(ALICE, TOPIC, "t", READ, DENY)])
    again = await alice.ask(fetch("t", session=(first.session_id, 1)), 12, FetchResponse)
    assert again.responses[0].partitions[0].error_code == DENIED


@with_access
async def test_absent_and_forbidden_topics_look_the_same(harness: BrokerHarness) -> None:
    """Group 9."""
    await harness.create("there")
    alice = await logged_in(harness)
    seen: list[Any] = []
    for name in ("there", "gone"):
        topics = [MetadataRequest.Topic(name=name)]
        found = await alice.ask(MetadataRequest(topics, False), 12, MetadataResponse)
        removal = DeleteTopicsRequest([DeleteTopicsRequest.Topic(name)], [], 1000)
        removed = await alice.ask(removal, 6, DeleteTopicsResponse)
        written = await alice.ask(produce(name), 9, ProduceResponse)
        topic, answer = found.topics[0], written.responses[0].partition_responses[0]
        seen.append(
            (
                (topic.error_code, bytes(topic.topic_id), topic.partitions),
                (removed.responses[0].error_code, removed.responses[0].error_message),
                (answer.error_code, answer.base_offset, answer.error_message),
            )
        )
    assert seen[0] == seen[1]
    assert seen[0][0][0] == DENIED


@with_access
async def test_requests_of_brokers_are_refused_to_clients(harness: BrokerHarness) -> None:
    """Group 10."""
    alice = await logged_in(harness)
    marker = WriteTxnMarkersRequest.Marker(1, 0, True, [WriteTxnMarkersRequest.Topic("t", [0])], 0)
    answer = await alice.ask(WriteTxnMarkersRequest([marker]), 1, WriteTxnMarkersResponse)
    codes = {p.error_code for m in answer.markers for t in m.topics for p in t.partitions}
    assert codes == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    verify = AddPartitionsToTxnRequest(
        transactions=[AddPartitionsToTxnRequest.Transaction("x", 1, 0, True, [])]
    )
    added = await alice.ask(verify, 4, AddPartitionsToTxnResponse)
    assert added.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    for key in (58, 83, 84, 85, 86, 87):
        with pytest.raises(ProtocolError, match="not supported"):
            await alice.exchange(key.to_bytes(2, "big") + bytes(30))


@with_access
async def test_an_empty_prefix_is_no_acl(harness: BrokerHarness) -> None:
    """Group 11: it would be for everything."""
    whole = entry(ALICE, TOPIC, "", AclOperation.ALL, pattern_type=PatternType.PREFIXED)
    answer = await harness.ask(CreateAclsRequest([whole]), 3, CreateAclsResponse)
    assert answer.results[0].error_code == ErrorCode.INVALID_REQUEST


@with_access
async def test_a_mapped_address_is_the_address(harness: BrokerHarness) -> None:
    """Group 11: a client cannot avoid a DENY by IPv6."""
    await harness.create("t")
    deny = entry(ALICE, ResourceType.TOPIC, "t", READ, DENY, host="192.0.2.1")
    await create(harness, [entry(ALICE, TOPIC, "t", READ), deny])
    for host, code in (("::ffff:192.0.2.1", DENIED), ("192.0.2.1", DENIED), ("192.0.2.2", 0)):
        alice = await logged_in(harness, host=host)
        answer = await alice.ask(fetch("t"), 12, FetchResponse)
        assert answer.responses[0].partitions[0].error_code == code, host


@with_logins
async def test_a_long_client_id_is_in_no_metric(harness: BrokerHarness) -> None:
    """Group 13. Nor is the name of a client's software."""
    connection = await logged_in(harness)
    request = ApiVersionsRequest("s" * 30_000, "1")
    answer = await connection.ask(request, 3, ApiVersionsResponse)
    assert answer.error_code in (0, ErrorCode.INVALID_REQUEST)
    long = Connection(harness)
    frame = b"\0\x12\0\0\0\0\0\1" + (32_767).to_bytes(2, "big") + b"c" * 32_767
    assert await long.exchange(frame) is not None
    scraped = await Scrapes(harness.broker._env, harness.broker).scrape()
    assert b"penstock" in scraped[1]
    assert b"c" * 100 not in scraped[1] and b"s" * 100 not in scraped[1]
