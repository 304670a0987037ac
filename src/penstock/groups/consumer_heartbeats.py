"""ConsumerGroupHeartbeat 0-1: the one request by which members join, stay, change and leave.

A member sends its epoch: 0 to join, -1 to leave, -2 to leave for a while (static members only),
otherwise the epoch of the last answer. Fields that are null have not changed. The answer has the
member's epoch, and its assignment if that has changed or the member seems not to know it.

A group or member that is not known is answered with UNKNOWN_MEMBER_ID, which makes the client join
again. GROUP_ID_NOT_FOUND would end it, and is only for classic groups that cannot be upgraded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.coordination.effects import Now, Token
from penstock.groups import consumer_timers
from penstock.groups.consumer.group import Asked, ConsumerGroup, Turn
from penstock.groups.consumer.reconciliation import Owned
from penstock.groups.consumer.records import (
    LEFT_FOR_A_WHILE,
    Current,
    CurrentEntry,
    MemberMetadata,
    MemberState,
    TopicIdPartition,
    by_topic,
)
from penstock.groups.consumer.regexes import require_valid
from penstock.groups.consumer_members import (
    put_member,
    reconcile_member,
    require_room,
    require_storable,
)
from penstock.groups.consumer_migration import upgraded
from penstock.groups.consumer_regexes import resolve_if_due
from penstock.groups.consumer_targets import assign, remove_members
from penstock.groups.consumer_turns import is_convertible, submit
from penstock.groups.effects import RequestInfo
from penstock.groups.error_responses import consumer_heartbeat_error
from penstock.groups.group import State
from penstock.groups.limits import fits_a_string
from penstock.groups.shard_state import ShardState
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

_JOIN = 0
_LEAVE = -1
_OWN_ID_SINCE = 1
_UNCHANGED = -1

MayDescribe = Callable[[str], bool]


def heartbeat(
    shard: ShardState,
    request: ConsumerGroupHeartbeatRequest,
    info: RequestInfo,
    may_describe: MayDescribe,
    token: Token,
    now: Now,
) -> None:
    try:
        _validate(shard, request, info)
        group = _require_group(shard, request, now)
    except KafkaError as error:
        shard.effects.reply(token, consumer_heartbeat_error(error))
        return
    call = _Call(shard, request, info, may_describe)
    submit(shard, group, Asked(call.decide, consumer_heartbeat_error, token), now)


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _validate(shard: ShardState, request: ConsumerGroupHeartbeatRequest, info: RequestInfo) -> None:
    epoch = request.member_epoch
    if not request.group_id or not fits_a_string(request.group_id):
        raise _invalid("The group id is empty or too long: give one of up to 32767 bytes.")
    needs_id = info.version >= _OWN_ID_SINCE or epoch > 0 or epoch == _LEAVE
    if needs_id and not request.member_id:
        raise _invalid("The member id is empty: send the id that the client has chosen.")
    if request.instance_id == "" or request.rack_id == "":
        raise _invalid("The instance id or the rack id is empty: send null if there is none.")
    texts = request.member_id, request.instance_id, request.rack_id, info.client_id
    if not all(map(fits_a_string, (*texts, request.subscribed_topic_regex))):
        raise _invalid("An id or the regular expression is longer than 32767 bytes.")
    if epoch < LEFT_FOR_A_WHILE:
        raise _invalid(f"The member epoch is {epoch}: send -2 or more.")
    if epoch == _JOIN:
        _validate_join(request)
    offered = shard.consumers.config.assignors
    if request.server_assignor is not None and request.server_assignor not in offered:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"The broker has no assignor {request.server_assignor}: use one of "
            f"{', '.join(offered)}.",
        )


def _validate_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == _UNCHANGED:
        raise _invalid("A member that joins must send its rebalance timeout.")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid("A member that joins owns no partitions: send an empty list of them.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise _invalid("A member that joins must send its subscription.")


def _require_group(
    shard: ShardState, request: ConsumerGroupHeartbeatRequest, now: Now
) -> ConsumerGroup:
    """Returns the group. If the member joins, it may be a new one, or a classic one that is being
    upgraded."""
    group = shard.groups.get(request.group_id)
    if isinstance(group, ConsumerGroup):
        return group
    if group is not None and group.state is State.DEAD:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if request.member_epoch != _JOIN:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    if group is not None and group.members:
        return upgraded(shard, group, now)
    if group is not None and not is_convertible(group):
        # Its last rebalance is about to end without members.
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return ConsumerGroup(request.group_id)


def _owned(request: ConsumerGroupHeartbeatRequest) -> Owned:
    if request.topic_partitions is None:
        return None
    return frozenset(
        TopicIdPartition(topic.topic_id, index)
        for topic in request.topic_partitions
        for index in topic.partitions
    )


def _require_usable(group: ConsumerGroup, regex: str | None) -> None:
    """Raises if the topics that match the expression cannot be found."""
    if regex is None:
        return
    if regex in group.unusable_regexes:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            "The regular expression takes too long to match, or matches too many topics: use a "
            "simpler or narrower one.",
        )
    if regex not in group.regex_users:
        require_valid(regex)


@dataclass(frozen=True, slots=True)
class _Call:
    """One heartbeat that waits for its turn."""

    shard: ShardState
    request: ConsumerGroupHeartbeatRequest
    info: RequestInfo
    may_describe: MayDescribe

    def decide(self, turn: Turn) -> ConsumerGroupHeartbeatResponse:
        request = self.request
        if request.member_epoch < _JOIN:
            return self._leave(turn)
        member_id = request.member_id or self.shard.new_member_id("").lstrip("-")
        if request.member_epoch == _JOIN:
            replaced = self._require_place(turn.group, member_id)
        else:
            replaced = None
            self._require_epoch(turn.group, member_id)
        return self._serve(turn, member_id, replaced)

    # Who sends this

    def _require_member(self, group: ConsumerGroup) -> str:
        member_id, instance_id = self.request.member_id, self.request.instance_id
        if instance_id is not None:
            known_id = group.static_members.get(instance_id)
            if known_id is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if known_id != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in group.members:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member_id

    def _require_epoch(self, group: ConsumerGroup, member_id: str) -> None:
        current = group.current(self._require_member(group))
        epoch = self.request.member_epoch
        if epoch == current.epoch:
            return
        owned = _owned(self.request)
        # If the member did not get the last answer, it has done nothing that contradicts it.
        # A member that left for a while has epoch -2, and can only join again.
        missed = current.previous_epoch == epoch < current.epoch and owned is not None
        if not missed or any(each not in current.assigned for each in owned or ()):
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"The member epoch is {epoch}, the coordinator has {current.epoch}: give up all "
                "partitions and join again.",
            )

    def _require_place(self, group: ConsumerGroup, member_id: str) -> str | None:
        """Checks whether a member may join. Returns the id of the member that it replaces."""
        request = self.request
        held_by = None
        if request.instance_id is not None:
            held_by = group.static_members.get(request.instance_id)
        replaced = None if held_by == member_id else held_by
        if replaced is not None and self._is_held(group, replaced):
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"The instance id {request.instance_id} is in use by member {replaced}: stop "
                "that one first.",
            )
        require_room(self.shard, group, member_id, replaced)
        return replaced

    def _is_held(self, group: ConsumerGroup, member_id: str) -> bool:
        """Returns whether a static member must leave before another one may replace it. A member
        of the classic protocol cannot, and is replaced as in a classic group. One without a present
        assignment never got the answer to its join, or was being replaced."""
        is_classic = group.members[member_id].classic is not None
        current = group.stored.currents.get(member_id)
        return not is_classic and current is not None and current.epoch != LEFT_FOR_A_WHILE

    # Leaving

    def _leave(self, turn: Turn) -> ConsumerGroupHeartbeatResponse:
        group = turn.group
        member_id = self._require_member(group)
        if self.request.member_epoch == LEFT_FOR_A_WHILE:
            # Kafka wants the instance id in the request, which franz-go 1.22 leaves out.
            if group.members[member_id].instance_id is None:
                raise _invalid("Only a static member can leave temporarily: send -1.")
            current = group.current(member_id)
            # What the member had to give up, it has given up.
            kept = dict.fromkeys(current.assigned, 0)
            away = Current(LEFT_FOR_A_WHILE, current.epoch, MemberState.STABLE, kept)
            turn.write(CurrentEntry(group.group_id, member_id, away))
            consumer_timers.match_revocation(self.shard, group, member_id, turn.now)
        else:
            remove_members(self.shard, turn, [member_id])
        return ConsumerGroupHeartbeatResponse(
            member_id=member_id, member_epoch=self.request.member_epoch
        )

    # Joining and staying

    def _serve(
        self, turn: Turn, member_id: str, replaced: str | None
    ) -> ConsumerGroupHeartbeatResponse:
        shard, group = self.shard, turn.group
        before = group.members.get(replaced or member_id)
        metadata = self._updated(before)
        if metadata != before:
            require_storable(shard, group, member_id, metadata)
        _require_usable(group, metadata.regex)
        owned = _owned(self.request)
        if group.current(member_id).state is MemberState.UNKNOWN and (owned is None or owned):
            raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH)
        has_changed = put_member(shard, turn, member_id, metadata, replaced)
        resolve_if_due(shard, group, self.may_describe, turn.now)
        assign(shard, turn)
        current, after = reconcile_member(shard, turn, member_id, owned, has_changed=has_changed)
        consumer_timers.extend_session(shard, group, member_id, turn.now)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=shard.consumers.settings_of(group.group_id).heartbeat_interval_ms,
        )
        if self._wants_assignment(current) or after.assigned.keys() != current.assigned.keys():
            response.assignment = ConsumerGroupHeartbeatResponse.Assignment(
                [
                    ConsumerGroupHeartbeatResponse.TopicPartitions(topic_id, indexes)
                    for topic_id, indexes in by_topic(after.assigned).items()
                ]
            )
        return response

    def _updated(self, before: MemberMetadata | None) -> MemberMetadata:
        """Returns the metadata of the member after this request."""
        request = self.request
        metadata = replace(
            before or MemberMetadata(),
            client_id=self.info.client_id,
            client_host=self.info.client_host,
            # A member that spoke the classic protocol so far does not any more.
            classic=None,
        )
        if request.instance_id is not None:
            metadata = replace(metadata, instance_id=request.instance_id)
        if request.rack_id is not None:
            metadata = replace(metadata, rack_id=request.rack_id)
        if request.rebalance_timeout_ms != _UNCHANGED:
            metadata = replace(metadata, rebalance_timeout_ms=request.rebalance_timeout_ms)
        if request.subscribed_topic_names is not None:
            metadata = replace(metadata, names=frozenset(request.subscribed_topic_names))
        if request.subscribed_topic_regex is not None:
            # The empty expression stands for none.
            metadata = replace(metadata, regex=request.subscribed_topic_regex or None)
        if request.server_assignor is not None:
            metadata = replace(metadata, assignor=request.server_assignor)
        return metadata

    def _wants_assignment(self, before: Current) -> bool:
        """Returns whether the member joins, tells everything about itself, or missed an answer."""
        request = self.request
        subscribes = (request.subscribed_topic_names, request.subscribed_topic_regex)
        is_full = (
            request.rebalance_timeout_ms != _UNCHANGED
            and request.topic_partitions is not None
            and any(each is not None for each in subscribes)
        )
        return is_full or request.member_epoch in (_JOIN, before.previous_epoch)
