"""Tests the admin coroutines: topics, configs, offsets and groups."""

from __future__ import annotations

from typing import Any

import pytest

from client.fake_broker import FakeBroker
from client.fake_model import Group, Member
from client.open_clusters import with_cluster
from penstock.client.admin import groups, offsets, operations
from penstock.client.cluster import Cluster
from penstock.client.errors import BrokerError, TopicNotFound
from penstock.metadata.config_types import ConfigSource
from penstock.records.record import Record, build_batch
from penstock.topic_partition import TopicPartition
from penstock.wire.api import ApiKey
from penstock.wire.codec import encode_embedded
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ConsumerProtocolAssignment, CreateTopicsRequest

OLD = {
    ApiKey.METADATA: (0, 4),
    ApiKey.DELETE_TOPICS: (1, 3),
    ApiKey.OFFSET_FETCH: (1, 5),
    ApiKey.FIND_COORDINATOR: (0, 2),
    ApiKey.DESCRIBE_GROUPS: (0, 4),
    ApiKey.CREATE_TOPICS: (2, 4),
    ApiKey.LIST_OFFSETS: (1, 3),
}
TOPIC_PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]


@pytest.fixture(params=[{}, OLD], ids=["new broker", "old broker"])
def broker(request: pytest.FixtureRequest) -> Any:
    with FakeBroker(versions=request.param) as fake:
        yield fake


