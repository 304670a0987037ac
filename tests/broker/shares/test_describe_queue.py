"""DescribeQueue: what a leader says about the work of a share group."""

from __future__ import annotations

from broker.access.clients import AUTHORIZER, Client, create, entry
from broker.harness import BrokerHarness, with_harness_of
from broker.shares.share_client import GROUP, ON, Member, queue, share_groups
from penstock.security.acls import AclOperation, ResourceType
from penstock.shares.states import AckType
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import DescribeQueueRequest, DescribeQueueResponse

UNKNOWN = -1


async def describe(
    harness: BrokerHarness | Client,
    partition: int = 0,
    *,
    topic: str = "orders",
    group: str = GROUP,
    start: int = UNKNOWN,
) -> DescribeQueueResponse:
    asked = DescribeQueueRequest.Partition(partition, start)
    request = DescribeQueueRequest(group, [DescribeQueueRequest.Topic(topic, [asked])])
    return await harness.ask(request, 0, DescribeQueueResponse)


def only(response: DescribeQueueResponse) -> DescribeQueueResponse.Partition:
    assert response.error_code == 0
    ((found,),) = (topic.partitions for topic in response.topics)
    return found


def numbers(found: DescribeQueueResponse.Partition) -> tuple[int, int, int]:
    assert found.error_code == 0
    return found.backlog, found.in_flight, found.redelivered


@with_harness_of(kafka={"group.share.enable": "false"})
async def test_it_is_not_served_while_share_groups_are_off(harness: BrokerHarness) -> None:
    assert ApiKey.DESCRIBE_QUEUE not in harness.services.apis


@share_groups
async def test_jobs_are_counted_from_their_delivery_to_their_end(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    await harness.produce("orders", [b"a", b"b", b"c"])
    anna = Member(harness, topic_id)
    await anna.fetch()
    assert numbers(only(await describe(harness))) == (3, 3, 0)
    assert await anna.acknowledge((0, 0, int(AckType.ACCEPT))) is ErrorCode.NONE
    assert await anna.acknowledge((1, 1, int(AckType.RELEASE))) is ErrorCode.NONE
    found = only(await describe(harness))
    assert numbers(found) == (2, 1, 1)
    assert found.oldest_ms > 0
    await anna.fetch()
    assert numbers(only(await describe(harness))) == (2, 2, 1)
    assert await anna.acknowledge((1, 2, int(AckType.ACCEPT))) is ErrorCode.NONE
    found = only(await describe(harness))
    assert numbers(found) == (0, 0, 0)
    assert found.oldest_ms == UNKNOWN


@share_groups
async def test_without_a_session_the_start_offset_of_the_request_counts(
    harness: BrokerHarness,
) -> None:
    """The state is not in memory then, and asking for it does not load it."""
    await queue(harness)
    await harness.produce("orders", [b"a", b"b"])
    found = only(await describe(harness, start=1))
    assert numbers(found) == (UNKNOWN, 0, UNKNOWN)
    assert found.oldest_ms > 0
    assert only(await describe(harness, start=2)).oldest_ms == UNKNOWN
    assert not list(harness.broker.shares)


@share_groups
async def test_a_partition_that_does_not_exist_has_an_error(harness: BrokerHarness) -> None:
    await queue(harness)
    for topic, partition in (("orders", 1), ("none", 0)):
        found = only(await describe(harness, partition, topic=topic))
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@with_harness_of(kafka={**ON, **AUTHORIZER})
async def test_it_needs_describe_on_the_group_and_on_the_topic(harness: BrokerHarness) -> None:
    await queue(harness)
    ben = Client(harness, "User:ben")
    refused = await describe(ben)
    assert refused.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    group, topic = (
        entry("User:ben", kind, name, AclOperation.DESCRIBE)
        for kind, name in ((ResourceType.GROUP, GROUP), (ResourceType.TOPIC, "orders"))
    )
    await create(harness, [group])
    assert only(await describe(ben)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    await create(harness, [topic])
    assert only(await describe(ben)).error_code == ErrorCode.NONE
