"""Offsets of partitions: by time, and where a log begins. Asked of the partitions' leaders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, NoReturn

from penstock.client.cluster import Cluster
from penstock.client.errors import BrokerError
from penstock.client.model import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)

LATEST: Final = -1
"""As a time: the end of the log, where the next record will be."""
EARLIEST: Final = -2
"""As a time: the first offset that is still there."""
MAX_TIMESTAMP: Final = -3
"""As a time: the record with the greatest timestamp."""
_CONSUMER: Final = -1


class FoundOffset(NamedTuple):
    offset: int
    """-1 when no record is that young."""
    timestamp: int


async def list_offsets(
    cluster: Cluster, times_ms: Mapping[TopicPartition, int], *, deadline_s: float | None = None
) -> dict[TopicPartition, FoundOffset]:
    """For each partition the first offset at or after a time, or `LATEST`, or `EARLIEST`."""
    found: dict[TopicPartition, FoundOffset] = {}

    async def attempt(fresh: bool) -> None:
        missing = [place for place in times_ms if place not in found]
        for leader, places in (await _by_leader(cluster, missing, fresh)).items():
            request = ListOffsetsRequest(
                replica_id=_CONSUMER,
                topics=[
                    ListOffsetsRequest.Topic(
                        topic,
                        [
                            ListOffsetsRequest.Partition(place.partition, timestamp=times_ms[place])
                            for place in group
                        ],
                    )
                    for topic, group in _by_topic(places).items()
                ],
            )
            connection = await cluster.connection(leader)
            answer = await connection.call(request, ListOffsetsResponse)
            for topic in answer.topics:
                for partition in topic.partitions:
                    place = TopicPartition(topic.name, partition.partition_index)
                    if partition.error_code == ErrorCode.NONE:
                        found[place] = FoundOffset(partition.offset, partition.timestamp)
                    else:
                        _refuse(place, partition.error_code)

    await cluster.retry("ListOffsets", attempt, deadline_s=deadline_s)
    return found


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Drop what lies before these offsets (-1: everything there is); where the logs begin now."""
    starts: dict[TopicPartition, int] = {}

    async def attempt(fresh: bool) -> None:
        missing = [place for place in before if place not in starts]
        for leader, places in (await _by_leader(cluster, missing, fresh)).items():
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsRequest.Topic(
                        topic,
                        [
                            DeleteRecordsRequest.Partition(place.partition, before[place])
                            for place in group
                        ],
                    )
                    for topic, group in _by_topic(places).items()
                ],
                timeout_ms=int(cluster.config.connection.request_timeout_s * 900),
            )
            connection = await cluster.connection(leader)
            answer = await connection.call(request, DeleteRecordsResponse)
            for topic in answer.topics:
                for partition in topic.partitions:
                    place = TopicPartition(topic.name, partition.partition_index)
                    if partition.error_code == ErrorCode.NONE:
                        starts[place] = partition.low_watermark
                    else:
                        _refuse(place, partition.error_code)

    await cluster.retry("DeleteRecords", attempt)
    return starts


async def _by_leader(
    cluster: Cluster, places: Sequence[TopicPartition], fresh: bool
) -> dict[int, list[TopicPartition]]:
    if fresh:
        for topic in {place.topic for place in places}:
            cluster.forget(topic)
    leaders: dict[int, list[TopicPartition]] = defaultdict(list)
    for place in places:
        leaders[await cluster.leader(place)].append(place)
    return leaders


def _by_topic(places: Sequence[TopicPartition]) -> dict[str, list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = defaultdict(list)
    for place in places:
        topics[place.topic].append(place)
    return topics


def _refuse(place: TopicPartition, code: int) -> NoReturn:
    """A leader that moved is asked for again; `leader` finds out whether the partition exists."""
    raise BrokerError(code, subject=str(place))
