"""Tests the client's cluster metadata: finding the right broker, also after a change."""

from __future__ import annotations

import asyncio

import pytest

from client.fake_broker import DROP, SILENCE, FakeBroker
from client.fake_model import Group
from client.open_clusters import cluster_of, with_cluster
from penstock.client.admin import groups, operations
from penstock.client.admin.offsets import LATEST, list_offsets
from penstock.client.cluster import Cluster
from penstock.client.errors import (
    BrokerError,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    TopicNotFound,
)
from penstock.client.model import OffsetAndMetadata
from penstock.runtime import SystemRandom
from penstock.testing.ports import free_port
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import CreateTopicsResponse


def closed_port() -> int:
    return free_port(SystemRandom())


def test_entering_fetches_the_brokers(fake: FakeBroker) -> None:
    """One reachable bootstrap address is enough."""
    bootstrap = f"127.0.0.1:{closed_port()},{fake.address}"

    async def main() -> tuple[int, list[str], str | None]:
        async with cluster_of(bootstrap) as cluster:
            addresses = [str(address) for address in cluster.brokers.values()]
            return cluster.controller_id, addresses, cluster.cluster_id

    assert asyncio.run(main()) == (0, [fake.address], "fake-cluster")


def test_unreachable_bootstrap_addresses_fail_at_once() -> None:
    """A mistyped address does not have to wait for a deadline."""
    ports = closed_port(), closed_port()
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)

    async def main() -> None:
        async with cluster_of(bootstrap, deadline_s=1000.0):
            raise AssertionError("nobody listens there")

    with pytest.raises(ConnectFailed, match="connection refused") as failed:
        asyncio.run(main())
    assert all(f"127.0.0.1:{port}" in str(failed.value) for port in ports)


@pytest.mark.parametrize("key", [ApiKey.API_VERSIONS, ApiKey.METADATA])
@pytest.mark.parametrize("fate", [DROP, SILENCE])
def test_the_next_bootstrap_address_is_tried(fake: FakeBroker, key: ApiKey, fate: str) -> None:
    """Several addresses are given exactly for the case that one broker is
    being killed or is frozen."""
    with FakeBroker() as dying:
        dying.next(key, *[fate] * 4)

        async def main(*addresses: str) -> str | None:
            async with cluster_of(",".join(addresses), request_timeout_s=patient(3.0)) as cluster:
                return cluster.cluster_id

        assert asyncio.run(main(dying.address, fake.address)) == "fake-cluster"
        assert asyncio.run(main(fake.address, dying.address)) == "fake-cluster"
        with pytest.raises(ClientError, match=dying.address):
            asyncio.run(main(dying.address))
        nobody = f"127.0.0.1:{closed_port()}"
        with pytest.raises(ConnectFailed, match=f"{dying.address}.*; {nobody}: connection refused"):
            asyncio.run(main(dying.address, nobody))


def test_a_lost_connection_is_reopened(fake: FakeBroker) -> None:
    """A request that is safe to repeat survives it."""
    fake.next(ApiKey.DESCRIBE_CLUSTER, DROP, DROP)

    async def work(cluster: Cluster) -> operations.ClusterInfo:
        return await operations.describe_cluster(cluster)

    assert with_cluster(fake, work).cluster_id == "fake-cluster"
    assert len(fake.asked(ApiKey.DESCRIBE_CLUSTER)) == 3


def test_a_request_that_may_have_been_processed_is_not_repeated(fake: FakeBroker) -> None:
    """Creating a topic again after a lost response would fail because it exists."""
    fake.next(ApiKey.CREATE_TOPICS, DROP)

    async def work(cluster: Cluster) -> None:
        await operations.create_topic(cluster, operations.NewTopic("orders"))

    with pytest.raises(ConnectionLost):
        with_cluster(fake, work)
    assert len(fake.asked(ApiKey.CREATE_TOPICS)) == 1


def test_a_new_controller_is_found(fake: FakeBroker) -> None:
    """After NOT_CONTROLLER, the client looks up the controller and asks it."""
    fake.next(ApiKey.CREATE_TOPICS, ErrorCode.NOT_CONTROLLER)

    async def work(cluster: Cluster) -> operations.CreatedTopic:
        asked = len(fake.asked(ApiKey.METADATA))
        created = await operations.create_topic(cluster, operations.NewTopic("orders", 2))
        assert len(fake.asked(ApiKey.METADATA)) == asked + 1
        return created

    assert with_cluster(fake, work).partitions == 2


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
)
def test_a_new_coordinator_is_found(fake: FakeBroker, code: ErrorCode) -> None:
    """The request goes to the group's current coordinator."""
    fake.model.groups["billing"] = Group()
    fake.next(ApiKey.DESCRIBE_GROUPS, code)

    async def work(cluster: Cluster) -> groups.GroupInfo:
        return await groups.describe_group(cluster, "billing")

    assert with_cluster(fake, work).state == "Empty"
    assert len(fake.asked(ApiKey.FIND_COORDINATOR)) == 2


