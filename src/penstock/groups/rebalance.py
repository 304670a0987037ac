"""Leads a group from one generation to the next: the part of the protocol driven by no one request.

A rebalance begins when a member joins, leaves, fails or changes its protocols. It ends when every
known member has joined again, or when the longest rebalance timeout among them has passed. Then all
parked joins are answered at once, and dynamic members that did not join are removed. Static members
stay, because they are expected to return.

The first rebalance of an empty group is different: all known members have always joined already.
Instead it waits for members to arrive, and again as long as more do, up to the rebalance timeout.
So a fleet of consumers that starts together causes one rebalance, not one per consumer.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.coordination.effects import Now
from penstock.groups.effects import TimerKey, TimerKind
from penstock.groups.error_responses import join_error, sync_error
from penstock.groups.formats import GroupValue, group_record
from penstock.groups.group import Group, Member, State
from penstock.groups.shard_state import ShardState
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import JoinGroupResponse


def restore(shard: ShardState, group_id: str, value: GroupValue, now: Now) -> Group:
    """Makes the group that the log has the one of its id.

    A rebalance that was in progress is not in the log: its members learn from their next heartbeat
    that they must join again. If the record names no leader, the group was downgraded from the new
    protocol, and its partitions are to be assigned again.
    """
    group = Group.from_value(group_id, value)
    shard.groups[group_id] = group
    for member in group.members.values():
        shard.extend_session(group, member, now)
    is_leaderless = bool(value.members) and value.leader is None
    if is_leaderless or len(group.members) > shard.config.group_size_max:
        begin(shard, group, now)
    return group


def rebalance_or_complete(shard: ShardState, group: Group, now: Now) -> None:
    """Begins a rebalance after a change, or completes the current one if all have joined."""
    if group.state is State.PREPARING:
        complete_if_all_joined(shard, group, now)
    else:
        begin(shard, group, now)


def begin(shard: ShardState, group: Group, now: Now) -> None:
    if group.state is State.COMPLETING:
        drop_assignments(shard, group, ErrorCode.REBALANCE_IN_PROGRESS, now)
    shard.cancel_sync_timer(group)
    is_initial = group.state is State.EMPTY
    group.transition(State.PREPARING, now.wall_ms)
    if is_initial:
        delay_ms = shard.config.initial_rebalance_delay_ms
        group.initial_delay_left_ms = max(0, group.rebalance_timeout_ms - delay_ms)
        group.new_member_added = False
        shard.set_join_timer(group, now.ticks_ms + delay_ms)
    elif group.everyone_joined():
        complete(shard, group, now)
    else:
        shard.set_join_timer(group, now.ticks_ms + group.rebalance_timeout_ms)


def complete_if_all_joined(shard: ShardState, group: Group, now: Now) -> None:
    if group.initial_delay_left_ms is None and group.everyone_joined():
        complete(shard, group, now)


def on_join_timer(shard: ShardState, group: Group, now: Now) -> None:
    if group.join_timer_at_ms is None or now.ticks_ms < group.join_timer_at_ms:
        return
    group.join_timer_at_ms = None
    left_ms = group.initial_delay_left_ms
    if left_ms and group.new_member_added:
        group.new_member_added = False
        delay_ms = min(shard.config.initial_rebalance_delay_ms, left_ms)
        group.initial_delay_left_ms = left_ms - delay_ms
        shard.set_join_timer(group, now.ticks_ms + delay_ms)
    else:
        complete(shard, group, now)


def complete(shard: ShardState, group: Group, now: Now) -> None:
    """Ends the join phase with the members that have joined."""
    shard.cancel_join_timer(group)
    for member in group.absent_members():
        if member.instance_id is None:
            remove_member(shard, group, member)
    if group.members and not group.elect_joined_leader():
        # Only absent static members are left. They stay members, and none of them can lead now.
        shard.set_join_timer(group, now.ticks_ms + group.rebalance_timeout_ms)
        return
    group.next_generation(now.wall_ms)
    if group.state is State.EMPTY:
        shard.appends.start([group_record(group.group_id, group.to_value({}))], EmptyStored(), now)
        return
    shard.counters.rebalances += 1
    joined, group.joining = group.joining, {}
    for member in group.members.values():
        if parked := joined.get(member.member_id):
            shard.effects.reply(parked.token, join_response(group, member.member_id))
        member.is_new = False
        shard.extend_session(group, member, now)
        group.pending_syncs[member.member_id] = None
    shard.set_sync_timer(group, now.ticks_ms + group.rebalance_timeout_ms)


@dataclass(frozen=True, slots=True)
class EmptyStored:
    """The record of a group whose last member left; no request waits for it.

    If it cannot be appended, the members in the log time out after a restart.
    """

    def committed(self, shard: ShardState, now: Now) -> None: ...

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None: ...

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None: ...


def on_sync_timer(shard: ShardState, group: Group, now: Now) -> None:
    """Removes members that joined but never asked for their assignment."""
    if group.sync_timer_at_ms is None or now.ticks_ms < group.sync_timer_at_ms:
        return
    group.sync_timer_at_ms = None
    missing = [group.members[name] for name in group.pending_syncs]
    for member in missing:
        remove_member(shard, group, member)
    if missing:
        begin(shard, group, now)


def on_session_timer(shard: ShardState, group: Group, member_id: str, now: Now) -> None:
    member = group.members.get(member_id)
    if member is None or member.session_timer_at_ms is None:
        return
    if now.ticks_ms < member.session_ends_ms:
        shard.set_session_timer(group, member)
        return
    member.session_timer_at_ms = None
    waiting = member_id in group.joining or member_id in group.syncing
    if waiting and not member.is_new:
        # It waits for the coordinator's answer, so it cannot send heartbeats.
        shard.extend_session(group, member, now)
        return
    remove_member(shard, group, member)
    rebalance_or_complete(shard, group, now)


def on_pending_timer(shard: ShardState, group: Group, member_id: str, now: Now) -> None:
    if now.ticks_ms < group.pending_members.get(member_id, now.ticks_ms + 1):
        return
    del group.pending_members[member_id]
    if group.state is State.PREPARING:
        complete_if_all_joined(shard, group, now)


def forget_pending(shard: ShardState, group: Group, member_id: str) -> None:
    if group.pending_members.pop(member_id, None) is not None:
        shard.effects.cancel_timer(TimerKey(TimerKind.PENDING, group.group_id, member_id))


def remove_member(
    shard: ShardState, group: Group, member: Member, code: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID
) -> None:
    """Removes a member; if it waits for an answer, the error tells it to join as a new member."""
    shard.cancel_session_timer(group, member)
    evict_parked(shard, group, member.member_id, code)
    group.remove(member.member_id)
    if not group.pending_syncs:
        shard.cancel_sync_timer(group)


def evict_parked(shard: ShardState, group: Group, member_id: str, code: ErrorCode) -> None:
    """Answers a member's parked requests with an error."""
    if join := group.joining.pop(member_id, None):
        known_id = "" if code is ErrorCode.UNKNOWN_MEMBER_ID else member_id
        shard.effects.reply(join.token, join_error(code, known_id, join.version))
    if sync := group.syncing.pop(member_id, None):
        shard.effects.reply(sync.token, sync_error(code))


def drop_assignments(shard: ShardState, group: Group, code: ErrorCode, now: Now) -> None:
    """Clears the assignments: this generation will not get one."""
    for member in group.members.values():
        member.assignment = b""
    for member_id in list(group.syncing):
        evict_parked(shard, group, member_id, code)
        shard.extend_session(group, group.members[member_id], now)


def join_response(
    group: Group, member_id: str, *, leader_id: str | None = None, skip_assignment: bool = False
) -> JoinGroupResponse:
    """Returns a member's view of its generation; the leader also gets the list of members."""
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=leader_id or group.leader_id or "",
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=[
            JoinGroupResponse.Member(
                member.member_id,
                member.instance_id,
                member.protocols.get(group.protocol_name or "", b""),
            )
            for member in group.members.values()
        ]
        if member_id == (leader_id or group.leader_id)
        else [],
    )
