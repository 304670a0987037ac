"""What joining and staying means for a member of a consumer group, whichever protocol it speaks."""

from __future__ import annotations

from penstock.coordination.batches import record_bytes
from penstock.groups import consumer_timers
from penstock.groups.consumer.group import ConsumerGroup, Turn
from penstock.groups.consumer.reconciliation import Owned, reconcile
from penstock.groups.consumer.records import (
    Current,
    CurrentEntry,
    MemberEntry,
    MemberMetadata,
    TargetEntry,
    TopicIdPartition,
    record_of,
)
from penstock.groups.consumer_targets import (
    erase_member,
    erase_strangers,
    forget_unused_regexes,
    raise_epoch,
)
from penstock.groups.shard_state import ShardState
from penstock.wire.errors import ErrorCode, KafkaError


def require_room(
    shard: ShardState, group: ConsumerGroup, member_id: str, replaced: str | None
) -> None:
    """Raises if the group is full. A member that replaces another one has its place."""
    is_full = len(group.members) >= shard.consumers.config.group_size_max
    if is_full and replaced is None and member_id not in group.members:
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)


def require_storable(
    shard: ShardState, group: ConsumerGroup, member_id: str, metadata: MemberMetadata
) -> None:
    """Raises if the record of the member would fill more than half of a batch."""
    record = record_of(MemberEntry(group.group_id, member_id, metadata))
    if 2 * record_bytes(record) > shard.batch_bytes_max():
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "The subscription is too large: subscribe to fewer topics.",
        )


def put_member(
    shard: ShardState,
    turn: Turn,
    member_id: str,
    metadata: MemberMetadata,
    replaced: str | None = None,
) -> bool:
    """Stores a member that joins or stays. Returns whether its subscription has changed.

    If it has, or if the topics have changed, the group has a new epoch. `replaced` is the id under
    which a static member was known so far.
    """
    group = turn.group
    known_id = replaced or member_id
    before = group.members.get(known_id)
    # A member without a present assignment is new, or the log has only a part of what it asked for.
    is_changed = erase_strangers(turn) or known_id not in group.stored.currents
    if replaced is not None:
        # What the member had under another id, nobody is to own now.
        is_changed = is_changed or member_id in group.members
        _replace(shard, turn, replaced, member_id, metadata)
        is_changed = is_changed or _may_be_cut(shard, turn)
    elif metadata != before:
        turn.write(MemberEntry(group.group_id, member_id, metadata))
        consumer_timers.match_protocol(shard, group, member_id)
    old = before or MemberMetadata()
    is_changed = is_changed or metadata.names != old.names
    if metadata.regex != old.regex:
        # The topics of a new expression are not known yet.
        is_resolved = metadata.regex is None or metadata.regex in group.stored.regexes
        is_changed = is_changed or is_resolved
        forget_unused_regexes(turn)
    raise_epoch(shard, turn, is_changed=is_changed)
    return metadata.names != old.names or metadata.regex != old.regex


def _replace(
    shard: ShardState, turn: Turn, replaced: str, member_id: str, metadata: MemberMetadata
) -> None:
    """Gives what a static member owned, and should own, to the member that returns for it."""
    group = turn.group
    target, current = group.target(replaced), group.current(replaced)
    erase_member(shard, turn, replaced)
    if member_id in group.members:
        erase_member(shard, turn, member_id)
    turn.write(MemberEntry(group.group_id, member_id, metadata))
    turn.write(TargetEntry(group.group_id, member_id, target))
    held = Current(assigned=current.assigned)
    turn.write(CurrentEntry(group.group_id, member_id, held))


def _may_be_cut(shard: ShardState, turn: Turn) -> bool:
    """Returns whether the records of a decision may need several batches."""
    return 2 * sum(map(record_bytes, turn.records)) > shard.batch_bytes_max()


def subscribed_target(
    shard: ShardState, group: ConsumerGroup, member_id: str
) -> tuple[set[bytes], set[TopicIdPartition]]:
    """Returns the ids of the topics that a member reads, and the part of its target in them."""
    names = group.topics_of(group.members[member_id])
    found = map(shard.consumers.topics.find, names)
    topic_ids = {each.topic_id for each in found if each is not None}
    return topic_ids, {each for each in group.target(member_id) if each.topic_id in topic_ids}


def is_free(group: ConsumerGroup, member_id: str, partition: TopicIdPartition) -> bool:
    """Returns whether no other member owns the partition."""
    return group.owners.get(partition, member_id) == member_id


def reconcile_member(
    shard: ShardState, turn: Turn, member_id: str, owned: Owned, *, has_changed: bool
) -> tuple[Current, Current]:
    """Leads a member towards its target. Returns what it owned before this, and what it owns now.

    `has_changed` says that its subscription has.
    """
    group = turn.group
    topic_ids, target = subscribed_target(shard, group, member_id)
    before = group.current(member_id)
    after = reconcile(
        before,
        target=target,
        target_epoch=group.target_epoch,
        owned=owned,
        is_free=lambda partition: is_free(group, member_id, partition),
        may_read=(lambda partition: partition.topic_id in topic_ids) if has_changed else None,
    )
    if after != before or member_id not in group.stored.currents:
        turn.write(CurrentEntry(group.group_id, member_id, after))
    # Also if nothing has changed but the protocol that the member speaks.
    consumer_timers.match_revocation(shard, group, member_id, turn.now)
    return before, after
