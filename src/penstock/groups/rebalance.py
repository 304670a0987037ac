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
from penstock.groups.core import Core
from penstock.groups.effects import TimerKey, TimerKind
from penstock.groups.formats import group_record
from penstock.groups.group import Group, Member, State
from penstock.groups.refusals import join_error, sync_error
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import JoinGroupResponse


def rebalance_or_complete(core: Core, group: Group, now: Now) -> None:
    """Begins a rebalance after a change, or completes the current one if all have joined."""
    if group.state is State.PREPARING:
        complete_if_all_joined(core, group, now)
    else:
        begin(core, group, now)


def begin(core: Core, group: Group, now: Now) -> None:
    if group.state is State.COMPLETING:
        drop_assignments(core, group, ErrorCode.REBALANCE_IN_PROGRESS, now)
    core.cancel_sync_timer(group)
    is_initial = group.state is State.EMPTY
    group.transition(State.PREPARING, now.wall_ms)
    if is_initial:
        delay_ms = core.config.initial_rebalance_delay_ms
        group.initial_delay_left_ms = max(0, group.rebalance_timeout_ms - delay_ms)
        group.new_member_added = False
        core.set_join_timer(group, now.ticks_ms + delay_ms)
    elif group.everyone_joined():
        complete(core, group, now)
    else:
        core.set_join_timer(group, now.ticks_ms + group.rebalance_timeout_ms)


def complete_if_all_joined(core: Core, group: Group, now: Now) -> None:
    if group.initial_delay_left_ms is None and group.everyone_joined():
        complete(core, group, now)


def on_join_timer(core: Core, group: Group, now: Now) -> None:
    if group.join_timer_at_ms is None or now.ticks_ms < group.join_timer_at_ms:
        return
    group.join_timer_at_ms = None
    left_ms = group.initial_delay_left_ms
    if left_ms and group.new_member_added:
        group.new_member_added = False
        delay_ms = min(core.config.initial_rebalance_delay_ms, left_ms)
        group.initial_delay_left_ms = left_ms - delay_ms
        core.set_join_timer(group, now.ticks_ms + delay_ms)
    else:
        complete(core, group, now)


def complete(core: Core, group: Group, now: Now) -> None:
    """Ends the join phase with the members that have joined."""
    core.cancel_join_timer(group)
    for member in group.absent_members():
        if member.instance_id is None:
            remove_member(core, group, member)
    if group.members and not group.elect_joined_leader():
        # Only absent static members are left. They stay members, and none of them can lead now.
        core.set_join_timer(group, now.ticks_ms + group.rebalance_timeout_ms)
        return
    group.next_generation(now.wall_ms)
    if group.state is State.EMPTY:
        core.appends.start([group_record(group.group_id, group.to_value({}))], EmptyStored(), now)
        return
    core.rebalances += 1
    joined, group.joining = group.joining, {}
    for member in group.members.values():
        if parked := joined.get(member.member_id):
            core.effects.reply(parked.token, join_response(group, member.member_id))
        member.is_new = False
        core.extend_session(group, member, now)
        group.pending_syncs[member.member_id] = None
    core.set_sync_timer(group, now.ticks_ms + group.rebalance_timeout_ms)


@dataclass(frozen=True, slots=True)
class EmptyStored:
    """The record of a group whose last member left; no request waits for it.

    If it cannot be appended, the members in the log time out after a restart.
    """

    def committed(self, core: Core, now: Now) -> None: ...

    def failed(self, core: Core, error: ErrorCode, now: Now) -> None: ...

    def abandoned(self, core: Core, code: ErrorCode) -> None: ...


def on_sync_timer(core: Core, group: Group, now: Now) -> None:
    """Removes members that joined but never asked for their assignment."""
    if group.sync_timer_at_ms is None or now.ticks_ms < group.sync_timer_at_ms:
        return
    group.sync_timer_at_ms = None
    missing = [group.members[name] for name in group.pending_syncs]
    for member in missing:
        remove_member(core, group, member)
    if missing:
        begin(core, group, now)


def on_session_timer(core: Core, group: Group, member_id: str, now: Now) -> None:
    member = group.members.get(member_id)
    if member is None or member.session_timer_at_ms is None:
        return
    if now.ticks_ms < member.session_ends_ms:
        core.set_session_timer(group, member)
        return
    member.session_timer_at_ms = None
    waiting = member_id in group.joining or member_id in group.syncing
    if waiting and not member.is_new:
        # It waits for the coordinator's answer, so it cannot send heartbeats.
        core.extend_session(group, member, now)
        return
    remove_member(core, group, member)
    rebalance_or_complete(core, group, now)


def on_pending_timer(core: Core, group: Group, member_id: str, now: Now) -> None:
    if now.ticks_ms < group.pending_members.get(member_id, now.ticks_ms + 1):
        return
    del group.pending_members[member_id]
    if group.state is State.PREPARING:
        complete_if_all_joined(core, group, now)


def forget_pending(core: Core, group: Group, member_id: str) -> None:
    if group.pending_members.pop(member_id, None) is not None:
        core.effects.cancel_timer(TimerKey(TimerKind.PENDING, group.group_id, member_id))


def remove_member(
    core: Core, group: Group, member: Member, code: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID
) -> None:
    """Removes a member; if it waits for an answer, the error tells it to join as a new member."""
    core.cancel_session_timer(group, member)
    evict_parked(core, group, member.member_id, code)
    group.remove(member.member_id)
    if not group.pending_syncs:
        core.cancel_sync_timer(group)


def evict_parked(core: Core, group: Group, member_id: str, code: ErrorCode) -> None:
    """Answers a member's parked requests with an error."""
    if join := group.joining.pop(member_id, None):
        known_id = "" if code is ErrorCode.UNKNOWN_MEMBER_ID else member_id
        core.effects.reply(join.token, join_error(code, known_id, join.version))
    if sync := group.syncing.pop(member_id, None):
        core.effects.reply(sync.token, sync_error(code))


def drop_assignments(core: Core, group: Group, code: ErrorCode, now: Now) -> None:
    """Clears the assignments: this generation will not get one."""
    for member in group.members.values():
        member.assignment = b""
    for member_id in list(group.syncing):
        evict_parked(core, group, member_id, code)
        core.extend_session(group, group.members[member_id], now)


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
