"""A broker records refusals, changes and logins, in its audit log and in the topic `__audit`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from broker.access.clients import AUTHORIZER, Client, create, entry
from broker.harness import NOW_MS, BrokerHarness, with_harness, with_harness_of
from penstock.metadata.model import AUDIT_TOPIC
from penstock.records.record import Record, build_batch
from penstock.security.acls import AclOperation, PermissionType, ResourceType
from penstock.security.audit import AuditEvent
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)

from .audited import read_log, read_topic, written

with_authorizer = with_harness_of(kafka=AUTHORIZER)


def produce_request(topic: str, value: bytes = b"v") -> ProduceRequest:
    data = ProduceRequest.Partition(0, bytes(build_batch([Record(0, NOW_MS, None, value)])))
    return ProduceRequest(None, -1, 1000, [ProduceRequest.Topic(topic, partition_data=[data])])


async def produce(client: Client, topic: str) -> int:
    response = await client.ask(produce_request(topic), 9, ProduceResponse)
    return response.responses[0].partition_responses[0].error_code


def of_user(events: Sequence[AuditEvent], user: str) -> list[tuple[str, str, str | None]]:
    return [(each.action, each.outcome, each.resource) for each in events if each.user == user]


@with_authorizer
async def test_a_refusal_is_recorded_with_the_rule(harness: BrokerHarness) -> None:
    await harness.create("orders")
    deny = entry(
        "User:alice", ResourceType.TOPIC, "orders", AclOperation.WRITE, PermissionType.DENY
    )
    await create(harness, [deny])
    assert await produce(Client(harness, "User:alice", client_id="shop"), "orders") == 29
    (event,) = [each for each in await written(harness) if each.user == "alice"]
    assert (event.action, event.outcome) == ("access.write", "denied")
    assert (event.resource, event.address) == ("topic:orders", "192.0.2.7")
    assert event.rule is not None and "DENY WRITE on TOPIC 'orders'" in event.rule
    assert (event.request_id, event.client_id) == ("Produce 1", "shop")


@with_authorizer
async def test_a_flood_of_refusals_is_combined(harness: BrokerHarness) -> None:
    client = Client(harness, "User:mallory")
    for _ in range(300):
        assert await produce(client, "orders") == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    events = [each for each in await written(harness) if each.user == "mallory"]
    assert len(events) == 2
    assert sum(each.count for each in events) == 300


@with_authorizer
async def test_lists_that_leave_out_topics_are_not_refusals(harness: BrokerHarness) -> None:
    await harness.create("orders")
    client = Client(harness, "User:alice")
    everything = await client.ask(MetadataRequest(None), 12, MetadataResponse)
    assert everything.topics == []
    assert of_user(await written(harness), "alice") == []
    asked = MetadataRequest([MetadataRequest.Topic(name="orders")])
    await client.ask(asked, 12, MetadataResponse)
    assert of_user(await written(harness), "alice") == [
        ("access.describe", "denied", "topic:orders")
    ]


@with_authorizer
async def test_changes_are_recorded_without_values(harness: BrokerHarness) -> None:
    await harness.create("orders", 3, {"retention.ms": "987654321"})
    config = IncrementalAlterConfigsRequest.Config("retention.bytes", 0, "123456789")
    resource = IncrementalAlterConfigsRequest.Resource(2, "orders", [config])
    altered = await harness.ask(
        IncrementalAlterConfigsRequest([resource]), 1, IncrementalAlterConfigsResponse
    )
    assert altered.responses[0].error_code == 0
    await create(harness, [entry("User:bob", ResourceType.TOPIC, "orders", AclOperation.READ)])
    salted = b"salted password of 32 bytes or so"
    upsertion = AlterUserScramCredentialsRequest.Upsertion("bob", 1, 4096, b"a salt", salted[:32])
    await harness.ask(
        AlterUserScramCredentialsRequest([], [upsertion]), 0, AlterUserScramCredentialsResponse
    )
    again = CreateTopicsRequest([CreateTopicsRequest.Topic("orders", 1, 1)])
    await harness.ask(again, 7, CreateTopicsResponse)
    gone = DeleteTopicsRequest([DeleteTopicsRequest.Topic("orders")])
    await harness.ask(gone, 6, DeleteTopicsResponse)
    events = await written(harness)
    assert [(each.action, each.outcome, each.resource, each.detail) for each in events] == [
        ("topic.create", "allowed", "topic:orders", "3 partitions"),
        ("config.alter", "allowed", "topic:orders", "retention.bytes"),
        (
            "acl.create",
            "allowed",
            "topic:orders",
            "ALLOW READ on TOPIC 'orders' for 'User:bob' from any host",
        ),
        ("user.alter", "allowed", "user:bob", "mechanism SCRAM-SHA-256"),
        ("topic.create", "failed", "topic:orders", "1 partitions"),
        ("topic.delete", "allowed", "topic:orders", "all partitions"),
    ]
    assert events[4].rule == "TOPIC_ALREADY_EXISTS"
    text = read_log(harness.disks[0])
    assert all(secret not in text for secret in ("987654321", "123456789", "salted", "a salt"))


@with_authorizer
async def test_a_request_that_fails_as_a_whole_is_recorded(harness: BrokerHarness) -> None:
    """Without the right only the refusal of the right is recorded."""
    client = Client(harness, "User:alice")
    deletion = AlterUserScramCredentialsRequest.Deletion("bob", 1)
    request = AlterUserScramCredentialsRequest([deletion], [])
    await client.ask(request, 0, AlterUserScramCredentialsResponse)
    await harness.ask(request, 0, AlterUserScramCredentialsResponse)
    events = await written(harness)
    assert [(each.user, each.action, each.outcome) for each in events] == [
        ("alice", "access.alter", "denied"),
        ("ANONYMOUS", "user.delete", "failed"),
    ]
    assert events[1].rule == "RESOURCE_NOT_FOUND"


@pytest.mark.parametrize("client_id", ["harness", "__admin_client", AUDIT_TOPIC])
def test_no_client_can_write_to_the_topic(
    client_id: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Not even one with all rights on topics."""

    @with_authorizer
    async def scenario(harness: BrokerHarness) -> None:
        await create(harness, [entry("User:eve", ResourceType.TOPIC, "*", AclOperation.ALL)])
        await written(harness)
        client = Client(harness, "User:eve", client_id=client_id)
        assert await produce(client, AUDIT_TOPIC) == ErrorCode.INVALID_TOPIC_EXCEPTION
        gone = DeleteTopicsRequest([DeleteTopicsRequest.Topic(AUDIT_TOPIC)])
        deleted = await client.ask(gone, 6, DeleteTopicsResponse)
        assert deleted.responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert all('"eve"' in line or "User:eve" in line for line in read_topic(harness))

    scenario(tmp_path_factory.mktemp("broker"))


