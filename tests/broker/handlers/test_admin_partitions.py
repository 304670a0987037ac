"""CreatePartitions, DescribeTopicPartitions and ListPartitionReassignments."""

from __future__ import annotations

from broker.harness import BrokerHarness, with_harness, with_harness_of
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

Grown = CreatePartitionsRequest.Topic
Asked = DescribeTopicPartitionsRequest.Topic
Cursor = DescribeTopicPartitionsRequest.Cursor


async def grow(
    harness: BrokerHarness, *topics: Grown, version: int = 3, validate_only: bool = False
) -> list[tuple[str, int]]:
    request = CreatePartitionsRequest(list(topics), 30_000, validate_only)
    response = await harness.ask(request, version, CreatePartitionsResponse)
    for answer in response.results:
        assert (answer.error_message is None) == (answer.error_code == 0)
    return [(answer.name, answer.error_code) for answer in response.results]


def grown(name: str, count: int, *assignments: list[int]) -> Grown:
    assigned = [CreatePartitionsRequest.Assignment(each) for each in assignments]
    return Grown(name, count, assigned or None)


async def pages(
    harness: BrokerHarness, names: list[str], limit: int
) -> list[list[tuple[str | None, list[int]]]]:
    """Follows the cursor from page to page. Returns the topics of each page with their
    partitions.
    """
    cursor: Cursor | None = None
    seen = []
    while True:
        request = DescribeTopicPartitionsRequest([Asked(name) for name in names], limit, cursor)
        response = await harness.ask(request, 0, DescribeTopicPartitionsResponse)
        seen.append(
            [(each.name, [p.partition_index for p in each.partitions]) for each in response.topics]
        )
        if response.next_cursor is None:
            return seen
        cursor = Cursor(response.next_cursor.topic_name, response.next_cursor.partition_index)


@with_harness
async def test_new_partitions_accept_records_at_once(harness: BrokerHarness) -> None:
    """Existing partitions keep their records."""
    await harness.create("orders", 1)
    await harness.produce("orders", [b"x"])
    for version in range(4):
        count = 2 + version
        assert await grow(harness, grown("orders", count), version=version) == [("orders", 0)]
        assert await harness.produce("orders", [b"y"], count - 1) == 0
    assert await harness.produce("orders", [b"z"]) == 1


