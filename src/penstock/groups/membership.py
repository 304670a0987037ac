"""SyncGroup, Heartbeat and LeaveGroup: what members do between joins.

SyncGroup 0-5: every member asks for its assignment, and the leader sends all assignments. They are
answered once the assignment is in the log: the next coordinator must know the same one. Version 5
names the protocol; a member that expects another one gets an error.

Heartbeat 0-4: keeps the session alive; the answer informs the member of a rebalance.

LeaveGroup 0-5: removes one member, from version 3 on any number. A static member can be named by
its instance id alone, which is how an operator removes it.

In a consumer group of the new protocol, `classic_members` and `consumer_admin` answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.coordination.effects import Now, Token
from penstock.groups import classic_members, consumer_admin
from penstock.groups.effects import RequestInfo
from penstock.groups.error_responses import group_append_error, leave_error, sync_error
from penstock.groups.formats import group_record
from penstock.groups.group import UNKNOWN_MEMBER, Group, Parked, State
from penstock.groups.rebalance import (
    begin,
    drop_assignments,
    evict_parked,
    forget_pending,
    rebalance_or_complete,
    remove_member,
)
from penstock.groups.shard_state import ShardState
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

_PROTOCOL_NAMED_SINCE = 5
_BATCHED_LEAVE_SINCE = 3


def _require_group(shard: ShardState, group_id: str) -> Group:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    group = shard.classic(group_id)
    if group is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    if group.state is State.DEAD:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return group


# SyncGroup


def sync_group(
    shard: ShardState, request: SyncGroupRequest, info: RequestInfo, token: Token, now: Now
) -> None:
    try:
        _require_named_protocol(request, info.version)
        consumer_group = shard.consumer(request.group_id)
        if consumer_group is not None:
            classic_members.sync(shard, consumer_group, request, token, now)
        else:
            _sync(shard, request, Parked(token, info.version), now)
    except KafkaError as error:
        shard.effects.reply(token, sync_error(error.code))


def _require_named_protocol(request: SyncGroupRequest, version: int) -> None:
    if version >= _PROTOCOL_NAMED_SINCE and None in (request.protocol_type, request.protocol_name):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _sync(shard: ShardState, request: SyncGroupRequest, parked: Parked, now: Now) -> None:
    group = _require_group(shard, request.group_id)
    member = group.require_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    if request.protocol_type not in (None, group.protocol_type):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.state is State.PREPARING:
        # Also if it names another protocol: it may have joined before the group was downgraded.
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    if group.protocol_name is not None and request.protocol_name not in (None, group.protocol_name):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    group.pending_syncs.pop(member.member_id, None)
    if not group.pending_syncs:
        shard.cancel_sync_timer(group)
    if group.state is State.STABLE:
        shard.extend_session(group, member, now)
        shard.effects.reply(parked.token, _sync_response(group, member.assignment))
        return
    evict_parked(shard, group, member.member_id, ErrorCode.REBALANCE_IN_PROGRESS)
    group.syncing[member.member_id] = parked
    # If the leader syncs again, its first assignment stays: that is the one being appended.
    if group.leader_id == member.member_id and not group.assignment_in_flight:
        _store_assignment(shard, group, request, now)


def _store_assignment(shard: ShardState, group: Group, request: SyncGroupRequest, now: Now) -> None:
    given = {entry.member_id: entry.assignment for entry in request.assignments}
    assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
    group.assignment_in_flight = True
    shard.appends.start(
        [group_record(group.group_id, group.to_value(assignments))],
        AssignmentStored(group.group_id, group.generation, assignments),
        now,
    )


@dataclass(frozen=True, slots=True)
class AssignmentStored:
    """The assignment is in the log. Members receive it, unless the group has moved on."""

    group_id: str
    generation: int
    assignments: Mapping[str, bytes]

    def committed(self, shard: ShardState, now: Now) -> None:
        group = self._waiting_group(shard)
        if group is None:
            return
        group.transition(State.STABLE, now.wall_ms)
        group.assignment_in_flight = False
        for member in group.members.values():
            member.assignment = self.assignments.get(member.member_id, b"")
        parked_syncs, group.syncing = group.syncing, {}
        for member_id, parked in parked_syncs.items():
            member = group.members[member_id]
            shard.effects.reply(parked.token, _sync_response(group, member.assignment))
            shard.extend_session(group, member, now)

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        group = self._waiting_group(shard)
        if group is None:
            return
        group.assignment_in_flight = False
        drop_assignments(shard, group, group_append_error(error), now)
        begin(shard, group, now)

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None:
        group = self._waiting_group(shard)
        if group is not None:
            for member_id in group.members:
                evict_parked(shard, group, member_id, code)

    def _waiting_group(self, shard: ShardState) -> Group | None:
        group = shard.classic(self.group_id)
        if group is None or group.generation != self.generation:
            return None
        return group if group.state is State.COMPLETING else None


def _sync_response(group: Group, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=assignment,
    )


# Heartbeat


def heartbeat(
    shard: ShardState, request: HeartbeatRequest, info: RequestInfo, token: Token, now: Now
) -> None:
    consumer_group = shard.consumer(request.group_id)
    if consumer_group is not None:
        classic_members.heartbeat(shard, consumer_group, request, token, now)
        return
    try:
        code = _heartbeat(shard, request, now)
    except KafkaError as error:
        code = error.code
    shard.effects.reply(token, HeartbeatResponse(error_code=code))


def _heartbeat(shard: ShardState, request: HeartbeatRequest, now: Now) -> ErrorCode:
    group = _require_group(shard, request.group_id)
    member = group.require_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    shard.extend_session(group, member, now)
    if group.state is State.PREPARING:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


# LeaveGroup


def leave_group(
    shard: ShardState, request: LeaveGroupRequest, info: RequestInfo, token: Token, now: Now
) -> None:
    consumer_group = shard.consumer(request.group_id)
    if consumer_group is not None:
        consumer_admin.leave_group(shard, consumer_group, request, info.version, token, now)
        return
    is_batched = info.version >= _BATCHED_LEAVE_SINCE
    leaving = request.members if is_batched else [LeaveGroupRequest.Member(request.member_id)]
    try:
        group = _require_group(shard, request.group_id)
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_MEMBER_ID:
            shard.effects.reply(token, leave_error(error.code))
            return
        results = [_left(one, ErrorCode.UNKNOWN_MEMBER_ID) for one in leaving]
        shard.effects.reply(token, _leave_response(results, is_batched))
        return
    members_before = len(group.members)
    results = [_left(one, _leave(shard, group, one)) for one in leaving]
    shard.effects.reply(token, _leave_response(results, is_batched))
    if len(group.members) < members_before or group.state is State.PREPARING:
        rebalance_or_complete(shard, group, now)


def _leave(shard: ShardState, group: Group, leaving: LeaveGroupRequest.Member) -> ErrorCode:
    member_id = leaving.member_id
    if member_id == UNKNOWN_MEMBER:
        member_id = group.static_members.get(leaving.group_instance_id or "", UNKNOWN_MEMBER)
    elif member_id in group.pending_members:
        forget_pending(shard, group, member_id)
        return ErrorCode.NONE
    try:
        member = group.require_member(member_id, leaving.group_instance_id)
    except KafkaError as error:
        return error.code
    remove_member(shard, group, member)
    return ErrorCode.NONE


def _left(leaving: LeaveGroupRequest.Member, code: ErrorCode) -> LeaveGroupResponse.Member:
    return LeaveGroupResponse.Member(leaving.member_id, leaving.group_instance_id, code)


def _leave_response(
    results: list[LeaveGroupResponse.Member], is_batched: bool
) -> LeaveGroupResponse:
    if is_batched:
        return LeaveGroupResponse(members=results)
    return LeaveGroupResponse(error_code=results[0].error_code)
