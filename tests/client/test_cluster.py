"""The cluster's view: finding whom to ask, and asking again when that has changed."""

from __future__ import annotations

import asyncio
import socket

import pytest

from client.fake_broker import DROP, SILENCE, FakeBroker
from client.fake_model import Group
from client.rig import cluster_of, with_cluster
from penstock.client import admin, groups
from penstock.client.cluster import Cluster
from penstock.client.errors import (
    BrokerError,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    TopicNotFound,
)
from penstock.client.model import OffsetAndMetadata, TopicPartition
from penstock.client.offsets import LATEST, list_offsets
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import CreateTopicsResponse


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def test_entering_learns_the_brokers(fake: FakeBroker) -> None:
    """Any of the bootstrap addresses will do."""
    bootstrap = f"127.0.0.1:{closed_port()},{fake.address}"

    async def main() -> tuple[int, list[str], str | None]:
        async with cluster_of(bootstrap) as cluster:
            addresses = [str(address) for address in cluster.brokers.values()]
            return cluster.controller_id, addresses, cluster.cluster_id

    assert asyncio.run(main()) == (0, [fake.address], "fake-cluster")


def test_a_first_contact_that_fails_is_told_at_once() -> None:
    """Nobody waits for a deadline because of a mistyped address."""
    ports = closed_port(), closed_port()
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)

    async def main() -> None:
        async with cluster_of(bootstrap, deadline_s=1000.0):
            raise AssertionError("nobody listens there")

    with pytest.raises(ConnectFailed, match="nothing listens there") as failed:
        asyncio.run(main())
    assert all(f"127.0.0.1:{port}" in str(failed.value) for port in ports)


@pytest.mark.parametrize("key", [ApiKey.API_VERSIONS, ApiKey.METADATA])
@pytest.mark.parametrize("fate", [DROP, SILENCE])
def test_a_first_contact_goes_on_to_the_next_address(
    fake: FakeBroker, key: ApiKey, fate: str
) -> None:
    """One broker that is just being killed, or is frozen, is what the others are named for."""
    with FakeBroker() as dying:
        dying.next(key, *[fate] * 4)

        async def main(*addresses: str) -> str | None:
            async with cluster_of(",".join(addresses), request_timeout_s=1.0) as cluster:
                return cluster.cluster_id

        assert asyncio.run(main(dying.address, fake.address)) == "fake-cluster"
        assert asyncio.run(main(fake.address, dying.address)) == "fake-cluster"
        with pytest.raises(ClientError, match=dying.address):
            asyncio.run(main(dying.address))
        nobody = f"127.0.0.1:{closed_port()}"
        with pytest.raises(ConnectFailed, match=f"{dying.address}.*; {nobody}: nothing listens"):
            asyncio.run(main(dying.address, nobody))


def test_a_lost_connection_is_opened_again(fake: FakeBroker) -> None:
    """A question that may be asked twice survives it."""
    fake.next(ApiKey.DESCRIBE_CLUSTER, DROP, DROP)

    async def work(cluster: Cluster) -> admin.ClusterInfo:
        return await admin.describe_cluster(cluster)

    assert with_cluster(fake, work).cluster_id == "fake-cluster"
    assert len(fake.asked(ApiKey.DESCRIBE_CLUSTER)) == 3


def test_what_may_have_been_done_is_not_done_twice(fake: FakeBroker) -> None:
    """Creating a topic again after a lost answer would say that it exists."""
    fake.next(ApiKey.CREATE_TOPICS, DROP)

    async def work(cluster: Cluster) -> None:
        await admin.create_topic(cluster, admin.NewTopic("orders"))

    with pytest.raises(ConnectionLost):
        with_cluster(fake, work)
    assert len(fake.asked(ApiKey.CREATE_TOPICS)) == 1


def test_a_controller_that_moved_is_looked_for(fake: FakeBroker) -> None:
    """NOT_CONTROLLER means: ask who is, then ask that one."""
    fake.next(ApiKey.CREATE_TOPICS, ErrorCode.NOT_CONTROLLER)

    async def work(cluster: Cluster) -> admin.CreatedTopic:
        asked = len(fake.asked(ApiKey.METADATA))
        created = await admin.create_topic(cluster, admin.NewTopic("orders", 2))
        assert len(fake.asked(ApiKey.METADATA)) == asked + 1
        return created

    assert with_cluster(fake, work).partitions == 2


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
)
def test_a_coordinator_that_moved_is_looked_for(fake: FakeBroker, code: ErrorCode) -> None:
    """The group is asked about where it lives now."""
    fake.model.groups["billing"] = Group()
    fake.next(ApiKey.DESCRIBE_GROUPS, code)

    async def work(cluster: Cluster) -> groups.GroupInfo:
        return await groups.describe_group(cluster, "billing")

    assert with_cluster(fake, work).state == "Empty"
    assert len(fake.asked(ApiKey.FIND_COORDINATOR)) == 2