def test_the_lifecycle_of_a_topic(broker: FakeBroker) -> None:
    """Created, listed, described, extended, configured and deleted; on old brokers too."""

    async def work(cluster: Cluster) -> None:
        new = operations.NewTopic("orders", 2, configs={"retention.ms": "5"})
        created = await operations.create_topic(cluster, new)
        assert created.name == "orders"
        assert [topic.name for topic in await operations.list_topics(cluster)] == ["orders"]
        await operations.create_partitions(cluster, "orders", 3)
        described = (await operations.describe_topics(cluster, ["orders", "nope"])).values()
        found, missing = described
        assert isinstance(found, operations.TopicInfo)
        assert [partition.index for partition in found.partitions] == [0, 1, 2]
        assert found.replication_factor == 1
        assert isinstance(missing, TopicNotFound)
        kind = operations.ResourceType.TOPIC
        await operations.alter_configs(
            cluster, kind, "orders", set_values={"a": "b"}, delete=["retention.ms"]
        )
        configs = {
            each.name: each for each in await operations.describe_configs(cluster, kind, "orders")
        }
        assert configs["a"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG
        assert configs["retention.ms"].is_default
        outcomes = await operations.delete_topics(cluster, ["orders", "nope"])
        assert outcomes["orders"] is None
        assert isinstance(outcomes["nope"], TopicNotFound)
        assert await operations.list_topics(cluster) == []

    with_cluster(broker, work)


def test_defaults_of_a_new_topic_are_left_to_the_broker(fake: FakeBroker) -> None:
    """Partitions and replication factor are sent as -1."""

    async def work(cluster: Cluster) -> None:
        await operations.create_topic(cluster, operations.NewTopic("orders"))

    with_cluster(fake, work)
    asked: list[CreateTopicsRequest] = fake.asked(ApiKey.CREATE_TOPICS)
    assert (asked[0].topics[0].num_partitions, asked[0].topics[0].replication_factor) == (-1, -1)


def test_a_missing_topic_is_named_in_the_error(fake: FakeBroker) -> None:
    """By every function that concerns one topic."""

    async def configs(cluster: Cluster) -> None:
        await operations.describe_configs(cluster, operations.ResourceType.TOPIC, "nope")

    async def alter(cluster: Cluster) -> None:
        await operations.alter_configs(
            cluster, operations.ResourceType.TOPIC, "nope", set_values={"a": "b"}
        )

    async def grow(cluster: Cluster) -> None:
        await operations.create_partitions(cluster, "nope", 4)

    async def listed(cluster: Cluster) -> None:
        await offsets.list_offsets(cluster, {TopicPartition("nope", 0): offsets.LATEST})

    for work in (configs, alter, grow, listed):
        with pytest.raises(TopicNotFound, match="topic nope does not exist"):
            with_cluster(fake, work)


def test_offsets_are_found_by_time_and_moved_by_deletion(broker: FakeBroker) -> None:
    """A lookup returns the first record at or after a time, or None if there is none."""
    log = broker.model.add_topic("orders", 2).logs[0]
    log.append(build_batch([Record(n, 1000 + n, None, b"x") for n in range(10)]))

    async def work(cluster: Cluster) -> None:
        first = await offsets.list_offsets(cluster, dict.fromkeys(TOPIC_PARTITIONS, 1004))
        assert first == {
            TOPIC_PARTITIONS[0]: offsets.FoundOffset(4, 1004),
            TOPIC_PARTITIONS[1]: None,
        }
        assert await offsets.delete_records(cluster, {TOPIC_PARTITIONS[0]: 3}) == {
            TOPIC_PARTITIONS[0]: 3
        }
        start = await offsets.list_offsets(cluster, {TOPIC_PARTITIONS[0]: offsets.EARLIEST})
        assert start == {TOPIC_PARTITIONS[0]: offsets.FoundOffset(3, -1)}

    with_cluster(broker, work)


def test_group_offsets_and_groups(broker: FakeBroker) -> None:
    """Offsets are committed, read and deleted; the group is listed, described and deleted."""
    broker.model.add_topic("orders", 2)

    async def work(cluster: Cluster) -> None:
        assert await groups.group_offsets(cluster, "billing") == {}
        done = await groups.commit_offsets(
            cluster, "billing", {TOPIC_PARTITIONS[0]: 5, TOPIC_PARTITIONS[1]: 7}
        )
        assert done == {TOPIC_PARTITIONS[0]: None, TOPIC_PARTITIONS[1]: None}
        committed = await groups.group_offsets(cluster, "billing")
        assert {topic_partition: each.offset for topic_partition, each in committed.items()} == {
            TOPIC_PARTITIONS[0]: 5,
            TOPIC_PARTITIONS[1]: 7,
        }
        assert [listing.group for listing in await groups.list_groups(cluster)] == ["billing"]
        assert await groups.delete_offsets(cluster, "billing", [TOPIC_PARTITIONS[1]]) == {
            TOPIC_PARTITIONS[1]: None
        }
        assert list(await groups.group_offsets(cluster, "billing")) == [TOPIC_PARTITIONS[0]]
        outcomes = await groups.delete_groups(cluster, ["billing", "nope"])
        assert outcomes["billing"] is None
        assert "group nope does not exist" in str(outcomes["nope"])

    with_cluster(broker, work)


def test_members_and_their_assignments(broker: FakeBroker) -> None:
    """Assignments are decoded; those that are not a consumer's are ignored."""
    message = ConsumerProtocolAssignment([ConsumerProtocolAssignment.TopicPartition("orders", [1])])
    members = [
        Member("m-1", "billing-app", encode_embedded(message, 1)),
        Member("m-2", "other", b"\x00"),
    ]
    broker.model.groups["billing"] = Group("Stable", protocol="range", members=members)

    async def work(cluster: Cluster) -> groups.GroupInfo:
        return await groups.describe_group(cluster, "billing")

    info = with_cluster(broker, work)
    assert (info.state, info.protocol, info.coordinator) == ("Stable", "range", 0)
    assert [member.assignment for member in info.members] == [(TOPIC_PARTITIONS[1],), ()]
    owner = info.owner(TOPIC_PARTITIONS[1])
    assert owner is not None
    assert owner.client_id == "billing-app"
    assert info.owner(TOPIC_PARTITIONS[0]) is None


def test_a_missing_group_is_an_error(broker: FakeBroker) -> None:
    """Old brokers describe it as dead, new ones return an error code."""

    async def work(cluster: Cluster) -> None:
        await groups.describe_group(cluster, "nope")

    with pytest.raises(BrokerError, match="group nope does not exist") as failed:
        with_cluster(broker, work)
    assert failed.value.code == ErrorCode.GROUP_ID_NOT_FOUND


def test_the_cluster_is_described(fake: FakeBroker) -> None:
    """Brokers, controller and cluster id."""

    async def work(cluster: Cluster) -> operations.ClusterInfo:
        return await operations.describe_cluster(cluster)

    info = with_cluster(fake, work)
    assert (info.cluster_id, info.controller_id) == ("fake-cluster", 0)
    assert [str(broker.address) for broker in info.brokers] == [fake.address]
