"""Creating, growing and deleting topics."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.metadata.config_values import encode_configs
from penstock.metadata.decisions import Change, Decision, guarded
from penstock.metadata.keys import CONTROLLER_KEY, broker_config_key, topic_key
from penstock.metadata.membership import claim_controller
from penstock.metadata.model import Controller, Partition, Topic
from penstock.metadata.topic_ids import ZERO_ID
from penstock.metadata.topics import (
    TopicDefaults,
    TopicSpec,
    create_partitions,
    create_topic,
    delete_topic,
    validate_topic_name,
)
from penstock.wire.errors import ErrorCode, KafkaError

from .cluster import Cluster, Conflict

DEFAULTS = TopicDefaults(num_partitions=4, replication_factor=2)


def create(cluster: Cluster, spec: TopicSpec, start_index: int = 0) -> Topic:
    return cluster.commit(
        create_topic(
            cluster.image,
            spec,
            topic_id=cluster.new_id(),
            defaults=DEFAULTS,
            start_index=start_index,
        )
    )


def refused(cluster: Cluster, spec: TopicSpec) -> KafkaError:
    before = dict(cluster.entries)
    with pytest.raises(KafkaError) as caught:
        create(cluster, spec)
    assert cluster.entries == before
    return caught.value


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "x" * 249, "__consumer_offsets"])
def test_valid_topic_names(name: str) -> None:
    """Letters, digits, dots, underscores and dashes, up to 249."""
    validate_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "a:b", "٣"])
def test_invalid_topic_names(name: str) -> None:
    """They are refused with Kafka's error code, and nothing is created."""
    error = refused(Cluster(brokers=1), TopicSpec(name, 1, 1))
    assert error.code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_topic_is_created_as_requested() -> None:
    """All replicas are in sync, the first one leads with its present broker epoch, all epochs are
    0."""
    cluster = Cluster(brokers=3)
    topic = create(cluster, TopicSpec("t", 3, 2, configs=[("retention.ms", " 5 ")]), 1)
    assert cluster.image.topics["t"] == topic
    assert [partition.leader for partition in topic.partitions] == [1, 2, 0]
    for partition in topic.partitions:
        replicas = partition.replicas
        epochs = tuple(cluster.image.brokers[each].broker_epoch for each in replicas)
        assert partition == Partition(replicas, replicas, (), replicas[0], 0, 0, epochs[0], epochs)
    assert topic.configs == {"retention.ms": "5"}
    assert not topic.is_internal