@with_harness
async def test_create_partitions_answers_for_every_topic(harness: BrokerHarness) -> None:
    """In the order of the request. A topic that is named twice is refused, and answered once."""
    for name in ("same", "less", "more", "twice", "__consumer_offsets"):
        await harness.create(name, 2)
    answers = await grow(
        harness,
        grown("same", 2),
        grown("less", 1),
        grown("more", 3),
        grown("none", 3),
        grown("twice", 3),
        grown("__consumer_offsets", 3),
        grown("twice", 4),
    )
    assert answers == [
        ("same", ErrorCode.INVALID_PARTITIONS),
        ("less", ErrorCode.INVALID_PARTITIONS),
        ("more", ErrorCode.NONE),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("twice", ErrorCode.INVALID_REQUEST),
        ("__consumer_offsets", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    topics = harness.broker.cluster.image.topics
    assert {name: len(topic.partitions) for name, topic in topics.items()} == {
        "same": 2,
        "less": 2,
        "more": 3,
        "twice": 2,
        "__consumer_offsets": 2,
    }


@with_harness
async def test_validate_only_adds_no_partitions(harness: BrokerHarness) -> None:
    """The response has the same errors as a real change."""
    await harness.create("a")
    answers = await grow(harness, grown("a", 5), grown("b", 5), validate_only=True)
    assert answers == [("a", ErrorCode.NONE), ("b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert len(harness.broker.cluster.image.topics["a"].partitions) == 1


@with_harness_of(brokers=2)
async def test_new_partitions_are_created_on_the_assigned_brokers(harness: BrokerHarness) -> None:
    """There must be one assignment for each new partition, to brokers that exist."""
    for name in ("good", "short", "far"):
        await harness.create(name)
    answers = await grow(
        harness,
        grown("good", 3, [1], [0]),
        grown("short", 3, [1]),
        grown("far", 2, [9]),
    )
    assert answers == [
        ("good", ErrorCode.NONE),
        ("short", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("far", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ]
    partitions = harness.broker.cluster.image.topics["good"].partitions
    assert [partition.replicas for partition in partitions[1:]] == [(1,), (0,)]


@with_harness_of(brokers=2)
async def test_partitions_are_described_with_their_replicas(harness: BrokerHarness) -> None:
    """Leader, leader epoch, replicas, ISR, ELR and the topic's id."""
    topic_id = await harness.create("orders", 2)
    request = DescribeTopicPartitionsRequest([Asked("orders")])
    response = await harness.ask(request, 0, DescribeTopicPartitionsResponse)
    (topic,) = response.topics
    assert (topic.error_code, topic.name, topic.topic_id) == (ErrorCode.NONE, "orders", topic_id)
    assert not topic.is_internal
    assert topic.topic_authorized_operations == 3576
    assert {partition.leader_id for partition in topic.partitions} == {0, 1}
    for partition in topic.partitions:
        assert partition.leader_epoch == 0
        assert partition.replica_nodes == partition.isr_nodes == [partition.leader_id]
        assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])
        assert partition.offline_replicas == []
    assert response.next_cursor is None


@with_harness
async def test_unknown_topics_are_described_with_an_error(harness: BrokerHarness) -> None:
    """They are sorted among the others, each once. A request for all topics has no unknown ones."""
    await harness.create("b")
    request = DescribeTopicPartitionsRequest([Asked(name) for name in ("c", "b", "a?", "b")])
    response = await harness.ask(request, 0, DescribeTopicPartitionsResponse)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("a?", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("b", ErrorCode.NONE),
        ("c", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    everything = await harness.ask(
        DescribeTopicPartitionsRequest(), 0, DescribeTopicPartitionsResponse
    )
    assert [topic.name for topic in everything.topics] == ["b"]


@with_harness
async def test_pages_end_at_the_limit_and_continue_at_the_cursor(harness: BrokerHarness) -> None:
    """A page may end inside a topic or between two topics. Every partition is returned once."""
    await harness.create("b", 3)
    await harness.create("a", 2)
    await harness.create("c", 1)
    assert await pages(harness, [], 2) == [
        [("a", [0, 1])],
        [("b", [0, 1])],
        [("b", [2]), ("c", [0])],
    ]
    assert await pages(harness, ["c", "x", "a"], 2) == [
        [("a", [0, 1])],
        [("c", [0]), ("x", [])],
    ]
    assert await pages(harness, ["b"], 0) == [[("b", [0])], [("b", [1])], [("b", [2])]]
    assert len(await pages(harness, [], 2000)) == 1


@with_harness
async def test_a_cursor_at_a_deleted_topic_continues_with_the_next_topic(
    harness: BrokerHarness,
) -> None:
    """A topic may be deleted between two pages."""
    await harness.create("b", 3)
    request = DescribeTopicPartitionsRequest(cursor=Cursor("a", 1))
    response = await harness.ask(request, 0, DescribeTopicPartitionsResponse)
    assert [(each.name, len(each.partitions)) for each in response.topics] == [("b", 3)]
    past_the_end = DescribeTopicPartitionsRequest(cursor=Cursor("b", 7))
    response = await harness.ask(past_the_end, 0, DescribeTopicPartitionsResponse)
    assert [(each.name, len(each.partitions)) for each in response.topics] == [("b", 0)]
    assert response.next_cursor is None


@with_harness
async def test_an_invalid_cursor_is_refused(harness: BrokerHarness) -> None:
    """It names a topic that was not asked for, or a negative partition."""
    await harness.create("a")
    for cursor in (Cursor("b", 0), Cursor("a", -1)):
        request = DescribeTopicPartitionsRequest([Asked("a")], cursor=cursor)
        response = await harness.ask(request, 0, DescribeTopicPartitionsResponse)
        assert [each.error_code for each in response.topics] == [ErrorCode.INVALID_REQUEST]


@with_harness
async def test_no_reassignments_are_listed_when_none_is_in_progress(harness: BrokerHarness) -> None:
    """Unknown topics in the request do not cause an error."""
    await harness.create("a")
    topics = [ListPartitionReassignmentsRequest.Topic(name, [0]) for name in ("a", "none")]
    for asked in (None, topics):
        request = ListPartitionReassignmentsRequest(topics=asked)
        response = await harness.ask(request, 0, ListPartitionReassignmentsResponse)
        assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
        assert response.topics == []
