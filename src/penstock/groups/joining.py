"""JoinGroup 0-9: how a client becomes a member and triggers a new generation.

Version 4 added the round trip for the member id: the answer to a first join only contains an id,
and the join counts when the client sends it again with that id. A client whose connection broke can
then try again as the same member, and leaves no dead member behind.

Version 5 added static members, identified by their instance id: after a restart, a static member
continues its membership under a new member id without a rebalance, and a client that still uses the
old member id is fenced. If such a member is the leader, the answer from version 9 on says so, and
tells it to skip the assignment. In older versions the answer names the old leader's member id, so
that the member does not act as leader.

A group with members of the new protocol answers in `classic_members`.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.coordination.effects import Now, Token
from penstock.groups import classic_members
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer_admin import become_classic
from penstock.groups.effects import RequestInfo, TimerKey, TimerKind
from penstock.groups.error_responses import group_append_error, join_error
from penstock.groups.formats import group_record
from penstock.groups.group import UNKNOWN_MEMBER, Group, Member, State
from penstock.groups.joiner import MEMBER_ID_ROUND_TRIP_SINCE, Joiner
from penstock.groups.limits import MEMBER_ID_SUFFIX_BYTES, fits_a_string
from penstock.groups.offsets import Forgotten
from penstock.groups.rebalance import (
    complete_if_all_joined,
    evict_parked,
    forget_pending,
    join_response,
    rebalance_or_complete,
)
from penstock.groups.shard_state import ShardState
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import JoinGroupRequest

_SKIP_ASSIGNMENT_SINCE = 9


def join_group(
    shard: ShardState, request: JoinGroupRequest, info: RequestInfo, token: Token, now: Now
) -> None:
    joiner = Joiner.of(request, info, token)
    try:
        _join(shard, joiner, now)
    except KafkaError as error:
        known_id = joiner.member_id
        if error.code is ErrorCode.GROUP_MAX_SIZE_REACHED:
            known_id = UNKNOWN_MEMBER
        shard.effects.reply(token, join_error(error.code, known_id, info.version))


def _join(shard: ShardState, joiner: Joiner, now: Now) -> None:
    config = shard.config
    if not joiner.group_id or not fits_a_string(joiner.group_id):
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    if not _can_be_stored(shard, joiner):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if not (
        config.session_timeout_min_ms <= joiner.session_timeout_ms <= config.session_timeout_max_ms
    ):
        raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
    known = shard.groups.get(joiner.group_id)
    if isinstance(known, ConsumerGroup) and (known.members or known.is_writing):
        classic_members.join(shard, known, joiner, now)
        return
    group = become_classic(shard, known, now) if isinstance(known, ConsumerGroup) else known
    if group is None:
        if joiner.member_id != UNKNOWN_MEMBER:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        group = Group(joiner.group_id, now.wall_ms)
    known_id = joiner.member_id or group.static_members.get(joiner.instance_id or "", "")
    if not _has_room(group, known_id, config.group_size_max):
        _turn_away(shard, group, joiner.member_id, now)
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
    if group.state is State.DEAD:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if not group.supports(joiner.protocol_type, joiner.protocols):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    shard.groups[group.group_id] = group
    if isinstance(known, ConsumerGroup):
        shard.appends.start_batches(known.tombstones(), Forgotten(), now)
    if joiner.member_id == UNKNOWN_MEMBER:
        _join_as_stranger(shard, group, joiner, now)
    elif joiner.member_id in group.pending_members and joiner.instance_id is None:
        forget_pending(shard, group, joiner.member_id)
        _add_member(shard, group, joiner, joiner.member_id, now)
    else:
        _join_again(shard, group, joiner, now)


def _can_be_stored(shard: ShardState, joiner: Joiner) -> bool:
    """Returns whether the group's record can hold this member.

    If it could not, the group could not be stored any more, and the other members would be stuck.
    """
    prefix = joiner.instance_id or joiner.client_id
    texts = joiner.instance_id, joiner.client_id, joiner.protocol_type, *joiner.protocols
    return (
        fits_a_string(prefix, MEMBER_ID_SUFFIX_BYTES)
        and all(map(fits_a_string, texts))
        and all(len(data) < shard.batch_bytes_max() for data in joiner.protocols.values())
    )


def _has_room(group: Group, member_id: str, size_max: int) -> bool:
    """Returns whether the group has space for the member.

    While preparing, only members that have joined count: so a lowered limit takes effect, and the
    last to join are refused.
    """
    match group.state:
        case State.PREPARING:
            return member_id in group.joining or len(group.joining) < size_max
        case State.COMPLETING | State.STABLE:
            return member_id in group.members or len(group.members) < size_max
        case _:
            return True


def _turn_away(shard: ShardState, group: Group, member_id: str, now: Now) -> None:
    """Removes a member that found the group full."""
    forget_pending(shard, group, member_id)
    if member := group.members.get(member_id):
        shard.cancel_session_timer(group, member)
        group.remove(member_id)
    if group.state is State.PREPARING:
        complete_if_all_joined(shard, group, now)


def _join_as_stranger(shard: ShardState, group: Group, joiner: Joiner, now: Now) -> None:
    if joiner.instance_id is not None:
        member_id = shard.new_member_id(joiner.instance_id)
        if joiner.instance_id not in group.static_members:
            _add_member(shard, group, joiner, member_id, now)
        else:
            _replace_static(shard, group, joiner, member_id, now)
        return
    member_id = shard.new_member_id(joiner.client_id)
    token, version = joiner.parked
    if version < MEMBER_ID_ROUND_TRIP_SINCE:
        _add_member(shard, group, joiner, member_id, now)
        return
    lapses_ms = now.ticks_ms + joiner.session_timeout_ms
    group.pending_members[member_id] = lapses_ms
    shard.effects.set_timer(TimerKey(TimerKind.PENDING, group.group_id, member_id), lapses_ms)
    shard.effects.reply(token, join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id, version))


def _add_member(shard: ShardState, group: Group, joiner: Joiner, member_id: str, now: Now) -> None:
    member = Member(
        member_id,
        joiner.instance_id,
        joiner.client_id,
        joiner.client_host,
        joiner.rebalance_timeout_ms,
        joiner.session_timeout_ms,
        joiner.protocols,
        is_new=True,
    )
    if not group.members:
        group.protocol_type = joiner.protocol_type
    if group.state is State.PREPARING and group.initial_delay_left_ms is not None:
        group.new_member_added = True
    group.add(member)
    shard.extend_session(group, member, now, shard.config.new_member_join_timeout_ms)
    _rejoin(shard, group, member, joiner, now)


def _rejoin(shard: ShardState, group: Group, member: Member, joiner: Joiner, now: Now) -> None:
    """Parks the join; it is answered with the next generation.

    A join or sync that the member parked earlier gets an error: its connection is most likely gone.
    """
    evict_parked(shard, group, member.member_id, ErrorCode.REBALANCE_IN_PROGRESS)
    group.joining[member.member_id] = joiner.parked
    rebalance_or_complete(shard, group, now)


def _join_again(shard: ShardState, group: Group, joiner: Joiner, now: Now) -> None:
    member = group.require_member(joiner.member_id, joiner.instance_id)
    unchanged = list(member.protocols.items()) == list(joiner.protocols.items())
    if group.state is State.COMPLETING and unchanged:
        # Most likely it did not receive the answer to its last join.
        shard.effects.reply(joiner.parked.token, join_response(group, member.member_id))
    elif group.state is State.STABLE and unchanged and group.leader_id != member.member_id:
        # Nothing changed; it may fetch its assignment. If the leader joins again, however, it has
        # seen a change that members do not know of, such as a topic with more partitions.
        shard.effects.reply(joiner.parked.token, join_response(group, member.member_id))
    else:
        _update(member, joiner)
        _rejoin(shard, group, member, joiner, now)


def _update(member: Member, joiner: Joiner) -> None:
    member.protocols = joiner.protocols
    member.rebalance_timeout_ms = joiner.rebalance_timeout_ms
    member.session_timeout_ms = joiner.session_timeout_ms
    member.client_id = joiner.client_id
    member.client_host = joiner.client_host


def _replace_static(
    shard: ShardState, group: Group, joiner: Joiner, member_id: str, now: Now
) -> None:
    """Lets a static member return under a new member id, and fences the client with the old one."""
    old_id, old_leader_id = group.static_members[joiner.instance_id or ""], group.leader_id
    member = group.members[old_id]
    before = _Before.of(member)
    evict_parked(shard, group, old_id, ErrorCode.FENCED_INSTANCE_ID)
    shard.cancel_session_timer(group, member)
    group.rename(member, member_id)
    _update(member, joiner)
    member.is_new = False
    shard.extend_session(group, member, now)
    if group.state is not State.STABLE or group.select_protocol() != group.protocol_name:
        _rejoin(shard, group, member, joiner, now)
        return
    assignments = {other.member_id: other.assignment for other in group.members.values()}
    shard.appends.start(
        [group_record(group.group_id, group.to_value(assignments))],
        ReplacementStored(
            group.group_id, group.generation, old_id, old_leader_id, member_id, before, joiner
        ),
        now,
    )


@dataclass(frozen=True, slots=True)
class _Before:
    protocols: dict[str, bytes]
    rebalance_timeout_ms: int
    session_timeout_ms: int

    @classmethod
    def of(cls, member: Member) -> _Before:
        return cls(member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)


@dataclass(frozen=True, slots=True)
class ReplacementStored:
    """The log has the new member id of a static member; the generation continues."""

    group_id: str
    generation: int
    old_id: str
    old_leader_id: str | None
    member_id: str
    before: _Before
    joiner: Joiner

    def committed(self, shard: ShardState, now: Now) -> None:
        token, version = self.joiner.parked
        group = shard.classic(self.group_id)
        if group is None or self.member_id not in group.members:
            self._answer_gone(shard, group)
        elif version >= _SKIP_ASSIGNMENT_SINCE:
            leads = group.leader_id == self.member_id
            shard.effects.reply(token, join_response(group, self.member_id, skip_assignment=leads))
        else:
            leader_id = self.old_leader_id
            shard.effects.reply(token, join_response(group, self.member_id, leader_id=leader_id))

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        token, version = self.joiner.parked
        group = shard.classic(self.group_id)
        member = None if group is None else group.members.get(self.member_id)
        if group is None or member is None:
            self._answer_gone(shard, group)
            return
        if group.generation == self.generation and self.member_id not in group.joining:
            shard.cancel_session_timer(group, member)
            group.rename(member, self.old_id)
            member.protocols = self.before.protocols
            member.rebalance_timeout_ms = self.before.rebalance_timeout_ms
            member.session_timeout_ms = self.before.session_timeout_ms
            shard.extend_session(group, member, now)
        shard.effects.reply(token, join_error(group_append_error(error), UNKNOWN_MEMBER, version))

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None:
        token, version = self.joiner.parked
        shard.effects.reply(token, join_error(code, UNKNOWN_MEMBER, version))

    def _answer_gone(self, shard: ShardState, group: Group | None) -> None:
        """Answers a member that was removed or replaced while its record was being appended. Once
        it is empty, the group may have been deleted, or changed to the new protocol."""
        token, version = self.joiner.parked
        replaced = group is not None and self.joiner.instance_id in group.static_members
        code = ErrorCode.FENCED_INSTANCE_ID if replaced else ErrorCode.UNKNOWN_MEMBER_ID
        shard.effects.reply(token, join_error(code, UNKNOWN_MEMBER, version))
