"""What a client is told beyond the codes of the table: names, ids, configs, operations."""

from __future__ import annotations

import asyncio

from broker.access.clients import AUTHORIZER, Client, create, delete, entry
from broker.harness import BrokerHarness, with_harness_of
from penstock.metadata.topic_ids import ZERO_ID
from penstock.security.acls import AclOperation, ResourceType
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    FetchRequest,
    FetchResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    MetadataRequest,
    MetadataResponse,
)

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
with_authorizer = with_harness_of(kafka=AUTHORIZER)


@with_authorizer
async def test_metadata_shows_no_id_for_a_name_and_no_name_for_an_id(
    harness: BrokerHarness,
) -> None:
    topic_id = await harness.create("t")
    client = Client(harness, "User:a")
    wanted = [
        MetadataRequest.Topic(name="t"),
        MetadataRequest.Topic(name="absent"),
        MetadataRequest.Topic(topic_id, None),
        MetadataRequest.Topic(b"\x07" * 16, None),
    ]
    request = MetadataRequest(wanted, include_topic_authorized_operations=True)
    response = await client.ask(request, 12, MetadataResponse)
    assert [(each.error_code, each.name, each.topic_id) for each in response.topics] == [
        (DENIED, "t", ZERO_ID),
        (DENIED, "absent", ZERO_ID),
        (DENIED, None, topic_id),
        (ErrorCode.UNKNOWN_TOPIC_ID, None, b"\x07" * 16),
    ]
    assert {each.topic_authorized_operations for each in response.topics} == {-(2**31)}


@with_authorizer
async def test_a_topic_is_created_by_metadata_only_with_the_right_to_create(
    harness: BrokerHarness,
) -> None:
    await create(
        harness,
        [
            entry("User:a", TOPIC, "new", AclOperation.DESCRIBE),
            entry("User:b", TOPIC, "new", AclOperation.DESCRIBE),
            entry("User:b", TOPIC, "new", AclOperation.CREATE),
        ],
    )
    request = MetadataRequest([MetadataRequest.Topic(name="new")])
    refused = await Client(harness, "User:a").ask(request, 12, MetadataResponse)
    assert refused.topics[0].error_code == DENIED
    allowed = await Client(harness, "User:b").ask(request, 12, MetadataResponse)
    assert allowed.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await harness.until(lambda: "new" in harness.services.image.topics)


@with_authorizer
async def test_a_creator_sees_configs_only_with_the_right_to_describe_them(
    harness: BrokerHarness,
) -> None:
    await create(harness, [entry("User:a", TOPIC, "t", AclOperation.CREATE)])
    asked = CreateTopicsRequest([CreateTopicsRequest.Topic("t", 2, 1)], validate_only=True)
    client = Client(harness, "User:a")
    topic = (await client.ask(asked, 7, CreateTopicsResponse)).topics[0]
    hidden = (topic.topic_config_error_code, topic.num_partitions, topic.configs)
    assert (topic.error_code, *hidden) == (0, DENIED, -1, [])
    await create(harness, [entry("User:a", TOPIC, "t", AclOperation.DESCRIBE_CONFIGS)])
    topic = (await client.ask(asked, 7, CreateTopicsResponse)).topics[0]
    assert (topic.error_code, topic.topic_config_error_code, topic.num_partitions) == (0, 0, 2)
    assert topic.configs


@with_authorizer
async def test_a_topic_that_is_deleted_by_id_is_named_only_to_those_who_may_describe_it(
    harness: BrokerHarness,
) -> None:
    topic_id = await harness.create("t")
    await create(harness, [entry("User:a", TOPIC, "t", AclOperation.DESCRIBE)])
    for user, shown in (("User:a", "t"), ("User:b", None)):
        named = [
            DeleteTopicsRequest.Topic(None, topic_id),
            DeleteTopicsRequest.Topic("t"),
            DeleteTopicsRequest.Topic(None, b"\x07" * 16),
        ]
        request = DeleteTopicsRequest(named)
        response = await Client(harness, user).ask(request, 6, DeleteTopicsResponse)
        assert [(each.name, each.error_code) for each in response.responses] == [
            (shown, DENIED),
            ("t", DENIED),
            (None, ErrorCode.UNKNOWN_TOPIC_ID),
        ]
    assert "t" in harness.services.image.topics


@with_authorizer
async def test_authorized_operations_come_from_the_acls(harness: BrokerHarness) -> None:
    await harness.create("t")
    await create(harness, [entry("User:a", TOPIC, "t", AclOperation.READ)])
    request = MetadataRequest(
        None,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    seen = await Client(harness, "User:a").ask(request, 10, MetadataResponse)
    assert seen.topics[0].topic_authorized_operations == 1 << 3 | 1 << 8
    assert seen.cluster_authorized_operations == 0
    asked = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert (
        await Client(harness, "User:a").ask(asked, 0, DescribeClusterResponse)
    ).cluster_authorized_operations == 0
    everything = await harness.ask(asked, 0, DescribeClusterResponse)
    assert everything.cluster_authorized_operations == 8096


@with_authorizer
async def test_a_client_cannot_pose_as_a_follower(harness: BrokerHarness) -> None:
    """A forged replica id neither moves the high watermark nor makes the connection a broker's."""
    topic_id = await harness.create("t")
    await create(harness, [entry("User:a", TOPIC, "t", AclOperation.ALL)])
    part = FetchRequest.Partition(0, 0, 0, partition_max_bytes=1 << 20)
    epoch = harness.broker.membership.broker_epoch
    request = FetchRequest(
        replica_state=FetchRequest.ReplicaState(0, epoch),
        max_bytes=1 << 20,
        session_epoch=0,
        topics=[FetchRequest.Topic(topic_id=topic_id, partitions=[part])],
    )
    response = await Client(harness, "User:a").ask(request, 17, FetchResponse)
    assert response.responses[0].partitions[0].error_code == DENIED
    assert not harness.services.fetch_sessions._followers


@with_harness_of(kafka={**AUTHORIZER, "group.initial.rebalance.delay.ms": "300"})
async def test_a_join_that_waits_is_refused_if_the_right_is_revoked_meanwhile(
    harness: BrokerHarness,
) -> None:
    allowed = entry("User:a", GROUP, "g", AclOperation.READ)
    await create(harness, [allowed])
    found = FindCoordinatorRequest(coordinator_keys=["g"])
    while True:
        answer = await harness.ask(found, 4, FindCoordinatorResponse)
        if not answer.coordinators[0].error_code:
            break
        await asyncio.sleep(0.002)
    await harness.until(lambda: bool(list(harness.services.groups.loaded())))
    protocol = JoinGroupRequest.Protocol("range", b"")
    join = JoinGroupRequest("g", 10_000, 10_000, protocol_type="consumer", protocols=[protocol])
    waiting = asyncio.create_task(Client(harness, "User:a").ask(join, 3, JoinGroupResponse))
    await asyncio.sleep(0)
    await delete(harness, [allowed])
    response = await waiting
    assert response.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


@with_harness_of(kafka={**AUTHORIZER, "allow.everyone.if.no.acl.found": "true"})
async def test_everyone_may_use_what_no_acl_names_if_the_setting_says_so(
    harness: BrokerHarness,
) -> None:
    await harness.create("free")
    await harness.create("named")
    await create(harness, [entry("User:b", TOPIC, "named", AclOperation.READ)])
    seen = await Client(harness, "User:a").ask(MetadataRequest(None), 12, MetadataResponse)
    assert [topic.name for topic in seen.topics] == ["free"]
