"""Elects leaders, moves replicas and removes brokers.

These functions concern many partitions, so they return refusals as outcomes and do not raise them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.client.admin.operations import broker_timeout_ms
from penstock.client.cluster import Cluster
from penstock.client.errors import ApiNotServed, BrokerError, TopicNotFound, check, outcome
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)

_PREFERRED: Final = 0
_UNCLEAN: Final = 1


@dataclass(frozen=True, slots=True)
class Reassignment:
    """An ongoing reassignment."""

    replicas: tuple[int, ...]
    """All brokers that have the partition or will have it; those that will stay come first."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas when the reassignment is complete."""
        return tuple(each for each in self.replicas if each not in self.removing)


async def elect_leaders(
    cluster: Cluster,
    topic_partitions: Sequence[TopicPartition] | None = None,
    *,
    unclean: bool = False,
) -> dict[TopicPartition, BrokerError | None]:
    """Elects the preferred replica as leader of these partitions, or of all partitions.

    With `unclean`, partitions without a leader get any live replica as their leader; records that
    only other replicas have are lost. When all partitions were requested, the result omits those
    that needed no election.
    """
    request = ElectLeadersRequest(
        election_type=_UNCLEAN if unclean else _PREFERRED,
        topic_partitions=None
        if topic_partitions is None
        else [ElectLeadersRequest.Topic(*each) for each in _by_topic(topic_partitions).items()],
        timeout_ms=broker_timeout_ms(cluster),
    )
    answer = await cluster.ask_controller(
        request, ElectLeadersResponse, lambda answer: [answer.error_code], idempotent=True
    )
    check(answer.error_code, subject="ElectLeaders")
    return {
        topic_partition: _outcome(topic_partition, part.error_code, part.error_message)
        for topic in answer.replica_election_results
        for part in topic.partition_result
        for topic_partition in (TopicPartition(topic.topic, part.partition_id),)
    }


async def alter_partition_reassignments(
    cluster: Cluster,
    replicas: Mapping[TopicPartition, Sequence[int] | None],
    *,
    allow_replication_factor_change: bool = True,
) -> dict[TopicPartition, BrokerError | None]:
    """Starts to move partitions to these brokers, listed with the preferred leader first.

    None cancels the reassignment of a partition.
    """
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=broker_timeout_ms(cluster),
        allow_replication_factor_change=allow_replication_factor_change,
    )
    if not allow_replication_factor_change:
        connection = await cluster.controller_connection()
        if connection.version_of(AlterPartitionReassignmentsRequest) < 1:
            raise ApiNotServed(
                "the controller does not support allow_replication_factor_change=False: leave it "
                "out"
            )
    for topic, indexes in _by_topic(replicas).items():
        parts: list[AlterPartitionReassignmentsRequest.Partition] = []
        for index in indexes:
            target = replicas[TopicPartition(topic, index)]
            parts.append(
                AlterPartitionReassignmentsRequest.Partition(
                    index, None if target is None else list(target)
                )
            )
        request.topics.append(AlterPartitionReassignmentsRequest.Topic(topic, parts))
    answer = await cluster.ask_controller(
        request,
        AlterPartitionReassignmentsResponse,
        lambda answer: [answer.error_code],
        idempotent=True,
    )
    check(answer.error_code, answer.error_message, "AlterPartitionReassignments")
    for topic in _by_topic(replicas):
        cluster.forget(topic)
    return {
        topic_partition: _outcome(topic_partition, part.error_code, part.error_message)
        for found in answer.responses
        for part in found.partitions
        for topic_partition in (TopicPartition(found.name, part.partition_index),)
    }


async def list_partition_reassignments(
    cluster: Cluster, topic_partitions: Sequence[TopicPartition] | None = None
) -> dict[TopicPartition, Reassignment]:
    """Returns the ongoing reassignments of these partitions, or of all partitions."""
    request = ListPartitionReassignmentsRequest(
        timeout_ms=broker_timeout_ms(cluster),
        topics=None
        if topic_partitions is None
        else [
            ListPartitionReassignmentsRequest.Topic(*each)
            for each in _by_topic(topic_partitions).items()
        ],
    )
    # Any Penstock broker knows, and there may be no controller at the moment.
    answer = await cluster.ask_any(request, ListPartitionReassignmentsResponse)
    if answer.error_code == ErrorCode.NOT_CONTROLLER:
        answer = await cluster.ask_controller(
            request,
            ListPartitionReassignmentsResponse,
            lambda answer: [answer.error_code],
            idempotent=True,
        )
    check(answer.error_code, answer.error_message, "ListPartitionReassignments")
    return {
        TopicPartition(topic.name, part.partition_index): Reassignment(
            tuple(part.replicas), tuple(part.adding_replicas), tuple(part.removing_replicas)
        )
        for topic in answer.topics
        for part in topic.partitions
    }


async def unregister_broker(cluster: Cluster, broker: int) -> None:
    """Removes the registration of a broker that is gone for good."""
    answer = await cluster.ask_controller(
        UnregisterBrokerRequest(broker),
        UnregisterBrokerResponse,
        lambda answer: [answer.error_code],
    )
    check(answer.error_code, answer.error_message)


def _by_topic(topic_partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for topic_partition in topic_partitions:
        found[topic_partition.topic].append(topic_partition.partition)
    return found


def _outcome(topic_partition: TopicPartition, code: int, message: str | None) -> BrokerError | None:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return TopicNotFound(topic_partition.topic, topic_partition.partition)
    return outcome(code, message, str(topic_partition))
