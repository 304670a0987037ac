"""Whether a member of a consumer group may commit and fetch offsets under its epoch.

A member commits under its own epoch. One with an older epoch may still commit for partitions that
it has had since then (KIP-1251): it commits before it gives them up, and need not learn its new
epoch first.

To a member that speaks the classic protocol, its epoch is a generation: any other one is refused
with the error of a generation.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.records import Current, TopicIdPartition
from penstock.groups.consumer.topics import Topics
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError

_EPOCHS_SINCE = 9
_NO_EPOCH = -1


def require_committer(
    group: ConsumerGroup, member_id: str, epoch: int, version: int = _EPOCHS_SINCE
) -> None:
    """Raises the error of a client that may not commit to the group.

    A member with an older epoch passes: `stale_partitions` tells what it may not commit.
    """
    if epoch < 0 and not group.members:
        return
    if member_id not in group.members:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    if group.members[member_id].classic is not None:
        _require_generation(group, member_id, epoch)
        return
    if version < _EPOCHS_SINCE:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Version {version} has no member epochs: use version {_EPOCHS_SINCE}.",
        )
    if epoch > group.current(member_id).epoch:
        raise KafkaError(ErrorCode.STALE_MEMBER_EPOCH)


def _require_generation(group: ConsumerGroup, member_id: str, generation: int) -> None:
    """Raises unless this is the generation of a member that speaks the classic protocol."""
    if generation != group.current(member_id).epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)


def stale_partitions(
    group: ConsumerGroup,
    topics: Topics,
    member_id: str,
    epoch: int,
    partitions: Iterable[TopicPartition],
) -> frozenset[TopicPartition]:
    """Returns the partitions that the member may not commit under this epoch."""
    if not group.members:
        return frozenset()
    current = group.current(member_id)
    if epoch == current.epoch:
        return frozenset()
    return frozenset(each for each in partitions if not _held_since(current, topics, each, epoch))


def _held_since(current: Current, topics: Topics, about: TopicPartition, epoch: int) -> bool:
    topic = topics.find(about[0])
    if topic is None:
        return False
    partition = TopicIdPartition(topic.topic_id, about[1])
    assigned = current.assigned.get(partition, current.pending.get(partition))
    return assigned is not None and epoch >= max(assigned, 0)


def require_fetcher(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    """Raises the error of a member that fetches offsets under a wrong epoch."""
    if not member_id and epoch == _NO_EPOCH:
        return
    if member_id is None or member_id not in group.members:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    if group.members[member_id].classic is not None:
        _require_generation(group, member_id, epoch)
    elif epoch != group.current(member_id).epoch:
        raise KafkaError(ErrorCode.STALE_MEMBER_EPOCH)
