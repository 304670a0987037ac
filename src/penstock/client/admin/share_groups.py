"""Admin operations on share groups: their members, and how far each partition is done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.client.cluster import Cluster
from penstock.client.errors import ApiNotServed, BrokerError, check, outcome
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)


@dataclass(frozen=True, slots=True)
class ShareGroupMember:
    member_id: str
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ShareGroupInfo:
    """A share group, its state and its members."""

    group: str
    state: str
    members: tuple[ShareGroupMember, ...]
    coordinator: int


@dataclass(frozen=True, slots=True)
class SharePartitionOffsets:
    """How far a share group is with one partition."""

    start_offset: int | None
    """The first offset that is not done; None if the group has not begun with the partition."""
    lag: int | None
    """The offsets that are not done; None if the broker is too old to report it."""


async def describe_share_group(cluster: Cluster, group: str) -> ShareGroupInfo:
    answer = await cluster.ask_coordinator(
        group,
        ShareGroupDescribeRequest([group]),
        ShareGroupDescribeResponse,
        lambda answer: [each.error_code for each in answer.groups],
    )
    found = answer.groups[0]
    check(found.error_code, found.error_message, f"share group {group}")
    members = (
        ShareGroupMember(
            member.member_id,
            member.client_id,
            member.client_host,
            tuple(
                TopicPartition(topic.topic_name, partition)
                for topic in member.assignment.topic_partitions
                for partition in topic.partitions
            ),
        )
        for member in found.members
    )
    return ShareGroupInfo(
        group,
        found.group_state,
        tuple(sorted(members, key=lambda member: member.member_id)),
        cluster.coordinator_of(group),
    )


async def share_group_offsets(
    cluster: Cluster, group: str
) -> dict[TopicPartition, SharePartitionOffsets]:
    """Returns how far the group is, by partition. A group that does not exist has nothing."""
    request = DescribeShareGroupOffsetsRequest.Group(group, None)
    answer = await cluster.ask_coordinator(
        group,
        DescribeShareGroupOffsetsRequest([request]),
        DescribeShareGroupOffsetsResponse,
        lambda answer: [each.error_code for each in answer.groups],
    )
    found = answer.groups[0]
    if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return {}
    check(found.error_code, found.error_message, f"share group {group}")
    offsets: dict[TopicPartition, SharePartitionOffsets] = {}
    for topic in found.topics:
        for part in topic.partitions:
            where = TopicPartition(topic.topic_name, part.partition_index)
            check(part.error_code, part.error_message, str(where))
            offsets[where] = SharePartitionOffsets(
                None if part.start_offset < 0 else part.start_offset,
                None if part.lag < 0 else part.lag,
            )
    return offsets


async def alter_share_group_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, BrokerError | None]:
    """Sets where the group begins. The group must have no members. Everything at or after the new
    offsets is delivered again, with fresh counts."""
    topics: dict[str, list[AlterShareGroupOffsetsRequest.Partition]] = defaultdict(list)
    for where, offset in offsets.items():
        topics[where.topic].append(AlterShareGroupOffsetsRequest.Partition(where.partition, offset))
    request = AlterShareGroupOffsetsRequest(
        group, [AlterShareGroupOffsetsRequest.Topic(name, parts) for name, parts in topics.items()]
    )
    answer = await cluster.ask_coordinator(
        group, request, AlterShareGroupOffsetsResponse, lambda answer: [answer.error_code]
    )
    check(answer.error_code, answer.error_message, f"share group {group}")
    return {
        TopicPartition(topic.topic_name, part.partition_index): outcome(
            part.error_code, part.error_message, f"{topic.topic_name}-{part.partition_index}"
        )
        for topic in answer.responses
        for part in topic.partitions
    }


async def delete_share_group_offsets(
    cluster: Cluster, group: str, topics: Sequence[str]
) -> dict[str, BrokerError | None]:
    """Deletes what the group knows of these topics. The group must have no members."""
    request = DeleteShareGroupOffsetsRequest(
        group, [DeleteShareGroupOffsetsRequest.Topic(name) for name in topics]
    )
    answer = await cluster.ask_coordinator(
        group, request, DeleteShareGroupOffsetsResponse, lambda answer: [answer.error_code]
    )
    check(answer.error_code, answer.error_message, f"share group {group}")
    return {
        topic.topic_name: outcome(topic.error_code, topic.error_message, topic.topic_name)
        for topic in answer.responses
    }


def not_served(error: ApiNotServed) -> ApiNotServed:
    """Returns the error with what to do about it."""
    return ApiNotServed(
        f"{error}: share groups need Kafka 4.2 or later, or a Penstock broker on which they are "
        "enabled"
    )
