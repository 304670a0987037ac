"""Describes the brokers' log directories and the producers of partitions. Read-only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.client.cluster import Cluster
from penstock.client.errors import BrokerError, ConnectFailed, check
from penstock.topic_partition import TopicPartition
from penstock.wire.messages import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
)


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    size_bytes: int
    offset_lag: int
    """How far the end of the replica is behind the high watermark."""


@dataclass(frozen=True, slots=True)
class LogDirInfo:
    broker: int
    path: str
    replicas: dict[TopicPartition, ReplicaInfo]
    total_bytes: int
    """The size of the volume; -1 if the broker is too old to report it. The same holds for
    `usable_bytes`."""
    usable_bytes: int
    error: BrokerError | None = None
    """Why the contents of the directory are unknown."""


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """An idempotent producer that a partition has state for."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    transaction_start_offset: int
    """-1 if no transaction is open."""
    coordinator_epoch: int = -1
    """The epoch of the coordinator that ended its last transaction here; -1 if there was none."""


async def describe_log_dirs(
    cluster: Cluster, brokers: Sequence[int] | None = None
) -> list[LogDirInfo]:
    """Describes the log directories of these brokers, or of all live brokers."""
    await cluster.metadata([])
    found: list[LogDirInfo] = []
    for broker in sorted(cluster.brokers) if brokers is None else brokers:
        if broker not in cluster.brokers:
            raise ConnectFailed(f"broker {broker}", "it is not in the cluster at the moment")
        request = DescribeLogDirsRequest(topics=None)
        answer = await cluster.ask_broker(broker, request, DescribeLogDirsResponse)
        check(answer.error_code, subject=f"DescribeLogDirs at broker {broker}")
        found += [_log_dir(broker, directory) for directory in answer.results]
    return found


def _log_dir(broker: int, directory: DescribeLogDirsResponse.LogDir) -> LogDirInfo:
    error = None
    if directory.error_code:
        error = BrokerError(directory.error_code, subject=f"{directory.log_dir} of broker {broker}")
    return LogDirInfo(
        broker,
        directory.log_dir,
        {
            TopicPartition(topic.name, partition.partition_index): ReplicaInfo(
                partition.partition_size, partition.offset_lag
            )
            for topic in directory.topics
            for partition in topic.partitions
        },
        directory.total_bytes,
        directory.usable_bytes,
        error,
    )


async def describe_producers(
    cluster: Cluster, topic_partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, list[ProducerInfo]]:
    """Returns the idempotent producers that the leaders of these partitions have state for."""
    found: dict[TopicPartition, list[ProducerInfo]] = {}

    async def attempt(fresh: bool) -> None:
        leaders: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for topic_partition in topic_partitions:
            if topic_partition not in found:
                leader = await cluster.leader(topic_partition, fresh=fresh)
                leaders[leader][topic_partition.topic].append(topic_partition.partition)
        for leader, topics in leaders.items():
            request = DescribeProducersRequest(
                [DescribeProducersRequest.Topic(name, parts) for name, parts in topics.items()]
            )
            connection = await cluster.connection(leader)
            answer = await connection.call(request, DescribeProducersResponse)
            for topic in answer.topics:
                for partition in topic.partitions:
                    topic_partition = TopicPartition(topic.name, partition.partition_index)
                    check(partition.error_code, partition.error_message, str(topic_partition))
                    found[topic_partition] = [_producer(one) for one in partition.active_producers]

    await cluster.retry("DescribeProducers", attempt)
    return {topic_partition: found[topic_partition] for topic_partition in topic_partitions}


def _producer(producer: DescribeProducersResponse.Producer) -> ProducerInfo:
    return ProducerInfo(
        producer.producer_id,
        producer.producer_epoch,
        producer.last_sequence,
        producer.last_timestamp,
        producer.current_txn_start_offset,
        producer.coordinator_epoch,
    )
