"""Looks up offsets by time, and deletes records, at the partitions' leaders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, NoReturn

from penstock.client.admin.leaders import ask_leaders, by_topic, know_leaders
from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import BrokerError, ClientError
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
"""As a time: the first offset that still exists."""
MAX_TIMESTAMP: Final = -3
"""As a time: the record with the largest timestamp."""
_CONSUMER: Final = -1
_READ_UNCOMMITTED: Final = 0


class FoundOffset(NamedTuple):
    """The first record at or after a time; at the end of a log, the next record to be written."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


async def list_offsets(
    cluster: Cluster,
    times: Mapping[TopicPartition, int],
    *,
    isolation_level: int = _READ_UNCOMMITTED,
    deadline_s: float | None = None,
) -> dict[TopicPartition, FoundOffset | None]:
    """Returns the first offset at or after each time, or for `LATEST` and `EARLIEST`.

    The result is None if there is no record at or after the time. Retries until all are known.
    """
    found: dict[TopicPartition, FoundOffset | None] = {}

    async def attempt(fresh: bool) -> None:
        missing = {place: time for place, time in times.items() if place not in found}
        await know_leaders(cluster, missing, fresh=fresh)
        refused: list[ClientError] = []
        for place, answer in (await ask_offsets(cluster, missing, isolation_level)).items():
            if isinstance(answer, ClientError):
                refused.append(answer)
            else:
                found[place] = answer if answer.offset >= 0 else None
        if refused:
            raise refused[0]

    await cluster.retry("ListOffsets", attempt, deadline_s=deadline_s)
    return {place: found[place] for place in times}


async def ask_offsets(
    cluster: Cluster, times: Mapping[TopicPartition, int], isolation_level: int
) -> dict[TopicPartition, FoundOffset | ClientError]:
    """Makes one attempt, at all leaders concurrently. Returns a result or an error for every
    partition."""

    async def ask(
        connection: Connection, places: Collection[TopicPartition]
    ) -> dict[TopicPartition, FoundOffset | ClientError]:
        request = ListOffsetsRequest(
            replica_id=_CONSUMER,
            isolation_level=isolation_level,
            topics=[
                ListOffsetsRequest.Topic(
                    topic,
                    [
                        ListOffsetsRequest.Partition(place.partition, timestamp=times[place])
                        for place in group
                    ],
                )
                for topic, group in by_topic(places).items()
            ],
        )
        answer = await connection.call(request, ListOffsetsResponse)
        return {
            (place := TopicPartition(topic.name, found.partition_index)): (
                FoundOffset(found.offset, found.timestamp, found.leader_epoch)
                if found.error_code == ErrorCode.NONE
                else BrokerError(found.error_code, subject=str(place))
            )
            for topic in answer.topics
            for found in topic.partitions
        }

    return await ask_leaders(cluster, times, ask)


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Deletes the records before these offsets (-1: all records). Returns the new log start
    offsets."""
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
                    for topic, group in by_topic(places).items()
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


def _refuse(place: TopicPartition, code: int) -> NoReturn:
    """Raises the error. If the leader has moved the request is retried; `leader` finds out whether
    the partition exists."""
    raise BrokerError(code, subject=str(place))
