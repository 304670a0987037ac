"""Metadata: how requests name topics, what brokers return, and authorized operations."""

from __future__ import annotations

import operator
from dataclasses import replace
from functools import partial

import pytest

from broker.harness import BrokerHarness, staged, staged_with
from penstock.broker.handlers.authorized_operations import NOT_ASKED
from penstock.metadata import keys
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


async def metadata(stage: BrokerHarness, version: int, *topics: Asked) -> MetadataResponse:
    return await stage.ask(MetadataRequest([*topics], False), version, MetadataResponse)


@staged
async def test_a_request_may_ask_for_all_topics_or_for_none(stage: BrokerHarness) -> None:
    """In version 0 an empty list means all topics. Later, null means all and an empty list means
    none.
    """
    await stage.create("a")
    await stage.create("b")
    for version in range(14):
        everything = MetadataRequest([] if version == 0 else None)
        response = await stage.ask(everything, version, MetadataResponse)
        assert [topic.name for topic in response.topics] == ["a", "b"]
        assert [broker.node_id for broker in response.brokers] == [0]
        if version:
            nothing = await stage.ask(MetadataRequest([]), version, MetadataResponse)
            assert (nothing.topics, nothing.controller_id) == ([], 0)


@staged
async def test_a_topic_can_be_requested_by_id(stage: BrokerHarness) -> None:
    """From version 12 on. The name next to the id is ignored. An unknown id gets
    UNKNOWN_TOPIC_ID.
    """
    topic_id = await stage.create("orders")
    for version in (12, 13):
        for name in (None, "", "orders"):
            (topic,) = (await metadata(stage, version, Asked(topic_id, name))).topics
            assert (topic.error_code, topic.name, topic.topic_id) == (0, "orders", topic_id)
        (topic,) = (await metadata(stage, version, Asked(b"x" * 16, None))).topics
        assert (topic.error_code, topic.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)
        assert topic.topic_id == b"x" * 16


@staged
async def test_a_topic_id_below_version_12_refuses_the_whole_request(stage: BrokerHarness) -> None:
    """Versions 10 and 11 have the field but do not support it. As in Kafka, every topic of the
    request is refused, and the response has no brokers.
    """
    topic_id = await stage.create("orders")
    for version in (10, 11):
        for wrong in (Asked(topic_id, None), Asked(topic_id, "orders"), Asked(name=None)):
            response = await metadata(stage, version, wrong, Asked(name="orders"))
            assert [(each.error_code, each.name) for each in response.topics] == [
                (ErrorCode.INVALID_REQUEST, wrong.name or ""),
                (ErrorCode.INVALID_REQUEST, "orders"),
            ]
            assert response.topics[0].topic_id == wrong.topic_id
            assert (response.brokers, response.cluster_id) == ([], None)
        (topic,) = (await metadata(stage, version, Asked(name="orders"))).topics
        assert (topic.error_code, topic.topic_id) == (0, topic_id)


@staged_with(brokers=2)
async def test_a_broker_lists_itself_while_no_broker_is_registered(stage: BrokerHarness) -> None:
    """All leases expire when the store is unreachable for long. A client that gets an empty list of
    brokers has no broker left to ask. The partitions have no leader meanwhile.
    """
    await stage.create("orders")
    before = await metadata(stage, 12, Asked(name="orders"))
    image = stage.broker.cluster.image
    image.apply(keys.broker_key(0), None, image.revision)
    left = await metadata(stage, 12, Asked(name="orders"))
    assert [broker.node_id for broker in left.brokers] == [1]
    image.apply(keys.broker_key(1), None, image.revision)
    alone = await metadata(stage, 12, Asked(name="orders"))
    assert alone.brokers == [broker for broker in before.brokers if broker.node_id == 0]
    assert (len(before.brokers), alone.controller_id) == (2, 0)
    assert alone.topics[0].partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE


