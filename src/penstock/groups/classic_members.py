"""Members that speak the classic protocol in a consumer group of the new one.

Such a group was a classic one before, or is on its way back (`consumer_migration`). The coordinator
assigns the partitions, so there is no leader, and nobody waits for others:

JoinGroup is answered at once. The generation is the member's epoch. The subscription tells what the
member still owns, as a heartbeat of the new protocol does.

SyncGroup returns what the member owns now. If it must give up partitions, they are missing. Then it
joins again, and tells that it no longer owns them.

Heartbeat returns REBALANCE_IN_PROGRESS when the member must join again: there is a new target
assignment, it must give up partitions, or those that it waits for are free.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.coordination.effects import Now, Token
from penstock.groups import consumer_timers
from penstock.groups.config import MigrationPolicy
from penstock.groups.consumer.embedded_protocol import (
    Subscription,
    read_subscription,
    write_assignment,
)
from penstock.groups.consumer.group import Asked, ConsumerGroup, Turn
from penstock.groups.consumer.records import ClassicProtocol, MemberMetadata, MemberState
from penstock.groups.consumer_members import (
    is_free,
    put_member,
    reconcile_member,
    require_room,
    require_storable,
    subscribed_target,
)
from penstock.groups.consumer_migration import downgrade_is_due
from penstock.groups.consumer_targets import assign, erase_strangers, raise_epoch
from penstock.groups.consumer_turns import submit
from penstock.groups.error_responses import join_error, sync_error
from penstock.groups.group import CONSUMER_PROTOCOL_TYPE, UNKNOWN_MEMBER
from penstock.groups.joiner import MEMBER_ID_ROUND_TRIP_SINCE, Joiner
from penstock.groups.shard_state import ShardState
from penstock.wire.errors import ErrorCode, KafkaError, ProtocolError
from penstock.wire.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

# JoinGroup


def join(shard: ShardState, group: ConsumerGroup, joiner: Joiner, now: Now) -> None:
    token, version = joiner.parked

    def refuse(error: KafkaError) -> JoinGroupResponse:
        is_full = error.code is ErrorCode.GROUP_MAX_SIZE_REACHED
        return join_error(error.code, UNKNOWN_MEMBER if is_full else joiner.member_id, version)

    submit(shard, group, Asked(_Join(shard, joiner).decide, refuse, token), now)


@dataclass(frozen=True, slots=True)
class _Join:
    shard: ShardState
    joiner: Joiner

    def decide(self, turn: Turn) -> JoinGroupResponse:
        shard, group, joiner = self.shard, turn.group, self.joiner
        if not group.members:
            # All have left meanwhile. When the client joins again, the group becomes classic.
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        replaced = self._replaced(group)
        require_room(shard, group, joiner.member_id, replaced)
        self._require_protocols(group, replaced or joiner.member_id)
        subscription = self._subscription()
        version = joiner.parked.version
        member_id = joiner.member_id
        if member_id == UNKNOWN_MEMBER:
            member_id = shard.new_member_id(joiner.instance_id or joiner.client_id)
            if joiner.instance_id is None and version >= MEMBER_ID_ROUND_TRIP_SINCE:
                return join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id, version)
        if group.current(member_id).state is MemberState.UNKNOWN and subscription.owned:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        metadata = self._metadata(group.members.get(replaced or member_id), subscription)
        require_storable(shard, group, member_id, metadata)
        has_changed = put_member(shard, turn, member_id, metadata, replaced)
        if downgrade_is_due(shard, turn):
            return join_error(ErrorCode.REBALANCE_IN_PROGRESS, member_id, version)
        assign(shard, turn)
        _, after = reconcile_member(
            shard, turn, member_id, subscription.owned, has_changed=has_changed
        )
        consumer_timers.extend_session(shard, group, member_id, turn.now)
        consumer_timers.expect_sync(shard, group, member_id, turn.now)
        return JoinGroupResponse(
            generation_id=after.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=next(iter(joiner.protocols)),
            member_id=member_id,
        )

    def _replaced(self, group: ConsumerGroup) -> str | None:
        """Returns the id under which a static member was known so far, if it has a new one now."""
        joiner = self.joiner
        if joiner.instance_id is None:
            return None
        known_id = group.static_members.get(joiner.instance_id)
        if joiner.member_id == UNKNOWN_MEMBER:
            return known_id
        if known_id is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if known_id != joiner.member_id:
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        return None

    def _require_protocols(self, group: ConsumerGroup, own_id: str) -> None:
        """Raises unless the classic members could go on as a classic group with this one."""
        joiner = self.joiner
        policy = self.shard.consumers.config.migration_policy
        before = group.members.get(own_id)
        known = () if before is None or before.classic is None else before.classic.protocols
        own_names = {name for name, _ in known}
        others = group.classic_members - bool(known)
        is_common = any(
            group.classic_protocols[name] - (name in own_names) == others
            for name in joiner.protocols
        )
        if (
            policy is MigrationPolicy.DISABLED
            or joiner.protocol_type != CONSUMER_PROTOCOL_TYPE
            or not is_common
        ):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _subscription(self) -> Subscription:
        metadata = next(iter(self.joiner.protocols.values()))
        try:
            return read_subscription(metadata, self.shard.consumers.topics)
        except ProtocolError as error:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from error

    def _metadata(
        self, before: MemberMetadata | None, subscription: Subscription
    ) -> MemberMetadata:
        joiner = self.joiner
        instance_id = joiner.instance_id
        if instance_id is None and before is not None:
            instance_id = before.instance_id
        return MemberMetadata(
            joiner.client_id,
            joiner.client_host,
            instance_id,
            subscription.rack_id,
            subscription.names,
            rebalance_timeout_ms=joiner.rebalance_timeout_ms,
            classic=ClassicProtocol(joiner.session_timeout_ms, tuple(joiner.protocols.items())),
        )


# SyncGroup and Heartbeat


def _require_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> ClassicProtocol:
    """Returns how the member joined, or raises the error to answer it with."""
    if instance_id is not None:
        known_id = group.static_members.get(instance_id)
        if known_id is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if known_id != member_id:
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
    metadata = group.members.get(member_id)
    if metadata is None or metadata.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    if generation != group.current(member_id).epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    return metadata.classic


def sync(
    shard: ShardState, group: ConsumerGroup, request: SyncGroupRequest, token: Token, now: Now
) -> None:
    def decide(turn: Turn) -> SyncGroupResponse:
        return _sync(shard, turn, request)

    submit(shard, group, Asked(decide, lambda error: sync_error(error.code), token), now)


def _sync(shard: ShardState, turn: Turn, request: SyncGroupRequest) -> SyncGroupResponse:
    group, member_id = turn.group, request.member_id
    classic = _require_member(group, member_id, request.group_instance_id, request.generation_id)
    protocol, subscription = classic.protocols[0]
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    name = request.protocol_name
    if name is not None and name not in dict(classic.protocols):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    consumer_timers.cancel_sync(shard, group, member_id)
    consumer_timers.extend_session(shard, group, member_id, turn.now)
    current = group.current(member_id)
    # A member that gives up partitions must learn which, before it joins again.
    is_behind = current.epoch < group.target_epoch and current.state is not MemberState.UNREVOKED
    # It joined the classic group, which chose another one of its protocols.
    joined_before = name not in (None, protocol)
    if is_behind or joined_before:
        consumer_timers.expect_rejoin(shard, group, member_id, turn.now)
        return sync_error(ErrorCode.REBALANCE_IN_PROGRESS)
    return SyncGroupResponse(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=protocol,
        assignment=write_assignment(current.assigned, subscription, shard.consumers.topics),
    )


def heartbeat(
    shard: ShardState, group: ConsumerGroup, request: HeartbeatRequest, token: Token, now: Now
) -> None:
    def decide(turn: Turn) -> HeartbeatResponse:
        return _heartbeat(shard, turn, request)

    def refuse(error: KafkaError) -> HeartbeatResponse:
        return HeartbeatResponse(error_code=error.code)

    submit(shard, group, Asked(decide, refuse, token), now)


def _heartbeat(shard: ShardState, turn: Turn, request: HeartbeatRequest) -> HeartbeatResponse:
    group, member_id = turn.group, request.member_id
    _require_member(group, member_id, request.group_instance_id, request.generation_id)
    # There may be no member of the new protocol whose heartbeats do this.
    raise_epoch(shard, turn, is_changed=erase_strangers(turn))
    assign(shard, turn)
    consumer_timers.extend_session(shard, group, member_id, turn.now)
    if not _must_rejoin(shard, group, member_id):
        return HeartbeatResponse()
    consumer_timers.expect_rejoin(shard, group, member_id, turn.now)
    return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)


def _must_rejoin(shard: ShardState, group: ConsumerGroup, member_id: str) -> bool:
    current = group.current(member_id)
    if current.epoch < group.target_epoch or current.state is MemberState.UNREVOKED:
        return True
    if current.state is not MemberState.UNRELEASED:
        return False
    _, target = subscribed_target(shard, group, member_id)
    return all(is_free(group, member_id, each) for each in target)
