"""A topic that was created through one broker is known to every other broker at the next
request.
"""

from __future__ import annotations

import asyncio

import pytest

from broker.harness import BrokerHarness, with_harness, with_harness_of
from penstock.broker.handlers import fresh_topics
from penstock.metadata.config_changes import ResourceType
from penstock.stores.errors import StoreError
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)

with_three_brokers = with_harness_of(brokers=3)


async def described(harness: BrokerHarness, name: str, broker: int) -> int:
    request = DescribeTopicPartitionsRequest([DescribeTopicPartitionsRequest.Topic(name)])
    response = await harness.ask(request, 0, DescribeTopicPartitionsResponse, broker=broker)
    return response.topics[0].error_code


async def known(harness: BrokerHarness, topic: MetadataRequest.Topic, broker: int) -> int:
    request = MetadataRequest([topic], allow_auto_topic_creation=False)
    response = await harness.ask(request, 12, MetadataResponse, broker=broker)
    return response.topics[0].error_code


async def configured(harness: BrokerHarness, name: str, broker: int) -> int:
    resource = DescribeConfigsRequest.Resource(ResourceType.TOPIC, name, None)
    request = DescribeConfigsRequest([resource])
    response = await harness.ask(request, 4, DescribeConfigsResponse, broker=broker)
    return response.results[0].error_code


@with_three_brokers
async def test_every_broker_knows_a_topic_that_was_just_created(harness: BrokerHarness) -> None:
    for number in range(5):
        for broker in (1, 2):
            await harness.create(f"described-{number}-{broker}")
            assert await described(harness, f"described-{number}-{broker}", broker) == 0
            topic_id = await harness.create(f"asked-{number}-{broker}")
            by_name = MetadataRequest.Topic(name=f"asked-{number}-{broker}")
            assert await known(harness, by_name, broker) == 0
            await harness.create(f"configured-{number}-{broker}")
            assert await configured(harness, f"configured-{number}-{broker}", broker) == 0
            topic_id = await harness.create(f"id-{number}-{broker}")
            assert await known(harness, MetadataRequest.Topic(topic_id, None), broker) == 0


@with_harness
async def test_a_topic_that_does_not_exist_is_unknown(harness: BrokerHarness) -> None:
    assert await described(harness, "nowhere", 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await described(harness, "no/name", 0) == ErrorCode.INVALID_TOPIC_EXCEPTION


@with_harness
async def test_requests_for_unknown_topics_share_reads_of_the_store(harness: BrokerHarness) -> None:
    """A hundred clients that wait for a topic cause at most two reads at a time."""
    cluster, questions = harness.broker.cluster, 0
    latest_revision = cluster.latest_revision

    async def counted() -> int:
        nonlocal questions
        questions += 1
        return await latest_revision()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "latest_revision", counted)
        await asyncio.gather(*(described(harness, f"nowhere-{at}", 0) for at in range(100)))
    assert questions <= 2


@with_harness
async def test_while_the_store_is_unreachable_requests_are_answered_from_the_image(
    harness: BrokerHarness,
) -> None:
    async def away() -> int:
        raise StoreError("the store is away")

    async def silent() -> int:
        await asyncio.Event().wait()
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fresh_topics, "CATCH_UP_S", 0.01)
        for latest_revision in (away, silent):
            patch.setattr(harness.broker.cluster, "latest_revision", latest_revision)
            assert await described(harness, "nowhere", 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
