"""Epochs and target assignments of share groups: what follows from a change of members, of topics,
or of the partitions that are initialized."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.groups import share_timers
from penstock.groups.consumer.records import GroupEpoch, TargetEpoch, TopicIdPartition
from penstock.groups.consumer.topics import metadata_hash
from penstock.groups.shard_state import ShardState
from penstock.groups.share.group import ShareGroup, Turn
from penstock.groups.share.records import (
    CurrentEntry,
    EpochEntry,
    MemberEntry,
    TargetEntry,
    TargetEpochEntry,
)
from penstock.shares.assignor import assign as assign_simply
from penstock.topic_partition import TopicPartition


def raise_epoch(shard: ShardState, turn: Turn, *, is_changed: bool) -> None:
    """Raises the epoch of a group if what must be assigned has changed.

    `is_changed` says that it did. Otherwise the topics are looked at, if they may have changed. The
    new epoch is the first record of the decision, as in consumer groups.
    """
    group = turn.group
    if not is_changed and not group.metadata_is_stale:
        return
    found = metadata_hash(shard.consumers.topics, group.subscribed_topics)
    group.metadata_is_stale = False
    known = None if group.stored.epoch is None else group.stored.epoch.metadata_hash
    if found != known:
        group.may_lack_states = True
    if is_changed or found != known:
        turn.write_first(EpochEntry(group.group_id, GroupEpoch(group.epoch + 1, found)))


def assign(shard: ShardState, turn: Turn) -> None:
    """Computes the target assignment if it is not that of the group's epoch.

    Not more often than the interval allows: many members that join together cause few
    computations. Only partitions that are initialized are assigned.
    """
    group, now = turn.group, turn.now
    if group.epoch <= group.target_epoch:
        return
    before = group.stored.target_epoch
    if before is not None:
        interval_ms = shard.shares.settings_of(group.group_id).assignment_interval_ms
        # If the wall clock was set back, the time since then is unknown.
        if 0 <= now.wall_ms - before.computed_ms < interval_ms:
            return
    for member_id, target in _targets(shard, group).items():
        if target != group.target(member_id):
            turn.write(TargetEntry(group.group_id, member_id, target))
    turn.write(TargetEpochEntry(group.group_id, TargetEpoch(group.epoch, now.wall_ms)))
    shard.counters.rebalances += 1


def _targets(shard: ShardState, group: ShareGroup) -> dict[str, frozenset[TopicIdPartition]]:
    ids: dict[str, bytes] = {}
    partitions: dict[str, list[int]] = {}
    for name in group.subscribed_topics:
        facts = shard.consumers.topics.find(name)
        if facts is not None:
            ids[name] = facts.topic_id
            ready = group.initialized(facts.topic_id)
            partitions[name] = sorted(index for index in ready if index < facts.partitions)
    names = {topic_id: name for name, topic_id in ids.items()}
    previous = {
        member_id: [
            TopicPartition(names[topic_id], index)
            for topic_id, index in group.target(member_id)
            if topic_id in names
        ]
        for member_id in group.members
    }
    subscriptions = {member_id: member.names for member_id, member in group.members.items()}
    found = assign_simply(subscriptions, partitions, previous)
    return {
        member_id: frozenset(TopicIdPartition(ids[name], index) for name, index in assigned)
        for member_id, assigned in found.items()
    }


def remove_members(shard: ShardState, turn: Turn, member_ids: Iterable[str]) -> None:
    """Removes members. The group has a new epoch."""
    group = turn.group
    for member_id in member_ids:
        share_timers.cancel(shard, group, member_id)
        if member_id in group.stored.currents:
            turn.write(CurrentEntry(group.group_id, member_id, None))
        if member_id in group.stored.targets:
            turn.write(TargetEntry(group.group_id, member_id, None))
        turn.write(MemberEntry(group.group_id, member_id, None))
    raise_epoch(shard, turn, is_changed=True)
