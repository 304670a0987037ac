"""Metadata: which topics are meant, how they may be named, and what the client may do."""

from __future__ import annotations

import operator
from dataclasses import replace
from functools import partial

import pytest

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

from .stage import Stage, staged, staged_with

Asked = MetadataRequest.Topic
CLUSTER, TOPIC = 8096, 3576
"""What Kafka 4.0 without an authorizer answers."""


async def metadata(stage: Stage, version: int, *topics: Asked) -> MetadataResponse:
    return await stage.ask(MetadataRequest([*topics], False), version, MetadataResponse)


@staged
async def test_all_topics_and_none(stage: Stage) -> None:
    """Version 0 means all by an empty list, later ones by none; an empty list then is empty."""
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
async def test_a_topic_by_its_id(stage: Stage) -> None:
    """From version 12 on, whatever the name beside it says; an id nobody has has its own code."""
    topic_id = await stage.create("orders")
    for version in (12, 13):
        for name in (None, "", "orders"):
            (topic,) = (await metadata(stage, version, Asked(topic_id, name))).topics
            assert (topic.error_code, topic.name, topic.topic_id) == (0, "orders", topic_id)
        (topic,) = (await metadata(stage, version, Asked(b"x" * 16, None))).topics
        assert (topic.error_code, topic.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)
        assert topic.topic_id == b"x" * 16


@staged
async def test_an_id_before_its_time_refuses_the_request(stage: Stage) -> None:
    """Versions 10 and 11 have the field and no use for it: all that was asked for is refused,
    without brokers, as Kafka does."""
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
async def test_a_broker_names_itself_while_nobody_is_registered(stage: Stage) -> None:
    """All sessions end when the store was away for long. Clients that are told of no broker have
    nobody left to ask; the leaders are nobody's as yet."""
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
async def test_asking_for_a_topic_creates_it_where_that_is_asked_for(stage: Stage) -> None:
    """Up to version 3 always, then by a flag; the topic is unknown until it is there, as with
    Kafka 4."""
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
async def test_any_broker_may_be_the_one_that_is_asked_first(stage: Stage) -> None:
    """A topic, and the one of the groups, come into being by asking a broker that is not the
    controller."""
    assert stage.brokers[1].controller.term is None
    topics = stage.brokers[1].cluster.image.topics
    await stage.ask(MetadataRequest([Asked(name="a")]), 12, MetadataResponse, broker=1)
    await stage.until(lambda: "a" in topics)
    await stage.ask(FindCoordinatorRequest("g"), 2, FindCoordinatorResponse, broker=1)
    await stage.until(lambda: "__consumer_offsets" in topics)


@staged_with(brokers=2)
async def test_the_controller_is_a_broker_that_can_be_reached(stage: Stage) -> None:
    """By an address that needs no resolving; tools send admin requests there."""
    for broker in (0, 1):
        response = await stage.ask(MetadataRequest(), 12, MetadataResponse, broker=broker)
        assert response.controller_id == 0
        addresses = {each.node_id: (each.host, each.port) for each in response.brokers}
        assert addresses == {0: ("127.0.0.1", 9092), 1: ("127.0.0.1", 9093)}


@staged_with(brokers=2)
async def test_without_a_controller_the_broker_that_was_asked_stands_in(stage: Stage) -> None:
    """Any broker carries out what is for the controller. To be told of nobody, or of one that is
    gone, has librdkafka wait for a minute."""
    image = stage.brokers[1].cluster.image
    known = image.controller
    assert known is not None
    with pytest.MonkeyPatch.context() as patch:
        for held in (None, replace(known, broker_id=9)):
            patch.setattr(image, "controller", held)
            response = await stage.ask(MetadataRequest(), 12, MetadataResponse, broker=1)
            assert response.controller_id == 1


@staged
async def test_authorized_operations_come_on_request(stage: Stage) -> None:
    """Of the cluster in versions 8 to 10, of topics from 8 on: unknown ones, but not unknown ids,
    which may be anything."""
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
async def test_the_cluster_tells_what_may_be_done_with_it(stage: Stage) -> None:
    """DescribeCluster, when it is asked for."""
    for asked, expected in ((True, CLUSTER), (False, NOT_ASKED)):
        for version in range(3):
            request = DescribeClusterRequest(asked)
            response = await stage.ask(request, version, DescribeClusterResponse)
            assert response.cluster_authorized_operations == expected
