"""Sends requests to the leaders of many partitions."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TypeVar

from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import BrokerError, ClientError, TopicNotFound
from penstock.client.model import TopicPartition
from penstock.wire.errors import ErrorCode

T = TypeVar("T")


async def ask_leaders(
    cluster: Cluster,
    places: Iterable[TopicPartition],
    ask: Callable[
        [Connection, Collection[TopicPartition]], Awaitable[dict[TopicPartition, T | ClientError]]
    ],
) -> dict[TopicPartition, T | ClientError]:
    """Makes one attempt, at all leaders concurrently. Returns a result or an error for every
    partition."""
    outcomes: dict[TopicPartition, T | ClientError] = {}
    leaders: dict[int, list[TopicPartition]] = defaultdict(list)
    for place in places:
        leader = cluster.known_leader(place)
        if leader is None:
            outcomes[place] = _no_leader(cluster, place)
        else:
            leaders[leader.broker_id].append(place)

    async def ask_one(broker_id: int, group: list[TopicPartition]) -> None:
        try:
            answers = await ask(await cluster.connection(broker_id), group)
        except ClientError as error:
            answers = dict.fromkeys(group, error)
        missing = BrokerError(
            ErrorCode.UNKNOWN_SERVER_ERROR, "the broker's response does not contain the partition"
        )
        for place in group:
            outcomes[place] = answers.get(place, missing)

    async with asyncio.TaskGroup() as tasks:
        for broker_id, group in leaders.items():
            tasks.create_task(ask_one(broker_id, group))
    return outcomes


def _no_leader(cluster: Cluster, place: TopicPartition) -> ClientError:
    topic = cluster.known_topic(place.topic)
    if topic is None or topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return TopicNotFound(place.topic)
    if topic.error_code != ErrorCode.NONE:
        return BrokerError(topic.error_code, subject=f"topic {place.topic}")
    if all(known.partition_index != place.partition for known in topic.partitions):
        return TopicNotFound(place.topic, place.partition)
    return BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, subject=str(place))


async def know_leaders(cluster: Cluster, places: Iterable[TopicPartition], *, fresh: bool) -> None:
    topics = {place.topic for place in places if fresh or cluster.known_leader(place) is None}
    if topics:
        await cluster.refresh(topics)


def by_topic(places: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = defaultdict(list)
    for place in places:
        topics[place.topic].append(place)
    return topics
