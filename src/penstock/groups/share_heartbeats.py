"""ShareGroupHeartbeat 1: the one request by which members of share groups join, stay and leave.

A member sends its epoch: 0 to join, -1 to leave, otherwise the epoch of the last answer. Fields
that are null have not changed. The answer has the member's epoch, and its assignment if that has
changed or the member may not know it.

A member takes over its target assignment at once: several members may read a partition, so none has
to give it up first. Only partitions whose share state is initialized are assigned. Until they are,
members are asked to send their next heartbeat soon.

A group or member that is not known is answered with UNKNOWN_MEMBER_ID, which makes the client join
again. GROUP_ID_NOT_FOUND would end it, and is for groups of another type only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from penstock.coordination.batches import record_bytes
from penstock.coordination.effects import Now, Token
from penstock.groups import share_timers
from penstock.groups.consumer.group import Session
from penstock.groups.consumer.records import by_topic
from penstock.groups.effects import RequestInfo, TimerKey
from penstock.groups.error_responses import share_heartbeat_error
from penstock.groups.limits import fits_a_string
from penstock.groups.shard_state import ShardState
from penstock.groups.share.group import Asked, ShareGroup, Turn
from penstock.groups.share.records import (
    CurrentEntry,
    MemberEntry,
    ShareCurrent,
    ShareMember,
    record_of,
)
from penstock.groups.share_states import provide
from penstock.groups.share_targets import assign, raise_epoch, remove_members
from penstock.groups.share_turns import submit
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

_JOIN: Final = 0
_LEAVE: Final = -1
_MEMBER_ID_CHARS_MAX: Final = 36
_SOON_MS: Final = 500
"""When to send the next heartbeat while partitions are being initialized."""


def heartbeat(
    shard: ShardState,
    request: ShareGroupHeartbeatRequest,
    info: RequestInfo,
    token: Token,
    now: Now,
) -> None:
    try:
        _validate(request, info)
        group = _require_group(shard, request)
    except KafkaError as error:
        shard.effects.reply(token, share_heartbeat_error(error))
        return
    call = _Heartbeat(shard, request, info)
    submit(shard, group, Asked(call.decide, share_heartbeat_error, token), now)


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _validate(request: ShareGroupHeartbeatRequest, info: RequestInfo) -> None:
    if not request.group_id or not fits_a_string(request.group_id):
        raise _invalid("The group id is empty or too long: give one of up to 32767 bytes.")
    if not 1 <= len(request.member_id) <= _MEMBER_ID_CHARS_MAX:
        raise _invalid("The member id must have 1 to 36 characters: send a UUID.")
    if request.rack_id == "":
        raise _invalid("The rack id is empty: send null if there is none.")
    if not all(map(fits_a_string, (request.member_id, request.rack_id, info.client_id))):
        raise _invalid("An id is longer than 32767 bytes.")
    if request.member_epoch < _LEAVE:
        raise _invalid(f"The member epoch is {request.member_epoch}: send -1 or more.")
    if request.member_epoch == _JOIN and not request.subscribed_topic_names:
        raise _invalid("A member that joins must send the topics that it subscribes to.")


def _require_group(shard: ShardState, request: ShareGroupHeartbeatRequest) -> ShareGroup:
    """Returns the group, which may be a new one if the member joins."""
    group = shard.share_groups.get(request.group_id)
    if group is not None:
        return group
    if request.group_id in shard.groups:
        raise KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"The group {request.group_id} is not a share group: use another group id.",
        )
    if request.member_epoch != _JOIN:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    return ShareGroup(request.group_id)


@dataclass(frozen=True, slots=True)
class _Heartbeat:
    """One heartbeat that waits for its turn."""

    shard: ShardState
    request: ShareGroupHeartbeatRequest
    info: RequestInfo

    def decide(self, turn: Turn) -> ShareGroupHeartbeatResponse:
        request, group = self.request, turn.group
        if request.member_epoch == _JOIN:
            self._require_place(group)
        else:
            self._require_epoch(group)
        if request.member_epoch == _LEAVE:
            remove_members(self.shard, turn, [request.member_id])
            return ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=_LEAVE)
        return self._serve(turn)

    def _require_place(self, group: ShareGroup) -> None:
        is_full = len(group.members) >= self.shard.shares.config.group_size_max
        if is_full and self.request.member_id not in group.members:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _require_epoch(self, group: ShareGroup) -> None:
        if self.request.member_id not in group.members:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        epoch, current = self.request.member_epoch, group.current(self.request.member_id)
        # The previous epoch: the member did not get the last answer.
        if epoch not in (_LEAVE, current.epoch, current.previous_epoch):
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"The member epoch is {epoch}, the coordinator has {current.epoch}: join again.",
            )

    def _serve(self, turn: Turn) -> ShareGroupHeartbeatResponse:
        shard, group, member_id = self.shard, turn.group, self.request.member_id
        before = group.members.get(member_id)
        member = self._updated(before)
        if member != before:
            record = record_of(MemberEntry(group.group_id, member_id, member))
            if 2 * record_bytes(record) > shard.batch_bytes_max():
                raise _invalid("The subscription is too large: subscribe to fewer topics.")
            turn.write(MemberEntry(group.group_id, member_id, member))
        raise_epoch(shard, turn, is_changed=before is None or member.names != before.names)
        is_waiting = provide(shard, turn)
        assign(shard, turn)
        old, current = self._reconcile(turn)
        share_timers.extend_session(shard, group, member_id, turn.now)
        response = ShareGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=current.epoch,
            heartbeat_interval_ms=self._interval_ms(group, is_waiting=is_waiting),
        )
        if self._wants_assignment(old) or current.assigned != old.assigned:
            response.assignment = ShareGroupHeartbeatResponse.Assignment(
                [
                    ShareGroupHeartbeatResponse.TopicPartitions(topic_id, indexes)
                    for topic_id, indexes in by_topic(current.assigned).items()
                ]
            )
        return response

    def _updated(self, before: ShareMember | None) -> ShareMember:
        """Returns what is known of the member after this request."""
        request = self.request
        member = replace(
            before or ShareMember(),
            client_id=self.info.client_id,
            client_host=self.info.client_host,
        )
        if request.rack_id is not None:
            member = replace(member, rack_id=request.rack_id)
        if request.subscribed_topic_names is not None:
            member = replace(member, names=frozenset(request.subscribed_topic_names))
        return member

    def _reconcile(self, turn: Turn) -> tuple[ShareCurrent, ShareCurrent]:
        """Returns what the member was assigned before this, and what it is assigned now."""
        group, member_id = turn.group, self.request.member_id
        before = group.current(member_id)
        found = map(self.shard.consumers.topics.find, group.members[member_id].names)
        topic_ids = {each.topic_id for each in found if each is not None}
        target = frozenset(each for each in group.target(member_id) if each.topic_id in topic_ids)
        if before.epoch != group.target_epoch:
            after = ShareCurrent(group.target_epoch, before.epoch, target)
        else:
            # A topic that the member does not subscribe to any more is taken away at once.
            after = replace(before, assigned=before.assigned & target)
        if after != before or member_id not in group.stored.currents:
            turn.write(CurrentEntry(group.group_id, member_id, after))
        return before, after

    def _wants_assignment(self, before: ShareCurrent) -> bool:
        """Returns whether the member joins, tells everything about itself, or missed an answer."""
        request = self.request
        return request.subscribed_topic_names is not None or (
            request.member_epoch in (_JOIN, before.previous_epoch)
        )

    def _interval_ms(self, group: ShareGroup, *, is_waiting: bool) -> int:
        interval_ms = self.shard.shares.settings_of(group.group_id).heartbeat_interval_ms
        may_soon_change = is_waiting or group.epoch > group.target_epoch
        if may_soon_change and group.retry_at_ms is None:
            return min(interval_ms, _SOON_MS)
        return interval_ms


# Sessions


def on_timer(shard: ShardState, group: ShareGroup, key: TimerKey, now: Now) -> None:
    """Removes a member that stays away."""
    member_id = key.member_id
    session = group.sessions.get(member_id)
    if session is None or session.timer_at_ms is None:
        return
    if now.ticks_ms < session.ends_ms:
        share_timers.set_session_timer(shard, group, member_id, session)
        return
    session.timer_at_ms = None
    submit(shard, group, Asked(lambda turn: _expire(shard, turn, member_id, session)), now)


def _expire(shard: ShardState, turn: Turn, member_id: str, session: Session) -> None:
    # A heartbeat that came first may have extended the session.
    is_same = turn.group.sessions.get(member_id) is session and member_id in turn.group.members
    if is_same and session.timer_at_ms is None:
        remove_members(shard, turn, [member_id])
