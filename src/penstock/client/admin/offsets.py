"""Looks up offsets by time, and deletes records, at the partitions' leaders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, NoReturn

from penstock.client.admin.leaders import ask_leaders, by_topic, know_leaders
from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import BrokerError, ClientError
from penstock.topic_partition import TopicPartition
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
        missing = {
            topic_partition: time
            for topic_partition, time in times.items()
            if topic_partition not in found
        }
        await know_leaders(cluster, missing, fresh=fresh)
        refused: list[ClientError] = []
        for topic_partition, answer in (
            await ask_offsets(cluster, missing, isolation_level)
        ).items():
            if isinstance(answer, ClientError):
                refused.append(answer)
            else:
                found[topic_partition] = answer if answer.offset >= 0 else None
        if refused:
            raise refused[0]

    await cluster.retry("ListOffsets", attempt, deadline_s=deadline_s)
    return {topic_partition: found[topic_partition] for topic_partition in times}


async def ask_offsets(
    cluster: Cluster, times: Mapping[TopicPartition, int], isolation_level: int
) -> dict[TopicPartition, FoundOffset | ClientError]:
    """Makes one attempt, at all leaders concurrently. Returns a result or an error for every
    partition."""

    async def ask(
        connection: Connection, topic_partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, FoundOffset | ClientError]:
        request = ListOffsetsRequest(
            replica_id=_CONSUMER,
            isolation_level=isolation_level,
            topics=[
                ListOffsetsRequest.Topic(
                    topic,
                    [
                        ListOffsetsRequest.Partition(
                            topic_partition.partition, timestamp=times[topic_partition]
                        )
                        for topic_partition in group
                    ],
                )
                for topic, group in by_topic(topic_partitions).items()
            ],
        )
        answer = await connection.call(request, ListOffsetsResponse)
        return {
            (topic_partition := TopicPartition(topic.name, found.partition_index)): (
                FoundOffset(found.offset, found.timestamp, found.leader_epoch)
                if found.error_code == ErrorCode.NONE
                else BrokerError(found.error_code, subject=str(topic_partition))
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
        missing = [topic_partition for topic_partition in before if topic_partition not in starts]
        for leader, topic_partitions in (await _by_leader(cluster, missing, fresh)).items():
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsRequest.Topic(
                        topic,
                        [
                            DeleteRecordsRequest.Partition(
                                topic_partition.partition, before[topic_partition]
                            )
                            for topic_partition in group
                        ],
                    )
                    for topic, group in by_topic(topic_partitions).items()
                ],
                timeout_ms=int(cluster.config.connection.request_timeout_s * 900),
            )
            connection = await cluster.connection(leader)
            answer = await connection.call(request, DeleteRecordsResponse)
            for topic in answer.topics:
                for partition in topic.partitions:
                    topic_partition = TopicPartition(topic.name, partition.partition_index)
                    if partition.error_code == ErrorCode.NONE:
                        starts[topic_partition] = partition.low_watermark
                    else:
                        _refuse(topic_partition, partition.error_code)

    await cluster.retry("DeleteRecords", attempt)
    return starts


async def _by_leader(
    cluster: Cluster, topic_partitions: Sequence[TopicPartition], fresh: bool
) -> dict[int, list[TopicPartition]]:
    if fresh:
        for topic in {topic_partition.topic for topic_partition in topic_partitions}:
            cluster.forget(topic)
    leaders: dict[int, list[TopicPartition]] = defaultdict(list)
    for topic_partition in topic_partitions:
        leaders[await cluster.leader(topic_partition)].append(topic_partition)
    return leaders


def _refuse(topic_partition: TopicPartition, code: int) -> NoReturn:
    """Raises the error. If the leader has moved the request is retried; `leader` finds out whether
    the partition exists."""
    raise BrokerError(code, subject=str(topic_partition))