def test_a_coordinator_that_is_not_there_yet_is_waited_for(fake: FakeBroker) -> None:
    """A cluster that has just started has none for a moment."""
    fake.next(ApiKey.FIND_COORDINATOR, *[ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3)

    async def work(cluster: Cluster) -> dict[TopicPartition, OffsetAndMetadata]:
        return await groups.group_offsets(cluster, "billing")

    assert with_cluster(fake, work) == {}


def test_a_leader_that_moved_is_looked_for(fake: FakeBroker) -> None:
    """Partitions that were answered are not asked for again."""
    fake.model.add_topic("orders", 2)
    fake.next(ApiKey.LIST_OFFSETS, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    places = [TopicPartition("orders", 0), TopicPartition("orders", 1)]

    async def work(cluster: Cluster) -> list[int]:
        found = await list_offsets(cluster, dict.fromkeys(places, LATEST))
        return [each.offset for place in places if (each := found[place]) is not None]

    assert with_cluster(fake, work) == [0, 0]


def test_retries_end_with_the_deadline_and_say_the_last_reason(fake: FakeBroker) -> None:
    """However long the same answer comes."""
    fake.next(ApiKey.CREATE_TOPICS, *[ErrorCode.NOT_CONTROLLER] * 1000)

    async def work(cluster: Cluster) -> None:
        await admin.create_topic(cluster, admin.NewTopic("orders"))

    with pytest.raises(DeadlineExceeded, match=r"gave up after 0.1 s: .*not the controller"):
        with_cluster(fake, work, deadline_s=0.1)


def test_what_cannot_get_better_is_not_retried(fake: FakeBroker) -> None:
    """A refusal is final and carries the broker's words."""
    refusal = CreateTopicsResponse.Topic(
        "orders", error_code=ErrorCode.INVALID_CONFIG, error_message="no such config: colour"
    )
    fake.next(ApiKey.CREATE_TOPICS, CreateTopicsResponse(topics=[refusal]))

    async def work(cluster: Cluster) -> None:
        await admin.create_topic(cluster, admin.NewTopic("orders"))

    with pytest.raises(BrokerError, match="no such config: colour") as failed:
        with_cluster(fake, work)
    assert failed.value.code == ErrorCode.INVALID_CONFIG
    assert len(fake.asked(ApiKey.CREATE_TOPICS)) == 1


def test_a_broker_that_never_answers_does_not_hang_anyone(fake: FakeBroker) -> None:
    """Each wait ends by itself, and then all of them together."""
    fake.next(ApiKey.DESCRIBE_CLUSTER, *[SILENCE] * 100)

    async def work(cluster: Cluster) -> None:
        await admin.describe_cluster(cluster)

    with pytest.raises(DeadlineExceeded, match="did not answer"):
        with_cluster(fake, work, request_timeout_s=1.0, deadline_s=2.5)


def test_a_topic_that_is_not_there_is_told_at_once(fake: FakeBroker) -> None:
    """Kafka calls the code retriable; who asks for a topic by name does not want to wait."""

    async def work(cluster: Cluster) -> None:
        await cluster.partitions("nope")

    with pytest.raises(TopicNotFound, match="topic nope does not exist"):
        with_cluster(fake, work, deadline_s=1000.0)
    assert "nope" not in fake.model.topics


def test_a_topic_that_the_broker_makes_is_waited_for(fake: FakeBroker) -> None:
    """Auto-creation answers 'unknown' until the topic has a leader."""
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


def test_an_unknown_partition_is_told_from_an_unknown_topic(fake: FakeBroker) -> None:
    """And names both."""
    fake.model.add_topic("orders", 2)

    async def work(cluster: Cluster) -> None:
        await cluster.leader(TopicPartition("orders", 7))

    with pytest.raises(TopicNotFound, match="partition 7 of orders does not exist"):
        with_cluster(fake, work)


def test_unknown_codes_are_shown_by_number() -> None:
    """A newer broker may have codes that this client has never heard of."""
    assert "999" in str(BrokerError(999))
    assert not BrokerError(999).retriable
