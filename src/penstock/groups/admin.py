"""DescribeGroups 0-6, ListGroups 0-5 and DeleteGroups 0-2: the operator's view of groups.

ListGroups is for groups of all types, DescribeGroups is for classic groups only. `share_admin`
deletes share groups. A group that does not exist is described as "Dead" up to version 5; from
version 6 on it is an error. The members' subscriptions and assignments are shown only while the
group is Stable: at other times they mean nothing. A group can be deleted while it has no members;
its offsets are deleted with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.coordination.effects import Now, Token
from penstock.groups import share_admin
from penstock.groups.consumer.group import ConsumerGroup, ConsumerState
from penstock.groups.error_responses import offsets_append_error
from penstock.groups.group import CONSUMER_PROTOCOL_TYPE, Group, Member, State
from penstock.groups.offsets import Buried, all_offsets, bury, is_dead, tombstones
from penstock.groups.shard_state import AnyGroup, ShardState
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    ListGroupsResponse,
)

GROUP_TYPE = "classic"
CONSUMER_GROUP_TYPE = "consumer"
_GROUP_NOT_FOUND_SINCE = 6


def describe_group(shard: ShardState, group_id: str, version: int) -> DescribeGroupsResponse.Group:
    group = shard.classic(group_id)
    if group is None or group.state is State.DEAD:
        described = DescribeGroupsResponse.Group(group_id=group_id, group_state=State.DEAD.value)
        if version >= _GROUP_NOT_FOUND_SINCE:
            described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            described.error_message = f"there is no classic group {group_id} on this coordinator"
        return described
    is_stable = group.state is State.STABLE
    return DescribeGroupsResponse.Group(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=[_describe_member(group, member) for member in group.members.values()],
    )


def _describe_member(group: Group, member: Member) -> DescribeGroupsResponse.Member:
    described = DescribeGroupsResponse.Member(
        member.member_id, member.instance_id, member.client_id, member.client_host
    )
    if group.state is State.STABLE:
        described.member_metadata = member.protocols.get(group.protocol_name or "", b"")
        described.member_assignment = member.assignment
    return described


def list_groups(
    shard: ShardState,
    states_filter: Iterable[str],
    types_filter: Iterable[str],
    among: Iterable[str] | None = None,
) -> list[ListGroupsResponse.Group]:
    """Returns all groups, or those with one of the given states and types, ignoring case.

    With `among`, only groups with these ids are considered.
    """
    states = {state.lower() for state in states_filter}
    types = {kind.lower() for kind in types_filter}
    ids = (*shard.groups, *shard.share_groups) if among is None else among
    listed = []
    for group_id in ids:
        if (group := shard.groups.get(group_id)) is not None:
            listed.append(_listed(group))
        elif (share_group := shard.share_groups.get(group_id)) is not None:
            listed.append(share_admin.listed(share_group))
    return [
        group
        for group in listed
        if (not types or group.group_type in types)
        and (not states or group.group_state.lower() in states)
    ]


def _listed(group: AnyGroup) -> ListGroupsResponse.Group:
    if isinstance(group, ConsumerGroup):
        return ListGroupsResponse.Group(
            group.group_id, CONSUMER_PROTOCOL_TYPE, group.state.value, CONSUMER_GROUP_TYPE
        )
    return ListGroupsResponse.Group(
        group.group_id, group.protocol_type or "", group.state.value, GROUP_TYPE
    )


def delete_groups(shard: ShardState, request: DeleteGroupsRequest, token: Token, now: Now) -> None:
    codes: dict[str, ErrorCode] = {}
    doomed: list[AnyGroup] = []
    for group_id in dict.fromkeys(request.groups_names):
        group = shard.groups.get(group_id)
        if group is None or is_dead(group):
            codes[group_id] = ErrorCode.GROUP_ID_NOT_FOUND
        elif isinstance(group, ConsumerGroup) and group.is_writing:
            # A member may be joining.
            codes[group_id] = ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif group.state not in (State.EMPTY, ConsumerState.EMPTY):
            codes[group_id] = ErrorCode.NON_EMPTY_GROUP
        else:
            codes[group_id] = ErrorCode.NONE
            doomed.append(group)
    outcome = GroupsDeleted(Buried(tuple(group.group_id for group in doomed)), codes, token)
    if not doomed:
        shard.effects.reply(token, outcome.response(ErrorCode.NONE))
        return
    records = []
    for group in doomed:
        records += tombstones(group, all_offsets(shard, group))
    bury(shard, doomed, records, outcome, now)


@dataclass(frozen=True, slots=True)
class GroupsDeleted:
    buried: Buried
    codes: dict[str, ErrorCode]
    token: Token

    def committed(self, shard: ShardState, now: Now) -> None:
        self.buried.committed(shard, now)
        shard.effects.reply(self.token, self.response(ErrorCode.NONE))

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        self.buried.failed(shard, error, now)
        shard.effects.reply(self.token, self.response(offsets_append_error(error)))

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None:
        shard.effects.reply(self.token, self.response(code))

    def response(self, code: ErrorCode) -> DeleteGroupsResponse:
        """`code` is the result of the deletion, for the groups that could be deleted at all."""
        return DeleteGroupsResponse(
            results=[
                DeleteGroupsResponse.Group(group_id, code if own is ErrorCode.NONE else own)
                for group_id, own in self.codes.items()
            ]
        )
