"""A right that was revoked is gone everywhere when the revocation is acknowledged."""

from __future__ import annotations

import asyncio

import pytest
from pytest import MonkeyPatch

from broker.access.clients import AUTHORIZER, Client, create, delete, entry, filter_of
from broker.harness import NOW_MS, BrokerHarness, with_harness_of
from penstock.broker.access import authorization
from penstock.metadata.acls import unconfirmed
from penstock.metadata.image import Changed
from penstock.records.record import Record, build_batch
from penstock.security.acls import AclOperation, PermissionType, ResourceType
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode, ProtocolError
from penstock.wire.messages import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)

TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
READ, WRITE, DENY = AclOperation.READ, AclOperation.WRITE, PermissionType.DENY
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
ALICE = "User:alice"
with_authorizer = with_harness_of(kafka=AUTHORIZER)
with_three = with_harness_of(brokers=3, kafka=AUTHORIZER)


def produce(
    topic: str, *, transactional_id: str | None = None, acks: int = -1, **batch: int
) -> ProduceRequest:
    # The caller passes names that `build_batch` has.
    records = build_batch([Record(0, NOW_MS, None, b"v")], **batch)  # type: ignore[arg-type]
    data = [ProduceRequest.Partition(0, records)]
    topics = [ProduceRequest.Topic(topic, partition_data=data)]
    return ProduceRequest(transactional_id, acks, 5000, topics)


async def produced(client: Client, request: ProduceRequest, version: int = 9) -> int:
    response = await client.ask(request, version, ProduceResponse)
    return response.responses[0].partition_responses[0].error_code


def fetch(topic: str, *, session: tuple[int, int] = (0, -1), wait_ms: int = 0) -> FetchRequest:
    part = FetchRequest.Partition(0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [] if session[1] > 0 else [FetchRequest.Topic(topic, partitions=[part])]
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session[0],
        session_epoch=session[1],
        topics=topics,
    )


@with_authorizer
async def test_a_deny_applies_to_a_live_fetch_session(harness: BrokerHarness) -> None:
    await harness.create("t")
    await create(harness, [entry(ALICE, TOPIC, "t", READ)])
    alice = Client(harness, ALICE)
    first = await alice.ask(fetch("t", session=(0, 0)), 12, FetchResponse)
    assert first.session_id and first.responses[0].partitions[0].error_code == 0
    await create(harness, [entry(ALICE, TOPIC, "t", READ, DENY)])
    await harness.produce("t", [b"secret"])
    again = await alice.ask(fetch("t", session=(first.session_id, 1)), 12, FetchResponse)
    part = again.responses[0].partitions[0]
    assert (part.error_code, part.records, part.high_watermark) == (DENIED, b"", -1)


@with_authorizer
async def test_a_fetch_that_waits_returns_nothing_after_the_revocation(
    harness: BrokerHarness,
) -> None:
    await harness.create("t")
    allowed = entry(ALICE, TOPIC, "t", READ)
    await create(harness, [allowed])
    alice = Client(harness, ALICE)
    waiting = asyncio.create_task(alice.ask(fetch("t", wait_ms=60_000), 12, FetchResponse))
    await harness.until(lambda: bool(harness.hosted("t")._commit_listeners))
    await delete(harness, [allowed])
    await harness.produce("t", [b"secret"])
    part = (await waiting).responses[0].partitions[0]
    assert (part.error_code, part.records) == (DENIED, b"")


@with_authorizer
async def test_the_produce_fast_path_ends_with_the_right(harness: BrokerHarness) -> None:
    await harness.create("t")
    allowed = entry(ALICE, TOPIC, "t", WRITE)
    await create(harness, [allowed])
    alice = Client(harness, ALICE)
    for _ in range(3):
        assert await produced(alice, produce("t")) == 0
    await delete(harness, [allowed])
    for _ in range(2):
        assert await produced(alice, produce("t")) == DENIED
    assert harness.hosted("t").log.end_offset == 3
    await create(harness, [allowed])
    assert await produced(alice, produce("t")) == 0


