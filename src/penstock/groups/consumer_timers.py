"""The timers of the members of consumer groups: their sessions, and their time to give up
partitions."""

from __future__ import annotations

from typing import Final

from penstock.coordination.effects import Now
from penstock.groups.consumer.group import ConsumerGroup, Revocation, Session
from penstock.groups.consumer.records import MemberState
from penstock.groups.effects import TimerKey, TimerKind
from penstock.groups.shard_state import ShardState

_REMOVE_AGAIN_MS: Final = 1_000
"""How long to wait if a member's removal could not be stored."""


def extend_session(shard: ShardState, group: ConsumerGroup, member_id: str, now: Now) -> None:
    """Restarts the member's session timeout, because the member made contact.

    A timer that is set for an earlier time stays, as for members of classic groups.
    """
    ends_ms = now.ticks_ms + shard.consumers.settings_of(group.group_id).session_timeout_ms
    session = group.sessions.setdefault(member_id, Session(ends_ms))
    session.ends_ms = ends_ms
    if session.timer_at_ms is None or session.timer_at_ms > ends_ms:
        set_session_timer(shard, group, member_id, session)


def set_session_timer(
    shard: ShardState, group: ConsumerGroup, member_id: str, session: Session
) -> None:
    session.timer_at_ms = session.ends_ms
    shard.effects.set_timer(TimerKey(TimerKind.SESSION, group.group_id, member_id), session.ends_ms)


def match_revocation(shard: ShardState, group: ConsumerGroup, member_id: str, now: Now) -> None:
    """Sets or cancels the timer of a member, as its state requires.

    The time starts when the member is told to give up partitions, and ends with its epoch.
    """
    current = group.current(member_id)
    running = group.revocations.get(member_id)
    if current.state is not MemberState.UNREVOKED:
        if running is not None:
            _cancel_revocation(shard, group, member_id)
        return
    if running is None or running.epoch != current.epoch:
        at_ms = now.ticks_ms + max(0, group.members[member_id].rebalance_timeout_ms)
        group.revocations[member_id] = Revocation(current.epoch, at_ms)
        shard.effects.set_timer(TimerKey(TimerKind.REVOCATION, group.group_id, member_id), at_ms)


def _cancel_revocation(shard: ShardState, group: ConsumerGroup, member_id: str) -> None:
    if group.revocations.pop(member_id, None) is not None:
        shard.effects.cancel_timer(TimerKey(TimerKind.REVOCATION, group.group_id, member_id))


def cancel(shard: ShardState, group: ConsumerGroup, member_id: str) -> None:
    """Cancels the timers of a member that is removed."""
    session = group.sessions.pop(member_id, None)
    if session is not None and session.timer_at_ms is not None:
        shard.effects.cancel_timer(TimerKey(TimerKind.SESSION, group.group_id, member_id))
    _cancel_revocation(shard, group, member_id)


def cancel_all(shard: ShardState, group: ConsumerGroup) -> None:
    for member_id in sorted(group.sessions.keys() | group.revocations.keys()):
        cancel(shard, group, member_id)


def match_members(shard: ShardState, group: ConsumerGroup, now: Now) -> None:
    """Gives every member its timers, and only members, after the group was loaded or set back."""
    for member_id in sorted(group.sessions.keys() | group.revocations.keys()):
        if member_id not in group.members:
            cancel(shard, group, member_id)
    for member_id in group.members:
        session = group.sessions.get(member_id)
        if session is None:
            extend_session(shard, group, member_id, now)
        elif session.timer_at_ms is None:
            session.ends_ms = max(session.ends_ms, now.ticks_ms + _REMOVE_AGAIN_MS)
            set_session_timer(shard, group, member_id, session)
        match_revocation(shard, group, member_id, now)
