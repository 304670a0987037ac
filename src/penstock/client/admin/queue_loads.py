"""Asks the leaders how much a share group has to do. Only Penstock's brokers can tell."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from penstock.client.admin.leaders import ask_leaders, by_topic, know_leaders
from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import BrokerError, ClientError, check
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import DescribeQueueRequest, DescribeQueueResponse


class QueueLoad(NamedTuple):
    """What a share group has to do in one partition. None: the leader does not know it."""

    backlog: int | None
    """Records that are not done."""
    in_flight: int
    """Records that members have."""
    redelivered: int | None
    """Records that are not done although they were delivered before."""
    oldest_ms: int | None
    """The timestamp of the oldest record that is not done."""
    scheduled: int | None = None
    """Records with far due times that are not due yet, about. They are not in the backlog."""


async def queue_loads(
    cluster: Cluster, group: str, starts: Mapping[TopicPartition, int | None]
) -> dict[TopicPartition, QueueLoad]:
    """Returns what the leaders know. `starts` has the start offsets of the share coordinator.

    A partition whose leader does not answer, or does not have this API, is left out.
    """

    async def ask(
        connection: Connection, parts: Collection[TopicPartition]
    ) -> dict[TopicPartition, QueueLoad | ClientError]:
        request = DescribeQueueRequest(
            group,
            [
                DescribeQueueRequest.Topic(
                    topic,
                    [
                        DescribeQueueRequest.Partition(part.partition, _known(starts, part))
                        for part in listed
                    ],
                )
                for topic, listed in by_topic(parts).items()
            ],
        )
        answer = await connection.call(request, DescribeQueueResponse)
        check(answer.error_code, answer.error_message, f"share group {group}")
        return {
            (where := TopicPartition(topic.topic_name, found.partition_index)): (
                _load(found)
                if found.error_code == ErrorCode.NONE
                else BrokerError(found.error_code, subject=str(where))
            )
            for topic in answer.topics
            for found in topic.partitions
        }

    await know_leaders(cluster, starts, fresh=False)
    answers = await ask_leaders(cluster, starts, ask)
    return {where: load for where, load in answers.items() if isinstance(load, QueueLoad)}


def _known(starts: Mapping[TopicPartition, int | None], part: TopicPartition) -> int:
    start = starts[part]
    return -1 if start is None else start


def _load(found: DescribeQueueResponse.Partition) -> QueueLoad:
    return QueueLoad(
        _number(found.backlog),
        found.in_flight,
        _number(found.redelivered),
        _number(found.oldest_ms),
        _number(found.scheduled),
    )


def _number(value: int) -> int | None:
    return None if value < 0 else value