@staged_with(kafka={"num.partitions": "4"})
async def test_a_metadata_request_creates_a_topic_if_it_allows_that(stage: BrokerHarness) -> None:
    """Up to version 3 always, later by a flag. The topic is unknown until it exists, as with Kafka
    4.
    """
    request = MetadataRequest([Asked(name="wanted")], False)
    (topic,) = (await stage.ask(request, 4, MetadataResponse)).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "wanted" not in stage.broker.cluster.image.topics
    for version, name in ((1, "old"), (4, "new")):
        request = MetadataRequest([Asked(name=name)], True)
        (topic,) = (await stage.ask(request, version, MetadataResponse)).topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await stage.until(partial(operator.contains, stage.broker.cluster.image.topics, name))
        (topic,) = (await stage.ask(request, version, MetadataResponse)).topics
        assert (topic.error_code, len(topic.partitions)) == (0, 4)


@staged_with(brokers=2)
async def test_any_broker_creates_topics_on_demand(stage: BrokerHarness) -> None:
    """A broker that is not the controller creates a topic, and the internal topic for groups."""
    assert stage.brokers[1].controller.term is None
    topics = stage.brokers[1].cluster.image.topics
    await stage.ask(MetadataRequest([Asked(name="a")]), 12, MetadataResponse, broker=1)
    await stage.until(lambda: "a" in topics)
    await stage.ask(FindCoordinatorRequest("g"), 2, FindCoordinatorResponse, broker=1)
    await stage.until(lambda: "__consumer_offsets" in topics)


@staged_with(brokers=2)
async def test_the_controller_is_listed_with_an_address_that_works(stage: BrokerHarness) -> None:
    """The address needs no name resolution. Tools send admin requests there."""
    for broker in (0, 1):
        response = await stage.ask(MetadataRequest(), 12, MetadataResponse, broker=broker)
        assert response.controller_id == 0
        addresses = {each.node_id: (each.host, each.port) for each in response.brokers}
        assert addresses == {0: ("127.0.0.1", 9092), 1: ("127.0.0.1", 9093)}


@staged_with(brokers=2)
async def test_without_a_controller_a_broker_names_itself_as_the_controller(
    stage: BrokerHarness,
) -> None:
    """Any broker executes requests for the controller. If the response named no controller, or one
    that is gone, librdkafka would wait for a minute.
    """
    image = stage.brokers[1].cluster.image
    known = image.controller
    assert known is not None
    with pytest.MonkeyPatch.context() as patch:
        for held in (None, replace(known, broker_id=9)):
            patch.setattr(image, "controller", held)
            response = await stage.ask(MetadataRequest(), 12, MetadataResponse, broker=1)
            assert response.controller_id == 1


@staged
async def test_authorized_operations_are_returned_on_request(stage: BrokerHarness) -> None:
    """For the cluster in versions 8 to 10. For topics from version 8 on, including unknown names
    but not unknown ids, which could be anything.
    """
    await stage.create("orders")
    named = [Asked(name="orders"), Asked(name="none"), Asked(name="a b")]
    for version in range(8, 14):
        asks_cluster = version <= 10
        request = MetadataRequest(named, False, asks_cluster, True)
        response = await stage.ask(request, version, MetadataResponse)
        assert [topic.topic_authorized_operations for topic in response.topics] == [TOPIC] * 3
        expected = CLUSTER if asks_cluster else NOT_ASKED
        assert response.cluster_authorized_operations == expected
        plain = await stage.ask(MetadataRequest(named, False), version, MetadataResponse)
        assert [topic.topic_authorized_operations for topic in plain.topics] == [NOT_ASKED] * 3
        assert plain.cluster_authorized_operations == NOT_ASKED
    by_id = MetadataRequest([Asked(b"x" * 16, None)], False, False, True)
    (topic,) = (await stage.ask(by_id, 12, MetadataResponse)).topics
    assert topic.topic_authorized_operations == NOT_ASKED


@staged
async def test_describe_cluster_returns_authorized_operations_on_request(
    stage: BrokerHarness,
) -> None:
    for asked, expected in ((True, CLUSTER), (False, NOT_ASKED)):
        for version in range(3):
            request = DescribeClusterRequest(asked)
            response = await stage.ask(request, version, DescribeClusterResponse)
            assert response.cluster_authorized_operations == expected
