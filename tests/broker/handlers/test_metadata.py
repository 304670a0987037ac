"""Metadata: how requests name topics, what brokers return, and authorized operations."""

from __future__ import annotations

import operator
from dataclasses import replace
from functools import partial

import pytest

from broker.harness import BrokerHarness, with_harness, with_harness_of
from penstock.metadata import keys
from penstock.security.acls import OPERATIONS_NOT_REQUESTED as NOT_ASKED
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)

Asked = MetadataRequest.Topic
CLUSTER, TOPIC = 8096, 3576
"""What Kafka 4.0 without an authorizer answers."""


async def metadata(harness: BrokerHarness, version: int, *topics: Asked) -> MetadataResponse:
    return await harness.ask(MetadataRequest([*topics], False), version, MetadataResponse)


@with_harness
async def test_a_request_may_ask_for_all_topics_or_for_none(harness: BrokerHarness) -> None:
    """In version 0 an empty list means all topics. Later, null means all and an empty list means
    none.
    """
    await harness.create("a")
    await harness.create("b")
    for version in range(14):
        everything = MetadataRequest([] if version == 0 else None)
        response = await harness.ask(everything, version, MetadataResponse)
        assert [topic.name for topic in response.topics] == ["a", "b"]
        assert [broker.node_id for broker in response.brokers] == [0]
        if version:
            nothing = await harness.ask(MetadataRequest([]), version, MetadataResponse)
            assert (nothing.topics, nothing.controller_id) == ([], 0)


@with_harness
async def test_a_topic_can_be_requested_by_id(harness: BrokerHarness) -> None:
    """From version 12 on. The name next to the id is ignored. An unknown id gets
    UNKNOWN_TOPIC_ID.
    """
    topic_id = await harness.create("orders")
    for version in (12, 13):
        for name in (None, "", "orders"):
            (topic,) = (await metadata(harness, version, Asked(topic_id, name))).topics
            assert (topic.error_code, topic.name, topic.topic_id) == (0, "orders", topic_id)
        (topic,) = (await metadata(harness, version, Asked(b"x" * 16, None))).topics
        assert (topic.error_code, topic.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)
        assert topic.topic_id == b"x" * 16


@with_harness
async def test_a_topic_id_below_version_12_refuses_the_whole_request(
    harness: BrokerHarness,
) -> None:
    """Versions 10 and 11 have the field but do not support it. As in Kafka, every topic of the
    request is refused, and the response has no brokers.
    """
    topic_id = await harness.create("orders")
    for version in (10, 11):
        for wrong in (Asked(topic_id, None), Asked(topic_id, "orders"), Asked(name=None)):
            response = await metadata(harness, version, wrong, Asked(name="orders"))
            assert [(each.error_code, each.name) for each in response.topics] == [
                (ErrorCode.INVALID_REQUEST, wrong.name or ""),
                (ErrorCode.INVALID_REQUEST, "orders"),
            ]
            assert response.topics[0].topic_id == wrong.topic_id
            assert (response.brokers, response.cluster_id) == ([], None)
        (topic,) = (await metadata(harness, version, Asked(name="orders"))).topics
        assert (topic.error_code, topic.topic_id) == (0, topic_id)


@with_harness_of(brokers=2)
async def test_a_broker_lists_itself_while_no_broker_is_registered(harness: BrokerHarness) -> None:
    """All leases expire when the store is unreachable for long. A client that gets an empty list of
    brokers has no broker left to ask. The partitions have no leader meanwhile.
    """
    await harness.create("orders")
    before = await metadata(harness, 12, Asked(name="orders"))
    image = harness.broker.cluster.image
    image.apply(keys.broker_key(0), None, image.revision)
    left = await metadata(harness, 12, Asked(name="orders"))
    assert [broker.node_id for broker in left.brokers] == [1]
    image.apply(keys.broker_key(1), None, image.revision)
    alone = await metadata(harness, 12, Asked(name="orders"))
    assert alone.brokers == [broker for broker in before.brokers if broker.node_id == 0]
    assert (len(before.brokers), alone.controller_id) == (2, 0)
    assert alone.topics[0].partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE


