"""The numbers of a queue, and its jobs without taking them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.client.admin.offsets import FoundOffset, list_offsets
from penstock.client.admin.queue_loads import QueueLoad, queue_loads
from penstock.client.admin.share_groups import (
    ShareGroupInfo,
    SharePartitionOffsets,
    describe_share_group,
    not_served,
    share_group_offsets,
)
from penstock.client.cluster import Cluster
from penstock.client.consumer import Consumer
from penstock.client.errors import ApiNotServed, BrokerError, TopicNotFound
from penstock.client.model import Record
from penstock.client.option_values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode

_PEEK_MS: Final = 500
_NO_OFFSETS: Final = SharePartitionOffsets(None, None)
_NO_LOAD: Final = QueueLoad(None, 0, None, None)


@dataclass(frozen=True, slots=True)
class QueuePartition:
    """One partition of a queue."""

    partition: int
    start_offset: int | None
    """The first offset that is not done; None if the group has not begun with the partition."""
    end_offset: int
    depth: int
    """The offsets that are not done: jobs that wait, and jobs that workers have."""
    in_flight: int | None = None
    """Jobs that workers have; None if the broker cannot tell, as Kafka's."""
    redelivered: int | None = None
    """Jobs that are not done although they were delivered before; None if unknown."""
    oldest_ms: int | None = None
    """The timestamp of the oldest job that is not done; None if there is none, or it is unknown."""
    scheduled: int | None = None
    """About how many jobs have far due times and are not due yet; None if unknown. They are not in
    `depth`."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The numbers of a queue."""

    topic: str
    group: str
    state: str
    """The state of the group: "Stable", "Empty", or "" if it does not exist."""
    members: int
    partitions: tuple[QueuePartition, ...]

    @property
    def depth(self) -> int:
        """Jobs that are not done. Offsets without a record count too, until a worker meets them."""
        return sum(each.depth for each in self.partitions)

    @property
    def in_flight(self) -> int | None:
        """Jobs that workers have; None if a broker cannot tell."""
        return _sum(each.in_flight for each in self.partitions)

    @property
    def redelivered(self) -> int | None:
        """Jobs that are not done although they were delivered before; None if it is unknown.

        A partition is left out while no worker is connected to its leader."""
        known = [each.redelivered for each in self.partitions if each.redelivered is not None]
        return sum(known) if known else None

    @property
    def scheduled(self) -> int | None:
        """About how many jobs have far due times and are not due yet; None if it is unknown.

        A partition is left out while no worker is connected to its leader."""
        known = [each.scheduled for each in self.partitions if each.scheduled is not None]
        return sum(known) if known else None

    @property
    def oldest_ms(self) -> int | None:
        """The timestamp of the oldest job that is not done; None if there is none."""
        return min(
            (each.oldest_ms for each in self.partitions if each.oldest_ms is not None), default=None
        )


@dataclass(frozen=True, slots=True)
class GroupQueues:
    """The queues of a share group: one for each of its topics."""

    info: ShareGroupInfo
    queues: tuple[QueueStats, ...]


async def queue_stats(cluster: Cluster, topic: str, group: str) -> QueueStats:
    try:
        offsets = await share_group_offsets(cluster, group)
        info = await _info(cluster, group)
    except ApiNotServed as error:
        raise not_served(error) from error
    return await _stats(cluster, topic, group, info, offsets)


async def group_queues(cluster: Cluster, group: str) -> GroupQueues:
    """Returns the queues of an existing group. Leaves out topics that were deleted."""
    offsets = await share_group_offsets(cluster, group)
    info = await describe_share_group(cluster, group)
    assigned = (where.topic for member in info.members for where in member.assignment)
    found = []
    for topic in sorted({*(where.topic for where in offsets), *assigned}):
        try:
            found.append(await _stats(cluster, topic, group, info, offsets))
        except TopicNotFound:
            continue
    return GroupQueues(info, tuple(found))


async def _stats(
    cluster: Cluster,
    topic: str,
    group: str,
    info: ShareGroupInfo | None,
    offsets: dict[TopicPartition, SharePartitionOffsets],
) -> QueueStats:
    count = await cluster.partitions(topic)
    parts = [TopicPartition(topic, number) for number in range(count)]
    known = {part: offsets.get(part, _NO_OFFSETS) for part in parts}
    starts, ends, loads = await asyncio.gather(
        list_offsets(cluster, dict.fromkeys(parts, EARLIEST_TIMESTAMP)),
        list_offsets(cluster, dict.fromkeys(parts, LATEST_TIMESTAMP)),
        queue_loads(cluster, group, {part: known[part].start_offset for part in parts}),
    )
    found = tuple(
        _partition(part, known[part], starts[part], ends[part], loads.get(part)) for part in parts
    )
    state, members = ("", 0) if info is None else (info.state, len(info.members))
    return QueueStats(topic, group, state, members, found)


def _partition(
    part: TopicPartition,
    known: SharePartitionOffsets,
    first: FoundOffset | None,
    last: FoundOffset | None,
    load: QueueLoad | None,
) -> QueuePartition:
    end = _offset(last)
    start = max(known.start_offset or 0, _offset(first))
    taken = load or _NO_LOAD
    depth = known.lag if taken.backlog is None else taken.backlog
    if depth is None:
        depth = max(0, end - start)
    return QueuePartition(
        part.partition,
        known.start_offset,
        end,
        depth,
        None if load is None else load.in_flight,
        taken.redelivered if depth else 0,
        taken.oldest_ms if depth else None,
        taken.scheduled,
    )


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _offset(found: FoundOffset | None) -> int:
    return 0 if found is None else found.offset


async def _info(cluster: Cluster, group: str) -> ShareGroupInfo | None:
    try:
        return await describe_share_group(cluster, group)
    except BrokerError as error:
        if error.code == ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        raise


async def peek(
    stats: QueueStats, limit: int, consumer: Consumer[bytes | None, bytes | None]
) -> list[Record[bytes | None, bytes | None]]:
    """Reads jobs as records of the log, from the first that is not done. Later ones may be done,
    and some may be with workers.

    The consumer must have no group, and begin at the earliest record. It is started and closed."""
    ends = {
        TopicPartition(stats.topic, part.partition): part.end_offset
        for part in stats.partitions
        if part.depth
    }
    found: list[Record[bytes | None, bytes | None]] = []
    async with consumer:
        consumer.assign(ends)
        for part in stats.partitions:
            if part.depth and part.start_offset is not None:
                consumer.seek(TopicPartition(stats.topic, part.partition), part.start_offset)
        while ends and len(found) < limit:
            records = await consumer.poll(_PEEK_MS, limit - len(found))
            found += records
            positions = {where: consumer.known_position(where) for where in ends}
            if all((positions[where] or 0) >= end for where, end in ends.items()):
                break
    return sorted(found, key=lambda record: (record.timestamp, record.partition, record.offset))
