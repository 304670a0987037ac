"""Clients of other libraries move replicas and elect leaders, on a cluster of two brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from compat.clients.base import wait_until
from compat.cluster import SETTINGS, Cluster
from penstock.testing.slowness import patient


@pytest.fixture
def two(tmp_path: Path) -> Iterator[str]:
    settings = {**SETTINGS, "offsets.topic.num.partitions": "2"}
    cluster = Cluster(tmp_path / "data", 2, settings)
    try:
        yield cluster.start()
        cluster.stop()
    finally:
        cluster.kill()


def test_a_partition_is_moved_and_its_preferred_leader_elected(two: str) -> None:
    """kafka-python adds a replica and makes it the preferred leader, confluent-kafka elects it.
    Both get Kafka's error codes for what is not possible."""
    confluent: Any = AdminClient({"bootstrap.servers": two})
    confluent.create_topics([NewTopic("t", 1, 1)])["t"].result(120)
    home = confluent.list_topics("t", patient(30)).topics["t"].partitions[0].replicas[0]
    away = 1 - home
    topic_partition = TopicPartition("t", 0)
    python: Any = KafkaAdminClient(bootstrap_servers=two.split(","))
    try:
        assert python.alter_partition_reassignments({topic_partition: [away, home]}) == {
            topic_partition: None
        }
        assert wait_until(lambda: not python.list_partition_reassignments())
        refused = python.alter_partition_reassignments({topic_partition: [away, 9]})[
            topic_partition
        ]
        assert refused.errno == 39  # INVALID_REPLICA_ASSIGNMENT
        idle = python.alter_partition_reassignments({topic_partition: None})[topic_partition]
        assert idle.errno == 85  # NO_REASSIGNMENT_IN_PROGRESS
    finally:
        python.close()

    def partition() -> Any:
        return confluent.list_topics("t", patient(30)).topics["t"].partitions[0]

    assert wait_until(lambda: sorted(partition().isrs) == [0, 1])
    assert partition().replicas == [away, home]
    wanted = [ConfluentPartition("t", 0), ConfluentPartition("t", 7)]
    outcome = confluent.elect_leaders(ElectionType.PREFERRED, wanted).result(120)
    codes = {each.partition: error and error.code() for each, error in outcome.items()}
    # The cluster may have elected it by itself in the meantime.
    assert codes[0] in (None, 84)
    assert codes[7] == 3
    assert wait_until(lambda: partition().leader == away)
