"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments."""

from __future__ import annotations

from broker.harness import BrokerHarness, with_harness, with_harness_of
from penstock.metadata.isr import IsrChange, alter_isrs
from penstock.metadata.model import Partition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

NONE = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def partition(harness: BrokerHarness, topic: str = "t", index: int = 0) -> Partition:
    return harness.broker.cluster.image.topics[topic].partitions[index]


async def move(
    harness: BrokerHarness,
    *wanted: tuple[str, int, list[int] | None],
    version: int = 0,
    same_number: bool = False,
) -> dict[tuple[str, int], tuple[int, str | None]]:
    request = AlterPartitionReassignmentsRequest(allow_replication_factor_change=not same_number)
    for topic, index, replicas in wanted:
        part = AlterPartitionReassignmentsRequest.Partition(index, replicas)
        request.topics.append(AlterPartitionReassignmentsRequest.Topic(topic, [part]))
    response = await harness.ask(request, version, AlterPartitionReassignmentsResponse)
    assert (response.error_code, response.error_message) == (NONE, None)
    return {
        (topic.name, part.partition_index): (part.error_code, part.error_message)
        for topic in response.responses
        for part in topic.partitions
    }


async def moving(
    harness: BrokerHarness, topics: list[ListPartitionReassignmentsRequest.Topic] | None = None
) -> dict[tuple[str, int], tuple[list[int], list[int], list[int]]]:
    response = await harness.ask(
        ListPartitionReassignmentsRequest(topics=topics),
        0,
        ListPartitionReassignmentsResponse,
        broker=len(harness.brokers) - 1,
    )
    assert (response.error_code, response.error_message) == (NONE, None)
    return {
        (topic.name, part.partition_index): (
            part.replicas,
            part.adding_replicas,
            part.removing_replicas,
        )
        for topic in response.topics
        for part in topic.partitions
    }


async def elect(
    harness: BrokerHarness,
    topic_partitions: list[tuple[str, int]] | None,
    version: int = 2,
    kind: int = 0,
) -> dict[tuple[str, int], int]:
    topics = None
    if topic_partitions is not None:
        topics = [ElectLeadersRequest.Topic(topic, [index]) for topic, index in topic_partitions]
    request = ElectLeadersRequest(kind, topics)
    response = await harness.ask(request, version, ElectLeadersResponse)
    assert response.error_code == NONE
    found = {}
    for topic in response.replica_election_results:
        for part in topic.partition_result:
            assert (part.error_message is None) == (part.error_code == NONE)
            found[topic.topic, part.partition_id] = part.error_code
    return found


async def in_sync(harness: BrokerHarness, *brokers: int) -> None:
    """Changes the ISR as the partition's leader would."""
    image = harness.broker.cluster.image
    epochs = {each: info.broker_epoch for each, info in image.brokers.items()}
    before = partition(harness)
    change = IsrChange(
        image.topics["t"].topic_id,
        0,
        tuple((each, epochs[each]) for each in brokers),
        before.leader_epoch,
        before.partition_epoch,
    )
    leader = before.leader
    (answer,) = await harness.broker.controller.decide(
        lambda image: alter_isrs(image, leader, epochs[leader], [change])
    )
    assert answer.error in (NONE, ErrorCode.NEW_LEADER_ELECTED)


@with_harness_of(brokers=3)
async def test_a_reassignment_is_started_listed_and_cancelled(harness: BrokerHarness) -> None:
    """In both versions. Any broker can list it."""
    await harness.create("t")
    (home,) = partition(harness).replicas
    away = [each for each in range(3) if each != home]
    for version in (0, 1):
        assert await moving(harness) == {}
        assert await move(harness, ("t", 0, away), version=version) == {("t", 0): (NONE, None)}
        assert partition(harness).replicas == (*away, home)
        revision = harness.broker.cluster.image.revision
        await harness.brokers[-1].cluster.wait_for(revision)
        assert await moving(harness) == {("t", 0): ([*away, home], away, [home])}
        named = ListPartitionReassignmentsRequest.Topic
        assert await moving(harness, [named("x", [0]), named("t", [1])]) == {}
        assert len(await moving(harness, [named("t", [0, 0])])) == 1
        assert await move(harness, ("t", 0, None), version=version) == {("t", 0): (NONE, None)}
        await harness.brokers[-1].cluster.wait_for(harness.broker.cluster.image.revision)
        assert partition(harness).replicas == (home,)


@with_harness_of(brokers=2)
async def test_invalid_reassignments_are_refused_one_by_one(harness: BrokerHarness) -> None:
    """With Kafka's error codes and a message. The valid ones of the same request are started."""
    await harness.create("t", 3)
    answers = await move(
        harness,
        ("t", 0, [9]),
        ("x", 0, [0]),
        ("t", 7, [0]),
        ("t", 1, None),
        ("t", 2, [0, 1]),
    )
    assert {topic_partition: code for topic_partition, (code, _) in answers.items()} == {
        ("t", 0): ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ("x", 0): UNKNOWN,
        ("t", 7): UNKNOWN,
        ("t", 1): ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ("t", 2): NONE,
    }
    assert all(words for code, words in answers.values() if code != NONE)
    answers = await move(harness, ("t", 0, [0, 1]), version=1, same_number=True)
    assert answers["t", 0][0] == ErrorCode.INVALID_REPLICATION_FACTOR
    answers = await move(harness, ("t", 0, [0, 1]), ("t", 0, [1]), ("t", 1, [0, 1]))
    assert [code for code, _ in answers.values()] == [ErrorCode.INVALID_REQUEST, NONE]
    assert not partition(harness).is_moving


@with_harness_of(brokers=2)
async def test_the_preferred_replica_is_elected_only_while_it_is_in_sync(
    harness: BrokerHarness,
) -> None:
    """Until then the answer is PREFERRED_LEADER_NOT_AVAILABLE, in every version."""
    await harness.create("t")
    home = partition(harness).leader
    away = 1 - home
    await move(harness, ("t", 0, [away, home]))
    unavailable = {("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    for version in range(3):
        assert await elect(harness, [("t", 0)], version) == unavailable
    assert await elect(harness, None) == unavailable
    await in_sync(harness, home, away)
    assert await elect(harness, [("t", 0), ("t", 0), ("t", 4), ("x", 0)]) == {
        ("t", 0): NONE,
        ("t", 4): UNKNOWN,
        ("x", 0): UNKNOWN,
    }
    assert partition(harness).leader == away
    needless = {("t", 0): ErrorCode.ELECTION_NOT_NEEDED}
    assert await elect(harness, [("t", 0)]) == needless
    assert await elect(harness, [("t", 0)], kind=1) == needless
    assert await elect(harness, None) == {}


@with_harness
async def test_an_unknown_type_of_election_is_refused(harness: BrokerHarness) -> None:
    """The error is set for the whole response and for each partition."""
    request = ElectLeadersRequest(5, [ElectLeadersRequest.Topic("t", [0])])
    response = await harness.ask(request, 2, ElectLeadersResponse)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    (topic,) = response.replica_election_results
    assert [part.error_code for part in topic.partition_result] == [ErrorCode.INVALID_REQUEST]