@with_authorizer
async def test_the_topic_is_internal_and_has_its_own_retention(harness: BrokerHarness) -> None:
    asked = CreateTopicsRequest([CreateTopicsRequest.Topic(AUDIT_TOPIC, 1, 1)])
    made = await harness.ask(asked, 7, CreateTopicsResponse)
    assert made.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    await harness.create("orders")
    await written(harness)
    topic = harness.services.image.topics[AUDIT_TOPIC]
    assert topic.is_internal
    assert topic.configs["retention.ms"] == str(90 * 24 * 3_600_000)
    assert topic.configs["cleanup.policy"] == "delete"


@with_harness_of(kafka=AUTHORIZER | {"audit.allowed.operations": "true"})
async def test_allowed_operations_are_recorded_if_a_setting_says_so(harness: BrokerHarness) -> None:
    """Equal ones are combined."""
    await harness.create("orders")
    await create(harness, [entry("User:bob", ResourceType.TOPIC, "orders", AclOperation.DESCRIBE)])
    client = Client(harness, "User:bob")
    asked = MetadataRequest([MetadataRequest.Topic(name="orders")])
    for _ in range(5):
        assert (await client.ask(asked, 12, MetadataResponse)).topics[0].error_code == 0
    events = [each for each in await written(harness) if each.user == "bob"]
    assert {(each.action, each.outcome) for each in events} == {("access.describe", "allowed")}
    assert len(events) == 2
    assert events[0].rule == (
        "allowed: ALLOW DESCRIBE on TOPIC 'orders' for 'User:bob' from any host"
    )


@with_harness
async def test_without_an_authorizer_and_logins_nothing_is_recorded(harness: BrokerHarness) -> None:
    await harness.create("orders")
    await harness.broker.audit.finish()
    assert harness.broker.audit.recorded == 0
    assert read_log(harness.disks[0]) == ""
    assert AUDIT_TOPIC not in harness.services.image.topics


class Untouchable:
    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"the fast path uses {name} of the audit record")


@with_authorizer
async def test_the_produce_fast_path_never_touches_the_audit_record(harness: BrokerHarness) -> None:
    await harness.create("orders")
    await create(harness, [entry("User:bob", ResourceType.TOPIC, "orders", AclOperation.WRITE)])
    client = Client(harness, "User:bob")
    assert await produce(client, "orders") == 0
    audit = harness.services.audit
    harness.services.audit = Untouchable()  # type: ignore[assignment]
    try:
        for _ in range(3):
            assert await produce(client, "orders") == 0
    finally:
        harness.services.audit = audit
    assert harness.hosted("orders").log.end_offset == 4
