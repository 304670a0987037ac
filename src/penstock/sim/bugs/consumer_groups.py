"""Planted bugs of consumer groups of the new protocol: partitions that two members read, members
that are not fenced, state that a new coordinator lacks, groups that change their protocol badly.

See `replication`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Final

from penstock.coordination.effects import Now
from penstock.groups import (
    classic_members,
    consumer_heartbeats,
    consumer_members,
    consumer_migration,
    consumer_timers,
    consumer_turns,
    offsets,
)
from penstock.groups.consumer import reconciliation
from penstock.groups.consumer.embedded_protocol import Assignment
from penstock.groups.consumer.group import ConsumerGroup, Turn
from penstock.groups.consumer.reconciliation import Owned
from penstock.groups.consumer.records import (
    Current,
    CurrentEntry,
    Entry,
    TopicIdPartition,
)
from penstock.groups.consumer.stored_group import StoredGroup
from penstock.groups.consumer.topics import Topics
from penstock.groups.consumer_heartbeats import _Call
from penstock.groups.consumer_turns import TurnsStored
from penstock.groups.formats import GroupValue
from penstock.groups.shard import GroupShard
from penstock.groups.shard_state import ShardState
from penstock.sim.bugs.planting import Plant, bug, patch
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import ConsumerGroupHeartbeatRequest

CONSUMER_BUGS: Final[dict[str, Plant]] = {}
_bug = partial(bug, CONSUMER_BUGS)


@_bug("partition-assigned-while-another-has-it")
def _ignores_owners(patches: ExitStack) -> None:
    """A member gets all partitions of its target at once, also those that others still have."""
    sound = reconciliation.reconcile

    def greedy(
        current: Current,
        *,
        target: frozenset[TopicIdPartition],
        target_epoch: int,
        owned: Owned,
        is_free: Callable[[TopicIdPartition], bool],
        may_read: Callable[[TopicIdPartition], bool] | None = None,
    ) -> Current:
        return sound(
            current,
            target=target,
            target_epoch=target_epoch,
            owned=owned,
            is_free=lambda partition: True,
            may_read=may_read,
        )

    patch(patches, consumer_members, "reconcile", greedy)


@_bug("revocation-taken-for-granted")
def _does_not_wait(patches: ExitStack) -> None:
    """A partition is free as soon as its member is told to give it up."""

    def never(owned: Owned, pending: Mapping[TopicIdPartition, int]) -> bool:
        return False

    patch(patches, reconciliation, "_still_owns", never)


@_bug("member-epoch-not-stored")
def _keeps_epochs_in_memory(patches: ExitStack) -> None:
    """The new epoch of a member that keeps its partitions is not written to the log."""
    write = Turn.write

    def forgetful(self: Turn, entry: Entry) -> None:
        before = None
        if isinstance(entry, CurrentEntry):
            before = self.group.stored.currents.get(entry.member_id)
        write(self, entry)
        if before is None or not isinstance(entry, CurrentEntry) or entry.value is None:
            return
        if (before.assigned.keys(), before.pending.keys()) == (
            entry.value.assigned.keys(),
            entry.value.pending.keys(),
        ):
            self.records.pop()

    patch(patches, Turn, "write", forgetful)


@_bug("commit-of-a-fenced-member-accepted")
def _takes_any_commit(patches: ExitStack) -> None:
    """Neither the id nor the epoch of a member that commits is checked."""

    def anybody(group: ConsumerGroup, member_id: str, epoch: int, version: int = 9) -> None:
        pass

    def nothing(
        group: ConsumerGroup,
        topics: Topics,
        member_id: str,
        epoch: int,
        partitions: Iterable[TopicPartition],
    ) -> frozenset[TopicPartition]:
        return frozenset()

    patch(patches, offsets, "require_committer", anybody)
    patch(patches, offsets, "stale_partitions", nothing)


@_bug("older-epoch-commits-anything")
def _ignores_older_epochs(patches: ExitStack) -> None:
    """A member may commit under an older epoch for partitions that it has lost since then."""

    def nothing(
        group: ConsumerGroup,
        topics: Topics,
        member_id: str,
        epoch: int,
        partitions: Iterable[TopicPartition],
    ) -> frozenset[TopicPartition]:
        return frozenset()

    patch(patches, offsets, "stale_partitions", nothing)


@_bug("sessions-not-restarted-by-a-new-coordinator")
def _waits_forever(patches: ExitStack) -> None:
    """A new coordinator sets no timers for the members that it finds in the log."""

    def leave_alone(shard: ShardState, group: ConsumerGroup, now: Now) -> None:
        pass

    patch(patches, consumer_timers, "match_members", leave_alone)


@_bug("revoked-partitions-forgotten-by-a-new-coordinator")
def _forgets_pending(patches: ExitStack) -> None:
    """A new coordinator takes partitions for free that members have not given up yet."""
    reset = ConsumerGroup.reset

    def without_pending(self: ConsumerGroup, stored: StoredGroup) -> None:
        reset(self, stored)
        for current in self.stored.currents.values():
            for partition in current.pending:
                self.owners.pop(partition, None)

    patch(patches, ConsumerGroup, "reset", without_pending)


@_bug("static-member-replaced-while-it-runs")
def _replaces_anyone(patches: ExitStack) -> None:
    """A member that joins with an instance id takes over what the running one has."""

    def at_once(self: _Call, group: ConsumerGroup, member_id: str) -> str | None:
        held_by = group.static_members.get(self.request.instance_id or "")
        return None if held_by == member_id else held_by

    patch(patches, _Call, "_require_place", at_once)


@_bug("heartbeat-answered-before-its-records-are-committed")
def _answers_early(patches: ExitStack) -> None:
    """A member learns its epoch and its partitions before they are in the log."""
    start = TurnsStored.start_next

    def hasty(self: TurnsStored, shard: ShardState, now: Now) -> None:
        for answer in self.answers:
            consumer_turns._reply(shard, answer)
        start(self, shard, now)

    patch(patches, TurnsStored, "start_next", hasty)


@_bug("unknown-group-ends-its-members")
def _ends_members(patches: ExitStack) -> None:
    """A coordinator that does not know a group answers GROUP_ID_NOT_FOUND."""
    require = consumer_heartbeats._require_group

    def strict(
        shard: ShardState, request: ConsumerGroupHeartbeatRequest, now: Now
    ) -> ConsumerGroup:
        if request.group_id not in shard.groups and request.member_epoch:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        return require(shard, request, now)

    patch(patches, consumer_heartbeats, "_require_group", strict)


@_bug("changed-topics-not-assigned")
def _ignores_topics(patches: ExitStack) -> None:
    """Groups do not learn that topics were created, enlarged or deleted."""
    patch(patches, GroupShard, "on_topics_changed", lambda self, names, *, created: None)


@_bug("upgrade-forgets-what-members-read")
def _imports_members_only(patches: ExitStack) -> None:
    """The members of a group that is upgraded own nothing, although they go on reading."""

    def nothing(data: bytes, topics: Topics) -> Assignment:
        return Assignment(frozenset(), False)

    patch(patches, consumer_migration, "read_assignment", nothing)


@_bug("upgrade-leaves-the-classic-group-in-the-log")
def _keeps_the_classic_group(patches: ExitStack) -> None:
    """A group that is upgraded has records of both protocols."""
    patch(patches, consumer_migration, "_classic_tombstone", lambda shard, classic: [])


@_bug("downgraded-group-does-not-rebalance")
def _names_a_leader(patches: ExitStack) -> None:
    """A downgraded group goes on without the partitions of the member that left."""
    sound = consumer_migration._exported

    def led(shard: ShardState, group: ConsumerGroup, now: Now) -> GroupValue:
        value = sound(shard, group, now)
        value.leader = value.members[0].member_id
        return value

    patch(patches, consumer_migration, "_exported", led)


@_bug("classic-members-not-told-to-join-again")
def _never_tells(patches: ExitStack) -> None:
    """Members of the classic protocol keep what others are to get."""
    patch(patches, classic_members, "_must_rejoin", lambda shard, group, member_id: False)