def test_a_coordinator_that_is_not_available_yet_is_waited_for(fake: FakeBroker) -> None:
    """A cluster that has just started has no coordinator for a short time."""
    fake.next(ApiKey.FIND_COORDINATOR, *[ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3)

    async def work(cluster: Cluster) -> dict[TopicPartition, OffsetAndMetadata]:
        return await groups.group_offsets(cluster, "billing")

    assert with_cluster(fake, work) == {}


def test_a_new_leader_is_found(fake: FakeBroker) -> None:
    """Partitions that were answered are not requested again."""
    fake.model.add_topic("orders", 2)
    fake.next(ApiKey.LIST_OFFSETS, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    topic_partitions = [TopicPartition("orders", 0), TopicPartition("orders", 1)]

    async def work(cluster: Cluster) -> list[int]:
        found = await list_offsets(cluster, dict.fromkeys(topic_partitions, LATEST))
        return [
            each.offset
            for topic_partition in topic_partitions
            if (each := found[topic_partition]) is not None
        ]

    assert with_cluster(fake, work) == [0, 0]


def test_retries_end_at_the_deadline_and_report_the_last_error(fake: FakeBroker) -> None:
    fake.next(ApiKey.CREATE_TOPICS, *[ErrorCode.NOT_CONTROLLER] * 10_000)

    async def work(cluster: Cluster) -> None:
        await operations.create_topic(cluster, operations.NewTopic("orders"))

    limit_s = patient(0.5)
    with pytest.raises(
        DeadlineExceeded, match=f"gave up after {limit_s:g} s: .*not the controller"
    ):
        with_cluster(fake, work, deadline_s=limit_s)


def test_a_permanent_error_is_not_retried(fake: FakeBroker) -> None:
    """It has the broker's message."""
    refusal = CreateTopicsResponse.Topic(
        "orders", error_code=ErrorCode.INVALID_CONFIG, error_message="no such config: colour"
    )
    fake.next(ApiKey.CREATE_TOPICS, CreateTopicsResponse(topics=[refusal]))

    async def work(cluster: Cluster) -> None:
        await operations.create_topic(cluster, operations.NewTopic("orders"))

    with pytest.raises(BrokerError, match="no such config: colour") as failed:
        with_cluster(fake, work)
    assert failed.value.code == ErrorCode.INVALID_CONFIG
    assert len(fake.asked(ApiKey.CREATE_TOPICS)) == 1


def test_a_broker_that_never_answers_blocks_no_caller(fake: FakeBroker) -> None:
    """Each request times out, and all retries end at the deadline."""
    fake.next(ApiKey.DESCRIBE_CLUSTER, *[SILENCE] * 100)

    async def work(cluster: Cluster) -> None:
        await operations.describe_cluster(cluster)

    timeout_s = patient(2.0)
    with pytest.raises(DeadlineExceeded, match="did not answer"):
        with_cluster(fake, work, request_timeout_s=timeout_s, deadline_s=2.5 * timeout_s)


def test_a_missing_topic_is_reported_at_once(fake: FakeBroker) -> None:
    """Kafka calls the error retriable, but a caller that names a topic does not want to wait."""

    async def work(cluster: Cluster) -> None:
        await cluster.partitions("nope")

    with pytest.raises(TopicNotFound, match="topic nope does not exist"):
        with_cluster(fake, work, deadline_s=1000.0)
    assert "nope" not in fake.model.topics


def test_an_auto_created_topic_is_waited_for(fake: FakeBroker) -> None:
    """Auto-creation answers UNKNOWN_TOPIC_OR_PARTITION until the topic has a leader."""
    fake.model.add_topic("orders", 3)
    fake.next(
        ApiKey.METADATA,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
    )

    async def work(cluster: Cluster) -> int:
        return await cluster.partitions("orders", auto_create=True)

    assert with_cluster(fake, work) == 3


def test_an_unknown_partition_is_distinguished_from_an_unknown_topic(fake: FakeBroker) -> None:
    """The error names both topic and partition."""
    fake.model.add_topic("orders", 2)

    async def work(cluster: Cluster) -> None:
        await cluster.leader(TopicPartition("orders", 7))

    with pytest.raises(TopicNotFound, match="partition 7 of orders does not exist"):
        with_cluster(fake, work)


def test_unknown_codes_are_shown_by_number() -> None:
    """A newer broker may return codes that this client does not know."""
    assert "999" in str(BrokerError(999))
    assert not BrokerError(999).retriable
