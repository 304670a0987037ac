"""Collects a cluster's state for the commands: brokers, partitions, moves under way, sizes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.client.admin.admin import Admin
from penstock.client.admin.cordons import find_cordoned
from penstock.client.admin.operations import ClusterInfo, PartitionInfo, TopicInfo
from penstock.client.admin.reassignment import Reassignment
from penstock.client.errors import ApiNotServed, ClientError
from penstock.metadata.rebalance import Placed
from penstock.topic_partition import TopicPartition

_PATIENCE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Found:
    info: ClusterInfo
    topics: list[TopicInfo]
    moving: dict[TopicPartition, Reassignment]
    sizes: dict[TopicPartition, int]
    """The size of the largest replica. Empty if brokers were not asked or did not answer."""
    cordoned: frozenset[int]
    """Brokers that get no new partitions."""

    @property
    def racks(self) -> dict[int, str | None]:
        return {broker.id: broker.rack for broker in self.info.brokers}

    @property
    def missing(self) -> list[int]:
        """Brokers that have replicas but are not running."""
        named = {each for _, partition in self.partitions() for each in partition.replicas}
        return sorted(named - self.racks.keys())

    def partitions(self) -> Iterator[tuple[TopicPartition, PartitionInfo]]:
        for topic in self.topics:
            for partition in topic.partitions:
                yield TopicPartition(topic.name, partition.index), partition

    def placed(self) -> list[Placed]:
        """Returns the replicas of each partition; for one that is moving, its target replicas."""
        return [
            Placed(
                *topic_partition,
                self.moving[topic_partition].target
                if topic_partition in self.moving
                else partition.replicas,
                self.sizes.get(topic_partition),
            )
            for topic_partition, partition in self.partitions()
        ]

    def not_preferred(self) -> list[TopicPartition]:
        """Returns the partitions whose first replica could lead but does not."""
        return [
            topic_partition
            for topic_partition, partition in self.partitions()
            if partition.leader >= 0
            and partition.leader != partition.replicas[0]
            and partition.replicas[0] in partition.in_sync
        ]

    def loads(self) -> dict[int, dict[str, int]]:
        """Returns the current load of each broker, including those that are missing."""
        replicas: Counter[int] = Counter()
        leads: Counter[int] = Counter()
        sizes: Counter[int] = Counter()
        for topic_partition, partition in self.partitions():
            leads[partition.leader] += 1
            replicas.update(partition.replicas)
            for each in partition.replicas:
                sizes[each] += self.sizes.get(topic_partition, 0)
        return {
            each: {"replicas": replicas[each], "leads": leads[each], "size_bytes": sizes[each]}
            for each in sorted({*self.racks, *self.missing})
        }


async def look(admin: Admin, *, sizes: bool) -> Found:
    info = await admin.describe_cluster()
    # Moves come before topics: a move that ends in between then still counts as under way, and
    # the topics already show its outcome.
    try:
        moving = await admin.list_partition_reassignments()
    except ApiNotServed:
        moving = {}  # an old Kafka broker: the rest can still be shown
    topics = await admin.list_topics(internal=True)
    brokers = [broker.id for broker in info.brokers]
    known = await _sizes(admin, brokers) if sizes else {}
    return Found(info, topics, moving, known, await find_cordoned(admin, brokers))


async def _sizes(admin: Admin, brokers: Sequence[int]) -> dict[TopicPartition, int]:
    """Returns the sizes from the brokers that answer in time. Sizes are optional in the output."""
    sizes: dict[TopicPartition, int] = {}

    async def ask(broker: int) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                directories = await admin.describe_log_dirs([broker])
        except (ClientError, TimeoutError):
            return
        for directory in directories:
            for topic_partition, replica in directory.replicas.items():
                sizes[topic_partition] = max(sizes.get(topic_partition, 0), replica.size_bytes)

    async with asyncio.TaskGroup() as tasks:
        for broker in brokers:
            tasks.create_task(ask(broker))
    return sizes


def moving_json(moving: dict[TopicPartition, Reassignment]) -> list[dict[str, Any]]:
    return [
        {
            "topic": topic_partition.topic,
            "partition": topic_partition.partition,
            "target": list(move.target),
            "adding": list(move.adding),
            "removing": list(move.removing),
        }
        for topic_partition, move in sorted(moving.items())
    ]