@with_authorizer
async def test_a_transactional_batch_needs_the_right_to_its_id_on_the_fast_path_too(
    harness: BrokerHarness,
) -> None:
    await harness.create("t")
    await create(harness, [entry(ALICE, TOPIC, "t", WRITE)])
    alice = Client(harness, ALICE)
    assert await produced(alice, produce("t")) == 0
    forged = produce("t", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    expected = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert await produced(alice, forged) == expected
    forged.transactional_id = "x"
    assert await produced(alice, forged) == expected
    assert await produced(alice, produce("t")) == 0


@with_authorizer
async def test_only_a_broker_may_write_to_internal_topics_by_the_tools_client_id(
    harness: BrokerHarness,
) -> None:
    await harness.create("__consumer_offsets")
    await create(harness, [entry(ALICE, TOPIC, "*", AclOperation.ALL)])
    tool = Client(harness, ALICE, client_id="__admin_client")
    assert await produced(tool, produce("__consumer_offsets")) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert await produced(Client(harness, "User:none"), produce("__consumer_offsets")) == DENIED


@with_three
async def test_a_change_is_answered_when_all_brokers_have_applied_it(
    harness: BrokerHarness,
) -> None:
    clients = [Client(harness, ALICE, broker=number) for number in range(3)]
    await harness.create("t")
    allowed = entry(ALICE, TOPIC, "t", READ)
    for number in range(6):
        await create(harness, [allowed], broker=number % 3)
        assert [await sees(client) for client in clients] == [True] * 3
        await delete(harness, [allowed], broker=(number + 1) % 3)
        assert [await sees(client) for client in clients] == [False] * 3
    for broker in harness.brokers:
        await broker.cluster.catch_up()
        image = broker.cluster.image
        assert unconfirmed(image, image.acl_revision) == []


async def sees(client: Client) -> bool:
    response = await client.ask(MetadataRequest(None), 12, MetadataResponse)
    return bool(response.topics)


@with_three
async def test_a_broker_that_does_not_confirm_is_named(harness: BrokerHarness) -> None:
    late = harness.brokers[2].authorization
    held, blocked = late.refresh, asyncio.Event()

    async def stuck() -> None:
        await blocked.wait()
        await held()

    # Broker 2 sees the change, but is slow to apply it.
    late.refresh = stuck  # type: ignore[method-assign]
    with MonkeyPatch.context() as patch:
        patch.setattr(authorization, "CONFIRM_TIMEOUT_S", patient(4.0))
        request = CreateAclsRequest([entry(ALICE, TOPIC, "t", READ)])
        answer = (await harness.ask(request, 3, CreateAclsResponse)).results[0]
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "The change is made" in (answer.error_message or "")
        assert "old ACLs: 2." in (answer.error_message or "")
    blocked.set()
    await create(harness, request.creations)  # Now it waits until broker 2 has it.
    assert (
        unconfirmed(harness.broker.cluster.image, harness.broker.cluster.image.acl_revision) == []
    )


@with_three
async def test_a_change_does_not_wait_for_a_broker_that_has_lost_its_lease(
    harness: BrokerHarness,
) -> None:
    """That broker knows it, and refuses clients."""
    await harness.create("t")
    allowed = entry(ALICE, TOPIC, "t", READ)
    await create(harness, [allowed])
    lost = harness.brokers[2]
    never = asyncio.Event()

    async def stuck() -> None:
        await never.wait()

    # Broker 2 does not apply the change.
    lost.authorization.refresh = stuck  # type: ignore[method-assign]
    deleting = asyncio.create_task(delete(harness, [allowed]))
    image = harness.broker.cluster.image
    before = image.acl_revision
    await harness.until(lambda: image.acl_revision > before)
    await harness.until(lambda: unconfirmed(image, image.acl_revision) == [2])
    assert not deleting.done()
    await lost.membership.leave()
    await deleting
    assert lost.authorization.is_fenced()
    with pytest.raises(ProtocolError, match="cannot list the topics"):
        await sees(Client(harness, ALICE, broker=2))


@with_three
async def test_a_broker_with_an_old_image_revokes_what_was_given_since(
    harness: BrokerHarness,
) -> None:
    """It knows of nothing to delete, but must not say that it is done: the right exists."""
    late, allowed = harness.brokers[2].cluster, entry(ALICE, TOPIC, "t", READ)
    late.image.apply = lambda *_: Changed()  # type: ignore[method-assign] # Its watch lags.
    with MonkeyPatch.context() as patch:
        patch.setattr(authorization, "CONFIRM_TIMEOUT_S", patient(4.0))
        await harness.ask(CreateAclsRequest([allowed]), 3, CreateAclsResponse)
    request = DeleteAclsRequest([filter_of(allowed)])
    answer = await harness.ask(request, 3, DeleteAclsResponse, broker=2)
    assert [len(each.matching_acls) for each in answer.filter_results] == [1]


@with_authorizer
async def test_a_broker_whose_lease_may_be_over_serves_super_users_only(
    harness: BrokerHarness,
) -> None:
    await harness.create("t")
    await create(harness, [entry(ALICE, TOPIC, "t", AclOperation.ALL)])
    alice = Client(harness, ALICE)
    assert await produced(alice, produce("t")) == 0
    membership = harness.broker.membership
    held, membership._session_timeout_s = membership._session_timeout_s, 0.0
    assert await produced(alice, produce("t")) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    answer = await alice.ask(fetch("t"), 12, FetchResponse)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    beat = await alice.ask(HeartbeatRequest("g"), 4, HeartbeatResponse)
    assert beat.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    metadata = await alice.ask(
        MetadataRequest([MetadataRequest.Topic(name="t")]), 12, MetadataResponse
    )
    assert metadata.topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert [broker.node_id for broker in metadata.brokers] == [0]
    await harness.produce("t", [b"of a super user"])
    membership._session_timeout_s = held
    assert await produced(alice, produce("t")) == 0


@with_harness_of()
async def test_without_an_authorizer_a_lease_that_may_be_over_changes_nothing(
    harness: BrokerHarness,
) -> None:
    await harness.create("t")
    membership = harness.broker.membership
    held, membership._session_timeout_s = membership._session_timeout_s, 0.0
    assert await produced(Client(harness, ALICE), produce("t")) == 0
    membership._session_timeout_s = held


@with_authorizer
async def test_a_broker_serves_only_when_its_acls_are_as_new_as_its_registration(
    harness: BrokerHarness,
) -> None:
    await harness.create("t")
    await create(harness, [entry(ALICE, TOPIC, "t", WRITE)])
    alice, held = Client(harness, ALICE), harness.services.authorization
    assert await produced(alice, produce("t")) == 0
    membership, image = harness.broker.membership, harness.services.image
    before, membership.broker_epoch = membership.broker_epoch, image.revision + 1
    assert await produced(alice, produce("t")) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    membership.broker_epoch = image.revision
    held._seen_changes += 1  # The image has other ACLs than those in force ...
    assert await produced(alice, produce("t")) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await held.refresh()  # ... until they are applied.
    assert await produced(alice, produce("t")) == 0
    membership.broker_epoch = before


@with_authorizer
async def test_a_broker_that_leaves_the_cluster_is_fenced(harness: BrokerHarness) -> None:
    assert not harness.services.authorization.is_fenced()
    harness.broker.membership._leaving = True
    assert harness.services.authorization.is_fenced()
    harness.broker.membership._leaving = False