def test_defaults_are_used_for_what_is_not_given() -> None:
    """-1 stands for the default, as in CreateTopics from version 4 on."""
    topic = create(Cluster(brokers=3), TopicSpec("t"))
    assert len(topic.partitions) == 4
    assert {len(partition.replicas) for partition in topic.partitions} == {2}


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (TopicSpec("t", 0, 1), ErrorCode.INVALID_PARTITIONS),
        (TopicSpec("t", -2, 1), ErrorCode.INVALID_PARTITIONS),
        (TopicSpec("t", 20_001, 1), ErrorCode.INVALID_PARTITIONS),
        (TopicSpec("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicSpec("t", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicSpec("t", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicSpec("t", 1, 1, configs=[("a", "b")]), ErrorCode.INVALID_CONFIG),
        (TopicSpec("t", 1, 1, configs=[("retention.ms", None)]), ErrorCode.INVALID_CONFIG),
        (TopicSpec("t", 1, 1, configs=[("retention.ms", "x")]), ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_topics_are_refused(spec: TopicSpec, code: ErrorCode) -> None:
    """With the code that Kafka's clients know, and a message that says what to do."""
    error = refused(Cluster(brokers=3), spec)
    assert error.code is code
    assert error.message.endswith(".")


def test_a_name_can_be_used_once() -> None:
    """A second topic is refused, and so is one with the same metric names."""
    cluster = Cluster(brokers=1)
    cluster.create("a.b")
    assert refused(cluster, TopicSpec("a.b", 1, 1)).code is ErrorCode.TOPIC_ALREADY_EXISTS
    error = refused(cluster, TopicSpec("a_b", 1, 1))
    assert error.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "'a.b'" in error.message


def test_two_creations_based_on_one_image_cannot_both_succeed() -> None:
    """The second one finds that the key exists, and must be decided again."""
    cluster = Cluster(brokers=1)
    decisions = [
        create_topic(
            cluster.image, TopicSpec("t", 1, 1), topic_id=cluster.new_id(), defaults=DEFAULTS
        )
        for _ in range(2)
    ]
    cluster.commit(decisions[0])
    with pytest.raises(Conflict):
        cluster.commit(decisions[1])


def test_a_manual_assignment_is_kept() -> None:
    """In the given order: the first replica is the preferred leader."""
    spec = TopicSpec("t", assignments=[(1, [0, 2]), (0, [2, 1])])
    topic = create(Cluster(brokers=3), spec)
    assert [partition.replicas for partition in topic.partitions] == [(2, 1), (0, 2)]
    assert [partition.leader for partition in topic.partitions] == [2, 0]


@pytest.mark.parametrize(
    "assignments",
    [
        [(0, [])],
        [(0, [0, 0])],
        [(0, [0, 7])],
        [(0, [0]), (1, [0, 1])],
        [(1, [0])],
        [(0, [0]), (0, [1])],
        [(0, [0]), (2, [1])],
    ],
)
def test_an_invalid_assignment_is_refused(assignments: Any) -> None:
    """No replicas, the same twice, unknown brokers, different counts, gaps, duplicates."""
    error = refused(Cluster(brokers=3), TopicSpec("t", assignments=assignments))
    assert error.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize(("partitions", "replicas"), [(1, -1), (-1, 1)])
def test_an_assignment_excludes_partition_and_replica_counts(
    partitions: int, replicas: int
) -> None:
    """They could only contradict it."""
    spec = TopicSpec("t", partitions, replicas, assignments=[(0, [0])])
    assert refused(Cluster(brokers=1), spec).code is ErrorCode.INVALID_REQUEST


def test_a_topic_id_that_is_taken_raises_value_error() -> None:
    """The caller must generate another: reserved ids and those of other topics cannot be used."""
    cluster = Cluster(brokers=1)
    for topic_id in (ZERO_ID, cluster.create("t").topic_id):
        with pytest.raises(ValueError, match="generate another"):
            create_topic(cluster.image, TopicSpec("u", 1, 1), topic_id=topic_id, defaults=DEFAULTS)


def test_topics_are_deleted_by_name_and_by_id() -> None:
    """The key is deleted, the name is free again, and the next topic gets another id."""
    cluster = Cluster(brokers=1)
    first = cluster.create("t")
    assert cluster.commit(delete_topic(cluster.image, name="t")) == first
    second = cluster.create("t")
    assert second.topic_id != first.topic_id
    assert cluster.commit(delete_topic(cluster.image, topic_id=second.topic_id)) == second
    assert topic_key("t") not in cluster.entries


def test_invalid_deletions_are_refused() -> None:
    """The codes for unknown names and ids differ. A request must give exactly one of the two."""
    cluster = Cluster(brokers=1)
    topic = cluster.create("t")
    requests: list[tuple[dict[str, Any], ErrorCode]] = [
        ({"name": "u"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic_id": b"\x09" * 16}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({}, ErrorCode.INVALID_REQUEST),
        ({"topic_id": ZERO_ID}, ErrorCode.INVALID_REQUEST),
        ({"name": "t", "topic_id": topic.topic_id}, ErrorCode.INVALID_REQUEST),
    ]
    for arguments, code in requests:
        with pytest.raises(KafkaError) as caught:
            delete_topic(cluster.image, **arguments)
        assert caught.value.code is code


def test_partitions_are_added_after_the_others() -> None:
    """The old ones do not change. Leaders continue around the ring."""
    cluster = Cluster(brokers=3)
    before = cluster.create("t", 2, 2, start_index=1)
    after = cluster.commit(create_partitions(cluster.image, "t", 6))
    assert after.partitions[:2] == before.partitions
    assert [partition.leader for partition in after.partitions] == [1, 2, 0, 1, 2, 0]
    assert {len(partition.replicas) for partition in after.partitions} == {2}
    assert (after.topic_id, after.configs) == (before.topic_id, before.configs)
    assert cluster.image.topics["t"] == after


def test_partitions_are_added_as_assigned() -> None:
    """The assignments are only for the new partitions."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 1, 2)
    after = cluster.commit(create_partitions(cluster.image, "t", 3, [[2, 1], [0, 2]]))
    assert [partition.replicas for partition in after.partitions[1:]] == [(2, 1), (0, 2)]


@pytest.mark.parametrize(
    ("count", "assignments", "code"),
    [
        (2, None, ErrorCode.INVALID_PARTITIONS),
        (1, None, ErrorCode.INVALID_PARTITIONS),
        (-1, None, ErrorCode.INVALID_PARTITIONS),
        (20_001, None, ErrorCode.INVALID_PARTITIONS),
        (3, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[0, 1], [1, 2]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[0]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[0, 9]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_invalid_partition_counts_and_assignments_are_refused(
    count: int, assignments: Any, code: ErrorCode
) -> None:
    """Fewer, as many, too many, or another number of assignments than of new partitions."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 2, 2)
    with pytest.raises(KafkaError) as caught:
        create_partitions(cluster.image, "t", count, assignments)
    assert caught.value.code is code


def test_new_partitions_need_a_topic_and_enough_brokers() -> None:
    """New replicas are placed only on live brokers."""
    cluster = Cluster(brokers=2)
    cluster.create("t", 1, 2)
    cluster.kill(1)
    for name, code in (
        ("u", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", ErrorCode.INVALID_REPLICATION_FACTOR),
    ):
        with pytest.raises(KafkaError) as caught:
            create_partitions(cluster.image, name, 5)
        assert caught.value.code is code


def test_a_former_controller_changes_nothing() -> None:
    """Its decision is conditional on its claim, which is gone."""
    cluster = Cluster(brokers=2)
    claim = claim_controller(cluster.image, 0)
    assert claim is not None
    cluster.commit(claim)
    term = cluster.image.controller
    assert isinstance(term, Controller)
    decision = create_topic(
        cluster.image, TopicSpec("t", 1, 1), topic_id=cluster.new_id(), defaults=DEFAULTS
    )
    del cluster.entries[CONTROLLER_KEY]
    with pytest.raises(Conflict):
        cluster.commit(guarded(decision, term))
    assert topic_key("t") not in cluster.entries


def test_internal_topics_are_recognized_by_name() -> None:
    """Tools and Spark leave them out of listings."""
    assert Cluster(brokers=1).create("__consumer_offsets", 50).is_internal


def test_new_partitions_are_not_placed_on_a_cordoned_broker() -> None:
    """This holds for existing topics too. A manual assignment may name the broker (KIP-1066)."""
    cluster = Cluster(brokers=3)
    cordon = Change(broker_config_key(1), encode_configs({"cordoned.log.dirs": "*"}), 0)
    cluster.commit(Decision((cordon,), None))
    assert cluster.image.cordoned == {1}
    create(cluster, TopicSpec("t", 4, 2))
    assert {each for p in cluster.image.topics["t"].partitions for each in p.replicas} == {0, 2}
    with pytest.raises(
        KafkaError, match=r"2 broker\(s\) can take replicas, and 1 more are cordoned"
    ):
        create(cluster, TopicSpec("u", 4, 3))
    create(cluster, TopicSpec("v", -1, -1, assignments=((0, (1, 2)),)))
    assert cluster.image.topics["v"].partitions[0].replicas == (1, 2)
