"""Tests that a missing right is an error at once, in every client, and names what it is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from client.fake_broker import FakeBroker
from penstock import Admin, Consumer, Producer
from penstock.client.errors import BrokerError
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    FindCoordinatorResponse,
    InitProducerIdResponse,
    JoinGroupResponse,
    MetadataResponse,
)

TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TRANSACTIONAL_ID = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.mark.parametrize("code", [TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID])
def test_a_missing_right_is_not_retriable(code: ErrorCode) -> None:
    error = BrokerError(code, subject="topic a")
    assert not error.retriable
    assert "the user needs" in str(error)


def refused(work: Callable[[], Any], code: ErrorCode, *names: str) -> None:
    with pytest.raises(BrokerError) as failed:
        work()
    assert failed.value.code == code
    for name in names:
        assert name in str(failed.value)


def test_a_producer_without_the_right_to_write(fake: FakeBroker) -> None:
    fake.model.add_topic("a")
    fake.next(ApiKey.PRODUCE, TOPIC)
    with Producer(fake.address) as producer:
        refused(lambda: producer.send("a", b"1").result(60), TOPIC, "a")
        producer.send("a", b"2").result(60)
    assert len(fake.asked(ApiKey.PRODUCE)) == 2


def _hidden(request: Any) -> MetadataResponse:
    topics = [MetadataResponse.Topic(TOPIC, name=each.name) for each in request.topics or ()]
    brokers = [MetadataResponse.Broker(0, "127.0.0.1", 1)]
    return MetadataResponse(brokers=brokers, controller_id=0, topics=topics)


def test_a_producer_without_the_right_to_describe(fake: FakeBroker) -> None:
    with Producer(fake.address) as producer:
        fake.next(ApiKey.METADATA, _hidden)
        refused(lambda: producer.send("a", b"1").result(60), TOPIC, "topic a")


def test_a_producer_without_a_right_to_its_producer_id(fake: FakeBroker) -> None:
    fake.model.add_topic("a")
    fake.next(ApiKey.INIT_PRODUCER_ID, InitProducerIdResponse(error_code=CLUSTER))
    with Producer(fake.address) as producer:
        refused(lambda: producer.send("a", b"1").result(60), CLUSTER)


def test_a_consumer_without_the_right_to_read(fake: FakeBroker) -> None:
    fake.model.add_topic("a")
    fake.next(ApiKey.FETCH, *[TOPIC] * 20)
    with Consumer(fake.address, topics="a", auto_offset_reset="earliest") as consumer:
        refused(lambda: consumer.poll(timeout_ms=60_000), TOPIC, "a")


def test_a_consumer_without_the_right_to_find_offsets(fake: FakeBroker) -> None:
    fake.model.add_topic("a")
    fake.next(ApiKey.LIST_OFFSETS, *[TOPIC] * 20)
    with Consumer(fake.address, topics="a", auto_offset_reset="latest") as consumer:
        refused(lambda: consumer.poll(timeout_ms=60_000), TOPIC, "a")


def _no_coordinator(_: Any) -> FindCoordinatorResponse:
    found = FindCoordinatorResponse.Coordinator("g", -1, "", -1, GROUP)
    return FindCoordinatorResponse(coordinators=[found])


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        (ApiKey.FIND_COORDINATOR, _no_coordinator),
        (ApiKey.JOIN_GROUP, lambda _: JoinGroupResponse(error_code=GROUP)),
    ],
)
def test_a_consumer_without_a_right_to_its_group(
    fake: FakeBroker, key: ApiKey, answer: Any
) -> None:
    fake.model.add_topic("a")
    fake.next(key, *[answer] * 20)
    with Consumer(fake.address, topics="a", group_id="g") as consumer:
        refused(lambda: consumer.poll(timeout_ms=60_000), GROUP, "g")


def test_an_admin_without_the_right_to_create(fake: FakeBroker) -> None:
    with Admin(fake.address) as admin:
        fake.next(ApiKey.METADATA, _hidden)
        refused(lambda: admin.describe_topic("a"), TOPIC, "a")
