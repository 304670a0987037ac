"""Moves groups with members between the classic and the new protocol, in both directions.

A classic group of consumers becomes a consumer group when the first member of the new protocol
joins it (upgrade). Its members stay: each owns what it was assigned last, or what it said that it
reads if a rebalance was interrupted. Its epoch is the generation of the classic group. They go on
speaking the classic protocol (`classic_members`).

When the last member of the new protocol is gone, the group becomes a classic group with the members
that remain (downgrade). They join again, and one of them assigns the partitions.

`group.consumer.migration.policy` allows either, both or none. Offsets belong to the group id, and
stay. The records of a conversion are one batch: tombstones of the old group, then the new one. So
a coordinator that loads the log finds one of the two. A group whose records do not fit into a batch
is not converted.

The record of a downgraded group has members, but no leader. A coordinator that finds such a record
begins a rebalance: the partitions of the member that left have no owner yet.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from penstock.coordination.batches import split
from penstock.coordination.effects import LogRecord, Now
from penstock.groups import consumer_timers
from penstock.groups.consumer.embedded_protocol import (
    Assignment,
    read_assignment,
    read_subscription,
    write_assignment,
)
from penstock.groups.consumer.group import ConsumerGroup, Turn
from penstock.groups.consumer.records import (
    ClassicProtocol,
    Current,
    CurrentEntry,
    EpochEntry,
    GroupEpoch,
    MemberEntry,
    MemberMetadata,
    TargetEntry,
    TargetEpoch,
    TargetEpochEntry,
    TopicIdPartition,
)
from penstock.groups.formats import GroupValue, group_record
from penstock.groups.group import CONSUMER_PROTOCOL_TYPE, Group, Member, State
from penstock.groups.rebalance import evict_parked, forget_pending, restore
from penstock.groups.shard_state import ShardState
from penstock.wire.errors import ErrorCode, KafkaError, ProtocolError

_NEVER_COMPUTED: Final = 0


# Upgrade


def upgraded(shard: ShardState, classic: Group, now: Now) -> ConsumerGroup:
    """Returns a consumer group with the members of a classic group.

    It replaces the classic group with its first change (`take_over`). Raises GROUP_ID_NOT_FOUND if
    the group cannot be upgraded.
    """
    if not shard.consumers.config.migration_policy.upgrades:
        raise _refused(classic, "group.consumer.migration.policy does not allow upgrading it")
    if classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise _refused(classic, f"its members are of type {classic.protocol_type}, not consumer")
    if len(classic.members) > shard.consumers.config.group_size_max:
        raise _refused(classic, "it has more members than group.consumer.max.size")
    group = ConsumerGroup(classic.group_id)
    turn = Turn(group, now)
    _import_members(shard, classic, turn)
    group.arrival = [*_classic_tombstone(shard, classic), *turn.records]
    if not _fits(shard, group.arrival):
        raise _refused(classic, "its records exceed max.message.bytes of __consumer_offsets")
    return group


def _refused(classic: Group, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"The group {classic.group_id} has members of the classic protocol, and cannot be "
        f"upgraded: {reason}. Stop these members first.",
    )


def _fits(shard: ShardState, records: list[LogRecord]) -> bool:
    return len(list(split(records, shard.batch_bytes_max()))) == 1


def _classic_tombstone(shard: ShardState, classic: Group) -> list[LogRecord]:
    if classic.generation or classic.group_id in shard.image.groups:
        return [group_record(classic.group_id, None)]
    return []


def _import_members(shard: ShardState, classic: Group, turn: Turn) -> None:
    """Writes the records of the group in the order of `consumer.records`."""
    group_id, epoch = classic.group_id, classic.generation
    owned: dict[str, dict[TopicIdPartition, int]] = {}
    taken: set[TopicIdPartition] = set()
    for member in classic.members.values():
        metadata, assignment = _imported(shard, classic, member)
        # Two members may have been assigned the same partition. Here it has one owner.
        own = sorted(assignment.partitions - taken)
        taken.update(own)
        owned[member.member_id] = dict.fromkeys(own, epoch)
        turn.write(MemberEntry(group_id, member.member_id, metadata))
    turn.write(EpochEntry(group_id, GroupEpoch(epoch)))
    for member_id, partitions in owned.items():
        turn.write(TargetEntry(group_id, member_id, frozenset(partitions)))
    turn.write(TargetEpochEntry(group_id, TargetEpoch(epoch, _NEVER_COMPUTED)))
    for member_id, partitions in owned.items():
        current = Current(epoch, epoch, assigned=partitions)
        turn.write(CurrentEntry(group_id, member_id, current))


def _imported(
    shard: ShardState, classic: Group, member: Member
) -> tuple[MemberMetadata, Assignment]:
    topics = shard.consumers.topics
    try:
        chosen = member.protocols.get(classic.protocol_name or "")
        data = next(iter(member.protocols.values()), b"") if chosen is None else chosen
        subscription = read_subscription(data, topics)
        assignment = read_assignment(member.assignment, topics)
    except ProtocolError:
        raise _refused(
            classic, f"the subscription or assignment of member {member.member_id} is unreadable"
        ) from None
    if assignment.has_user_data:
        raise _refused(classic, "its members use a custom assignor")
    if not member.assignment and classic.state is not State.STABLE:
        # An interrupted rebalance has dropped the assignments. The member has told what it reads.
        assignment = Assignment(subscription.owned, False)
    metadata = MemberMetadata(
        member.client_id,
        member.client_host,
        member.instance_id,
        subscription.rack_id,
        subscription.names,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicProtocol(member.session_timeout_ms, tuple(member.protocols.items())),
    )
    return metadata, assignment


def take_over(shard: ShardState, classic: Group, group: ConsumerGroup, now: Now) -> list[LogRecord]:
    """Lets a consumer group replace a classic one. Returns the records of the conversion.

    Members that wait for the end of a rebalance are told to join again.
    """
    for member_id, member in classic.members.items():
        evict_parked(shard, classic, member_id, ErrorCode.REBALANCE_IN_PROGRESS)
        # Both kinds of groups have the same timers of sessions. That of the member that joins is
        # set already.
        if member_id not in group.sessions:
            shard.cancel_session_timer(classic, member)
    for member_id in list(classic.pending_members):
        forget_pending(shard, classic, member_id)
    shard.cancel_join_timer(classic)
    shard.cancel_sync_timer(classic)
    group.commits_in_flight = classic.commits_in_flight
    group.unstable_in_flight = classic.unstable_in_flight
    consumer_timers.match_members(shard, group, now)
    records, group.arrival = group.arrival, []
    return records or _classic_tombstone(shard, classic)


# Downgrade


def downgrade_is_due(shard: ShardState, turn: Turn) -> bool:
    """Returns whether only members of the classic protocol are left, and may be on their own.

    The decision after which it is so, and the downgrade, must fit into one batch.
    """
    group = turn.group
    return (
        group.is_classic_only
        and shard.consumers.config.migration_policy.downgrades
        and len(group.members) <= shard.config.group_size_max
        and bool(_common_protocols(group))
        and _downgrade_fits(shard, turn)
    )


def _downgrade_fits(shard: ShardState, turn: Turn) -> bool:
    """Does not encode all members for each decision if their records were too large before."""
    group, batch_bytes_max = turn.group, shard.batch_bytes_max()
    if group.downgrade_exceeds >= batch_bytes_max:
        return False
    fits = _fits(shard, [*turn.records, *downgrade_records(shard, group, turn.now)])
    if not fits:
        group.note_downgrade_exceeds(batch_bytes_max)
    return fits


def downgrade_records(shard: ShardState, group: ConsumerGroup, now: Now) -> list[LogRecord]:
    """Returns the records that replace a consumer group with a classic one."""
    return [*group.tombstones(), group_record(group.group_id, _exported(shard, group, now))]


def _common_protocols(group: ConsumerGroup) -> list[str]:
    """Returns the protocols that all classic members support."""
    users = group.classic_protocols
    return [name for name, count in users.items() if count == group.classic_members]


def _exported(shard: ShardState, group: ConsumerGroup, now: Now) -> GroupValue:
    common = set(_common_protocols(group))
    votes = Counter(
        next(name for name, _ in metadata.classic.protocols if name in common)
        for metadata in group.members.values()
        if metadata.classic is not None
    )
    protocol = max(votes, key=votes.__getitem__)
    return GroupValue(
        CONSUMER_PROTOCOL_TYPE,
        group.epoch,
        protocol=protocol,
        leader=None,
        current_state_timestamp=now.wall_ms,
        members=[
            _exported_member(shard, group, member_id, metadata.classic, protocol)
            for member_id, metadata in group.members.items()
            if metadata.classic is not None
        ],
    )


def _exported_member(
    shard: ShardState,
    group: ConsumerGroup,
    member_id: str,
    classic: ClassicProtocol,
    protocol: str,
) -> GroupValue.Member:
    """The assignment is what the member still has, so that a second upgrade knows all owners."""
    metadata, current = group.members[member_id], group.current(member_id)
    subscription = dict(classic.protocols)[protocol]
    return GroupValue.Member(
        member_id=member_id,
        group_instance_id=metadata.instance_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        rebalance_timeout=metadata.rebalance_timeout_ms,
        session_timeout=classic.session_timeout_ms,
        subscription=subscription,
        assignment=write_assignment(
            (*current.assigned, *current.pending), subscription, shard.consumers.topics
        ),
    )


def downgrade(shard: ShardState, group: ConsumerGroup, now: Now) -> None:
    """Replaces a consumer group with the classic group that is in the log now."""
    consumer_timers.cancel_all(shard, group)
    shard.readers.forget(group.group_id)
    classic = restore(shard, group.group_id, shard.image.groups[group.group_id], now)
    classic.commits_in_flight = group.commits_in_flight
    classic.unstable_in_flight = group.unstable_in_flight
