"""Admin operations on consumer groups: list, describe, delete, and read or set offsets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.client.admin.share_groups import describe_share_group
from penstock.client.cluster import Cluster
from penstock.client.errors import ApiNotServed, BrokerError, check, outcome
from penstock.client.model import OffsetAndMetadata
from penstock.topic_partition import TopicPartition
from penstock.wire.codec import decode_embedded
from penstock.wire.errors import ErrorCode, ProtocolError
from penstock.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerProtocolAssignment,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

_DEAD = "Dead"
_CONSUMER = "consumer"
SHARE = "share"
"""The protocol type of share groups."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in the result of `list_groups`."""

    group: str
    state: str
    """Empty if the broker is too old to report it."""
    protocol_type: str
    kind: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group, its state and its members."""

    group: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMember, ...]
    coordinator: int

    def owner(self, topic_partition: TopicPartition) -> GroupMember | None:
        return next(
            (member for member in self.members if topic_partition in member.assignment), None
        )


async def list_groups(cluster: Cluster) -> list[GroupListing]:
    """Returns all groups. Asks every broker, because each knows only the groups that it
    coordinates."""
    await cluster.metadata([])
    found: dict[str, GroupListing] = {}
    for broker_id in sorted(cluster.brokers):
        answer = await cluster.ask_broker(broker_id, ListGroupsRequest(), ListGroupsResponse)
        check(answer.error_code, subject=f"ListGroups at broker {broker_id}")
        for group in answer.groups:
            found[group.group_id] = GroupListing(
                group.group_id, group.group_state, group.protocol_type, group.group_type
            )
    return [found[name] for name in sorted(found)]


async def describe_group(cluster: Cluster, group: str) -> GroupInfo:
    answer = await cluster.ask_coordinator(
        group,
        DescribeGroupsRequest(groups=[group]),
        DescribeGroupsResponse,
        lambda answer: [group.error_code for group in answer.groups],
    )
    found = answer.groups[0]
    dead = found.error_code == ErrorCode.NONE and found.group_state == _DEAD
    if dead or found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return await _describe_modern_group(cluster, group)
    check(found.error_code, found.error_message, f"group {group}")
    members = tuple(
        GroupMember(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            _assignment(found.protocol_type, member.member_assignment),
        )
        for member in found.members
    )
    return GroupInfo(
        group,
        found.group_state,
        found.protocol_type,
        found.protocol_data,
        tuple(sorted(members, key=lambda member: member.member_id)),
        cluster.coordinator_of(group),
    )


async def _describe_modern_group(cluster: Cluster, group: str) -> GroupInfo:
    """Describes a group with server-side assignment (Kafka's protocol since 4.0), which has its own
    API."""
    missing = BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group} does not exist")
    try:
        answer = await cluster.ask_coordinator(
            group,
            ConsumerGroupDescribeRequest([group]),
            ConsumerGroupDescribeResponse,
            lambda answer: [group.error_code for group in answer.groups],
        )
    except ApiNotServed:
        raise missing from None
    found = answer.groups[0]
    if found.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        share_group = await _share_group(cluster, group)
        if share_group is None:
            raise missing
        return share_group
    check(found.error_code, found.error_message, f"group {group}")
    members = tuple(
        GroupMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            tuple(
                TopicPartition(topic.topic_name, partition)
                for topic in member.assignment.topic_partitions
                for partition in sorted(topic.partitions)
            ),
        )
        for member in sorted(found.members, key=lambda member: member.member_id)
    )
    return GroupInfo(
        group,
        found.group_state,
        _CONSUMER,
        found.assignor_name,
        members,
        cluster.coordinator_of(group),
    )


async def _share_group(cluster: Cluster, group: str) -> GroupInfo | None:
    try:
        found = await describe_share_group(cluster, group)
    except ApiNotServed:
        return None
    except BrokerError as error:
        if error.code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            return None
        raise
    members = tuple(
        GroupMember(member.member_id, None, member.client_id, member.client_host, member.assignment)
        for member in found.members
    )
    return GroupInfo(group, found.state, SHARE, "", members, found.coordinator)


async def describe_groups(
    cluster: Cluster, groups: Sequence[str]
) -> dict[str, GroupInfo | BrokerError]:
    found: dict[str, GroupInfo | BrokerError] = {}
    for group in groups:
        try:
            found[group] = await describe_group(cluster, group)
        except BrokerError as error:
            found[group] = error
    return found


def _assignment(protocol_type: str, data: bytes) -> tuple[TopicPartition, ...]:
    """Returns a consumer's assigned partitions. Other kinds of groups store other data there."""
    if protocol_type != _CONSUMER or not data:
        return ()
    try:
        _, message = decode_embedded(ConsumerProtocolAssignment, data)
    except ProtocolError:
        return ()
    return tuple(
        TopicPartition(topic.topic, partition)
        for topic in message.assigned_partitions
        for partition in sorted(topic.partitions)
    )


async def delete_groups(cluster: Cluster, groups: Sequence[str]) -> dict[str, BrokerError | None]:
    outcomes: dict[str, BrokerError | None] = {}
    for group in groups:
        answer = await cluster.ask_coordinator(
            group,
            DeleteGroupsRequest(groups_names=[group]),
            DeleteGroupsResponse,
            lambda answer: [result.error_code for result in answer.results],
        )
        code = answer.results[0].error_code
        message = f"group {group} does not exist" if code == ErrorCode.GROUP_ID_NOT_FOUND else None
        outcomes[group] = outcome(code, message, "" if message else f"group {group}")
    return outcomes


async def group_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Returns all offsets that the group has committed."""
    # From version 8 on, one request can name several groups, in separate fields.
    coordinator = await cluster.coordinator_connection(group)
    if coordinator.version_of(OffsetFetchRequest) >= 8:
        wanted = OffsetFetchRequest.Group(group_id=group, topics=None)
        request = OffsetFetchRequest(groups=[wanted])
    else:
        request = OffsetFetchRequest(group_id=group, topics=None)
    answer = await cluster.ask_coordinator(
        group,
        request,
        OffsetFetchResponse,
        lambda answer: [answer.error_code, *(found.error_code for found in answer.groups)],
    )
    check(answer.error_code, subject=f"group {group}")
    topics: Iterable[OffsetFetchResponse.Topic | OffsetFetchResponse.GroupTopic] = answer.topics
    for found in answer.groups:
        check(found.error_code, subject=f"group {group}")
        topics = found.topics
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for topic in topics:
        for partition in topic.partitions:
            topic_partition = TopicPartition(topic.name, partition.partition_index)
            check(partition.error_code, subject=f"group {group}, {topic_partition}")
            if partition.committed_offset >= 0:
                offsets[topic_partition] = OffsetAndMetadata(
                    partition.committed_offset,
                    partition.metadata or "",
                    partition.committed_leader_epoch,
                )
    return dict(sorted(offsets.items()))


async def commit_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
) -> dict[TopicPartition, BrokerError | None]:
    """Sets committed offsets of a group without members. A member would overwrite them."""
    topics: dict[str, list[OffsetCommitRequest.Partition]] = defaultdict(list)
    for topic_partition, given in offsets.items():
        wanted = OffsetAndMetadata(given) if isinstance(given, int) else given
        topics[topic_partition.topic].append(
            OffsetCommitRequest.Partition(
                topic_partition.partition, wanted.offset, wanted.leader_epoch, wanted.metadata
            )
        )
    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequest.Topic(name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )
    answer = await cluster.ask_coordinator(
        group,
        request,
        OffsetCommitResponse,
        lambda answer: [
            partition.error_code for topic in answer.topics for partition in topic.partitions
        ],
    )
    return {
        (topic_partition := TopicPartition(topic.name, partition.partition_index)): outcome(
            partition.error_code, subject=str(topic_partition)
        )
        for topic in answer.topics
        for partition in topic.partitions
    }


async def delete_offsets(
    cluster: Cluster, group: str, topic_partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, BrokerError | None]:
    """Deletes the group's committed offsets of these partitions."""
    topics: dict[str, list[OffsetDeleteRequest.Partition]] = defaultdict(list)
    for topic_partition in topic_partitions:
        topics[topic_partition.topic].append(
            OffsetDeleteRequest.Partition(topic_partition.partition)
        )
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[OffsetDeleteRequest.Topic(name, found) for name, found in topics.items()],
    )
    answer = await cluster.ask_coordinator(
        group, request, OffsetDeleteResponse, lambda answer: [answer.error_code]
    )
    check(answer.error_code, subject=f"group {group}")
    return {
        (topic_partition := TopicPartition(topic.name, partition.partition_index)): outcome(
            partition.error_code, subject=str(topic_partition)
        )
        for topic in answer.topics
        for partition in topic.partitions
    }
