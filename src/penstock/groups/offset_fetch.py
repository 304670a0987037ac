"""OffsetFetch 1-9: where a group left off.

Up to version 7 a request asks for one group, from 8 for any number; here every question is in the
newer shape. Null topics (from version 2) ask for all there are. A partition without a committed
offset is no error: its offset is -1. Version 1 has no place for an error about the whole group.

From version 7 a client may insist on stable offsets, which none but those in an open transaction
fail to be.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.groups.core import Core
from penstock.groups.formats import OffsetValue
from penstock.groups.image import TopicPartition
from penstock.wire.messages import OffsetFetchRequest, OffsetFetchResponse

_MANY_GROUPS_SINCE = 8
_NOTHING = OffsetValue(-1)


def groups_of(request: OffsetFetchRequest, version: int) -> list[OffsetFetchRequest.Group]:
    """What a request asks, group by group."""
    if version >= _MANY_GROUPS_SINCE:
        return request.groups
    topics = request.topics
    if topics is None:
        return [OffsetFetchRequest.Group(request.group_id, topics=None)]
    asked = [
        OffsetFetchRequest.GroupTopic(topic.name, partition_indexes=topic.partition_indexes)
        for topic in topics
    ]
    return [OffsetFetchRequest.Group(request.group_id, topics=asked)]


def response_of(groups: list[OffsetFetchResponse.Group], version: int) -> OffsetFetchResponse:
    """The answers, group by group, in the shape of the version."""
    if version >= _MANY_GROUPS_SINCE:
        return OffsetFetchResponse(groups=groups)
    (group,) = groups
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponse.Topic(
                topic.name,
                [
                    OffsetFetchResponse.Partition(
                        one.partition_index,
                        one.committed_offset,
                        one.committed_leader_epoch,
                        one.metadata,
                        one.error_code,
                    )
                    for one in topic.partitions
                ],
            )
            for topic in group.topics
        ],
        error_code=group.error_code,
    )


def fetch_offsets(core: Core, asked: OffsetFetchRequest.Group) -> OffsetFetchResponse.Group:
    known = core.image.offsets_of(asked.group_id)
    if asked.topics is None:
        return OffsetFetchResponse.Group(asked.group_id, _all_topics(known))
    return OffsetFetchResponse.Group(
        asked.group_id,
        [
            _topic(topic.name, topic.topic_id, topic.partition_indexes, known)
            for topic in asked.topics
        ],
    )


def _all_topics(
    known: dict[TopicPartition, OffsetValue],
) -> list[OffsetFetchResponse.GroupTopic]:
    indexes: dict[str, list[int]] = {}
    for name, index in sorted(known):
        indexes.setdefault(name, []).append(index)
    return [_topic(name, bytes(16), those, known) for name, those in indexes.items()]


def _topic(
    name: str, topic_id: bytes, indexes: Iterable[int], known: dict[TopicPartition, OffsetValue]
) -> OffsetFetchResponse.GroupTopic:
    partitions = []
    for index in indexes:
        value = known.get((name, index), _NOTHING)
        partitions.append(
            OffsetFetchResponse.GroupPartition(
                index, value.offset, value.leader_epoch, value.metadata
            )
        )
    return OffsetFetchResponse.GroupTopic(name, topic_id, partitions)