@with_harness_of(kafka={"num.partitions": "4"})
async def test_a_metadata_request_creates_a_topic_if_it_allows_that(harness: BrokerHarness) -> None:
    """Up to version 3 always, later by a flag. The topic is unknown until it exists, as with Kafka
    4.
    """
    request = MetadataRequest([Asked(name="wanted")], False)
    (topic,) = (await harness.ask(request, 4, MetadataResponse)).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "wanted" not in harness.broker.cluster.image.topics
    for version, name in ((1, "old"), (4, "new")):
        request = MetadataRequest([Asked(name=name)], True)
        (topic,) = (await harness.ask(request, version, MetadataResponse)).topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await harness.until(partial(operator.contains, harness.broker.cluster.image.topics, name))
        (topic,) = (await harness.ask(request, version, MetadataResponse)).topics
        assert (topic.error_code, len(topic.partitions)) == (0, 4)


@with_harness_of(brokers=2)
async def test_any_broker_creates_topics_on_demand(harness: BrokerHarness) -> None:
    """A broker that is not the controller creates a topic, and the internal topic for groups."""
    assert harness.brokers[1].controller.term is None
    topics = harness.brokers[1].cluster.image.topics
    await harness.ask(MetadataRequest([Asked(name="a")]), 12, MetadataResponse, broker=1)
    await harness.until(lambda: "a" in topics)
    await harness.ask(FindCoordinatorRequest("g"), 2, FindCoordinatorResponse, broker=1)
    await harness.until(lambda: "__consumer_offsets" in topics)


@with_harness_of(brokers=2)
async def test_the_controller_is_listed_with_an_address_that_works(harness: BrokerHarness) -> None:
    """The address needs no name resolution. Tools send admin requests there."""
    for broker in (0, 1):
        response = await harness.ask(MetadataRequest(), 12, MetadataResponse, broker=broker)
        assert response.controller_id == 0
        addresses = {each.node_id: (each.host, each.port) for each in response.brokers}
        assert addresses == {0: ("127.0.0.1", 9092), 1: ("127.0.0.1", 9093)}


@with_harness_of(brokers=2)
async def test_without_a_controller_a_broker_names_itself_as_the_controller(
    harness: BrokerHarness,
) -> None:
    """Any broker executes requests for the controller. If the response named no controller, or one
    that is gone, librdkafka would wait for a minute.
    """
    image = harness.brokers[1].cluster.image
    known = image.controller
    assert known is not None
    with pytest.MonkeyPatch.context() as patch:
        for held in (None, replace(known, broker_id=9)):
            patch.setattr(image, "controller", held)
            response = await harness.ask(MetadataRequest(), 12, MetadataResponse, broker=1)
            assert response.controller_id == 1


@with_harness
async def test_authorized_operations_are_returned_on_request(harness: BrokerHarness) -> None:
    """For the cluster in versions 8 to 10. For topics from version 8 on, including unknown names
    but not unknown ids, which could be anything.
    """
    await harness.create("orders")
    named = [Asked(name="orders"), Asked(name="none"), Asked(name="a b")]
    for version in range(8, 14):
        asks_cluster = version <= 10
        request = MetadataRequest(named, False, asks_cluster, True)
        response = await harness.ask(request, version, MetadataResponse)
        assert [topic.topic_authorized_operations for topic in response.topics] == [TOPIC] * 3
        expected = CLUSTER if asks_cluster else NOT_ASKED
        assert response.cluster_authorized_operations == expected
        plain = await harness.ask(MetadataRequest(named, False), version, MetadataResponse)
        assert [topic.topic_authorized_operations for topic in plain.topics] == [NOT_ASKED] * 3
        assert plain.cluster_authorized_operations == NOT_ASKED
    by_id = MetadataRequest([Asked(b"x" * 16, None)], False, False, True)
    (topic,) = (await harness.ask(by_id, 12, MetadataResponse)).topics
    assert topic.topic_authorized_operations == NOT_ASKED


@with_harness
async def test_describe_cluster_returns_authorized_operations_on_request(
    harness: BrokerHarness,
) -> None:
    for asked, expected in ((True, CLUSTER), (False, NOT_ASKED)):
        for version in range(3):
            request = DescribeClusterRequest(asked)
            response = await harness.ask(request, version, DescribeClusterResponse)
            assert response.cluster_authorized_operations == expected
