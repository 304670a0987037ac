"""Sends requests to the leaders of many partitions."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TypeVar

from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import BrokerError, ClientError, TopicNotFound
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode

T = TypeVar("T")


async def ask_leaders(
    cluster: Cluster,
    topic_partitions: Iterable[TopicPartition],
    ask: Callable[
        [Connection, Collection[TopicPartition]], Awaitable[dict[TopicPartition, T | ClientError]]
    ],
) -> dict[TopicPartition, T | ClientError]:
    """Makes one attempt, at all leaders concurrently. Returns a result or an error for every
    partition."""
    outcomes: dict[TopicPartition, T | ClientError] = {}
    leaders: dict[int, list[TopicPartition]] = defaultdict(list)
    for topic_partition in topic_partitions:
        leader = cluster.known_leader(topic_partition)
        if leader is None:
            outcomes[topic_partition] = _no_leader(cluster, topic_partition)
        else:
            leaders[leader.broker_id].append(topic_partition)

    async def ask_one(broker_id: int, group: list[TopicPartition]) -> None:
        try:
            answers = await ask(await cluster.connection(broker_id), group)
        except ClientError as error:
            answers = dict.fromkeys(group, error)
        missing = BrokerError(
            ErrorCode.UNKNOWN_SERVER_ERROR, "the broker's response does not contain the partition"
        )
        for topic_partition in group:
            outcomes[topic_partition] = answers.get(topic_partition, missing)

    async with asyncio.TaskGroup() as tasks:
        for broker_id, group in leaders.items():
            tasks.create_task(ask_one(broker_id, group))
    return outcomes


def _no_leader(cluster: Cluster, topic_partition: TopicPartition) -> ClientError:
    topic = cluster.known_topic(topic_partition.topic)
    if topic is None or topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return TopicNotFound(topic_partition.topic)
    if topic.error_code != ErrorCode.NONE:
        return BrokerError(topic.error_code, subject=f"topic {topic_partition.topic}")
    if all(known.partition_index != topic_partition.partition for known in topic.partitions):
        return TopicNotFound(topic_partition.topic, topic_partition.partition)
    return BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, subject=str(topic_partition))


async def know_leaders(
    cluster: Cluster, topic_partitions: Iterable[TopicPartition], *, fresh: bool
) -> None:
    topics = {
        topic_partition.topic
        for topic_partition in topic_partitions
        if fresh or cluster.known_leader(topic_partition) is None
    }
    if topics:
        await cluster.refresh(topics)


def by_topic(topic_partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = defaultdict(list)
    for topic_partition in topic_partitions:
        topics[topic_partition.topic].append(topic_partition)
    return topics
