"""Plans an offset reset of a group, limited to the offsets that the logs have.

A plan can be shown to a user before anything is changed. To carry it out, call
`Admin.alter_group_offsets`, or `Admin.alter_share_group_offsets` for a share group, with exactly
its offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

from penstock.client.admin.arguments import When
from penstock.client.admin.groups import SHARE, GroupInfo
from penstock.client.admin.offsets import FoundOffset
from penstock.client.admin.operations import TopicInfo
from penstock.client.admin.share_groups import ShareGroupInfo, SharePartitionOffsets
from penstock.client.errors import BrokerError, OptionError, TopicNotFound
from penstock.client.model import OffsetAndMetadata
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode

MOVABLE_STATES: Final = ("Empty", "Dead")


class AskedTopics(Protocol):
    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicInfo | BrokerError]: ...
    async def list_offsets(
        self, times: Mapping[TopicPartition, When]
    ) -> dict[TopicPartition, FoundOffset | None]: ...


class Asked(AskedTopics, Protocol):
    """What a plan needs from an `Admin`: only methods that change nothing."""

    async def describe_group(self, group: str) -> GroupInfo: ...
    async def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]: ...


class AskedShareGroups(AskedTopics, Protocol):
    """What a plan for a share group needs from an `Admin`."""

    async def describe_share_group(self, group: str) -> ShareGroupInfo: ...
    async def share_group_offsets(
        self, group: str
    ) -> dict[TopicPartition, SharePartitionOffsets]: ...


class Kind(Enum):
    EARLIEST = auto()
    LATEST = auto()
    OFFSET = auto()
    TIME = auto()
    SHIFT = auto()


class Target(NamedTuple):
    kind: Kind
    value: int = 0
    """An offset, milliseconds since 1970, or how far to shift."""


@dataclass(frozen=True, slots=True)
class Move:
    topic_partition: TopicPartition
    committed: int | None
    """Of a share group: the first offset that is not done."""
    offset: int
    next_offset: int

    @property
    def lag(self) -> int:
        return self.next_offset - self.offset


async def plan(
    admin: Asked, group: str, topics: Mapping[str, Sequence[int] | None], goal: Target
) -> list[Move]:
    """Returns a move for each partition; none if nothing is committed and no topic is given.

    The default is all topics that the group has committed offsets for. A topic with None means all
    its partitions. Topics with committed offsets that no longer exist are left out.
    """
    await refuse_members(admin, group)
    committed = await admin.group_offsets(group)
    return await _moves(admin, {where: at.offset for where, at in committed.items()}, topics, goal)


async def plan_share_group(
    admin: AskedShareGroups, group: str, topics: Mapping[str, Sequence[int] | None], goal: Target
) -> list[Move]:
    """Returns the moves of a share group, as `plan` does for a consumer group."""
    try:
        info = await admin.describe_share_group(group)
    except BrokerError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
    else:
        if info.state not in MOVABLE_STATES:
            raise BrokerError(
                ErrorCode.NON_EMPTY_GROUP,
                f"share group {group} is {info.state} with {len(info.members)} members: "
                "stop its workers first",
            )
    offsets = await admin.share_group_offsets(group)
    begun = {where: at.start_offset for where, at in offsets.items() if at.start_offset is not None}
    return await _moves(admin, begun, topics, goal)


async def _moves(
    admin: AskedTopics,
    committed: Mapping[TopicPartition, int],
    topics: Mapping[str, Sequence[int] | None],
    goal: Target,
) -> list[Move]:
    topic_partitions = (
        await _topic_partitions(admin, topics) if topics else await _still_there(admin, committed)
    )
    if not topic_partitions:
        return []
    starts = await offsets_at(admin, topic_partitions, "earliest")
    ends = await offsets_at(admin, topic_partitions, "latest")
    wanted = await offsets_at(admin, topic_partitions, goal.value) if goal.kind is Kind.TIME else {}
    moves = []
    for topic_partition in sorted(topic_partitions):
        start, end = starts[topic_partition], ends[topic_partition]
        at = committed.get(topic_partition)
        match goal.kind:
            case Kind.EARLIEST:
                offset = start
            case Kind.LATEST:
                offset = end
            case Kind.OFFSET:
                offset = goal.value
            case Kind.TIME:
                offset = wanted.get(topic_partition, end)
            case Kind.SHIFT:
                if at is None:
                    raise OptionError(
                        f"{topic_partition} has no committed offset to shift: use another target"
                    )
                offset = at + goal.value
        moves.append(Move(topic_partition, at, min(max(offset, start), end), end))
    return moves


async def offsets_at(
    admin: AskedTopics, topic_partitions: Sequence[TopicPartition], when: When
) -> dict[TopicPartition, int]:
    """Returns the offsets at a time. Partitions without a record at or after it are left out."""
    found = await admin.list_offsets(dict.fromkeys(topic_partitions, when))
    return {topic_partition: at.offset for topic_partition, at in found.items() if at is not None}


async def refuse_members(admin: Asked, group: str) -> None:
    """Raises an error if the group has members: they would overwrite the new offsets."""
    try:
        info = await admin.describe_group(group)
    except BrokerError as error:
        if error.code == ErrorCode.GROUP_ID_NOT_FOUND:
            return  # setting offsets creates the group
        raise
    if info.protocol_type == SHARE:
        raise OptionError(
            f"group {group} is a share group: use penstock queue reset-offsets, or "
            "alter_share_group_offsets of an admin client"
        )
    if info.state not in MOVABLE_STATES:
        raise BrokerError(
            ErrorCode.NON_EMPTY_GROUP,
            f"group {group} is {info.state} with {len(info.members)} members, which would "
            "overwrite the new offsets: stop its consumers first",
        )


async def _topic_partitions(
    admin: AskedTopics, topics: Mapping[str, Sequence[int] | None]
) -> list[TopicPartition]:
    found = await admin.describe_topics([*topics])
    topic_partitions = []
    for name, partitions in topics.items():
        info = found[name]
        if isinstance(info, BrokerError):
            raise info
        number = len(info.partitions)
        for partition in range(number) if partitions is None else partitions:
            if partition >= number:
                raise TopicNotFound(name, partition)
            topic_partitions.append(TopicPartition(name, partition))
    return topic_partitions


async def _still_there(
    admin: AskedTopics, committed: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    names = sorted({topic_partition.topic for topic_partition in committed})
    found = await admin.describe_topics(names) if names else {}
    known = {
        TopicPartition(name, part.index)
        for name, info in found.items()
        if not isinstance(info, BrokerError)
        for part in info.partitions
    }
    return [topic_partition for topic_partition in committed if topic_partition in known]
