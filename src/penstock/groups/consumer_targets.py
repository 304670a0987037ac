"""Group epochs and target assignments: what follows from a change of members or topics."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.groups import consumer_timers
from penstock.groups.consumer.assignors import ASSIGNORS, Subscriber
from penstock.groups.consumer.group import ConsumerGroup, Turn
from penstock.groups.consumer.records import (
    CurrentEntry,
    EpochEntry,
    GroupEpoch,
    MemberEntry,
    RegexEntry,
    TargetEntry,
    TargetEpoch,
    TargetEpochEntry,
)
from penstock.groups.consumer.topics import Topics, metadata_hash
from penstock.groups.consumer_migration import downgrade_is_due
from penstock.groups.shard_state import ShardState


def raise_epoch(shard: ShardState, turn: Turn, *, is_changed: bool) -> None:
    """Raises the epoch of a group whose members or topics have changed.

    `is_changed` says that the subscriptions did. Otherwise the topics are looked at, if they may
    have changed.

    The new epoch is the first record of the decision. If the records need several batches, and the
    later ones are lost, the next heartbeat computes a target assignment for what there is.
    """
    group = turn.group
    if not is_changed and not group.metadata_is_stale:
        return
    found = metadata_hash(shard.consumers.topics, group.subscribed_topics)
    group.metadata_is_stale = False
    known = None if group.stored.epoch is None else group.stored.epoch.metadata_hash
    if is_changed or found != known:
        turn.write_first(EpochEntry(group.group_id, GroupEpoch(group.epoch + 1, found)))


def assign(shard: ShardState, turn: Turn) -> None:
    """Computes the target assignment if it is not that of the group's epoch.

    Not more often than the interval allows: many members that join together cause few
    computations.
    """
    group, now = turn.group, turn.now
    if group.epoch <= group.target_epoch:
        return
    before = group.stored.target_epoch
    # The first members of a group do not wait.
    if before is not None and group.stored.targets:
        interval_ms = shard.consumers.settings_of(group.group_id).assignment_interval_ms
        # If the wall clock was set back, the time since then is unknown.
        if 0 <= now.wall_ms - before.computed_ms < interval_ms:
            return
    members = _subscribers(shard.consumers.topics, group)
    topics = (shard.consumers.topics.find(name) for name in sorted(group.subscribed_topics))
    counts = {found.topic_id: found.partitions for found in topics if found is not None}
    name = group.preferred_assignor(shard.consumers.config.assignors)
    for member_id, target in ASSIGNORS[name](members, counts).items():
        if target != group.target(member_id):
            turn.write(TargetEntry(group.group_id, member_id, target))
    turn.write(TargetEpochEntry(group.group_id, TargetEpoch(group.epoch, now.wall_ms)))
    shard.counters.rebalances += 1
    shard.counters.consumer_rebalances += 1


def _subscribers(topics: Topics, group: ConsumerGroup) -> list[Subscriber]:
    ids: dict[tuple[frozenset[str], str | None], frozenset[bytes]] = {}
    members = []
    for member_id, metadata in group.members.items():
        subscription = metadata.names, metadata.regex
        if subscription not in ids:
            found = map(topics.find, group.topics_of(metadata))
            ids[subscription] = frozenset(each.topic_id for each in found if each is not None)
        members.append(
            Subscriber(member_id, metadata.instance_id, ids[subscription], group.target(member_id))
        )
    return members


def remove_members(shard: ShardState, turn: Turn, member_ids: Iterable[str]) -> None:
    """Removes members. Their partitions are free at once, and the group has a new epoch.

    If it becomes a classic group, it keeps its epoch: that is the generation of its members.
    """
    group = turn.group
    for member_id in member_ids:
        erase_member(shard, turn, member_id)
    forget_unused_regexes(turn)
    if downgrade_is_due(shard, turn):
        return
    raise_epoch(shard, turn, is_changed=True)
    if not group.members:
        # The time of this record is when the group became empty: from then on offsets expire.
        # It precedes the tombstones, so the target assignment may still be needed.
        empty = TargetEpoch(group.target_epoch, turn.now.wall_ms)
        turn.write_first(TargetEpochEntry(group.group_id, empty))


def erase_member(shard: ShardState, turn: Turn, member_id: str) -> None:
    """Writes the tombstones of a member, and cancels its timers."""
    group = turn.group
    consumer_timers.cancel(shard, group, member_id)
    if member_id in group.stored.currents:
        turn.write(CurrentEntry(group.group_id, member_id, None))
    if member_id in group.stored.targets:
        turn.write(TargetEntry(group.group_id, member_id, None))
    turn.write(MemberEntry(group.group_id, member_id, None))


def erase_strangers(turn: Turn) -> bool:
    """Removes what members had that a newer broker stored, and this one cannot read.

    Returns whether there were any. They must join again.
    """
    group = turn.group
    entries = group.tombstones_of_strangers()
    group.strangers.clear()
    for entry in entries:
        turn.write(entry)
    return bool(entries)


def forget_unused_regexes(turn: Turn) -> None:
    """Removes expressions that no member subscribes with any more."""
    group = turn.group
    group.unusable_regexes &= group.regex_users.keys()
    group.outgrown_regexes &= group.regex_users.keys()
    for regex in sorted(group.stored.regexes.keys() - group.regex_users.keys()):
        turn.write(RegexEntry(group.group_id, regex, None))
