"""The timers of the members of consumer groups: their sessions, and their time to give up
partitions.

A member that speaks the classic protocol gives up partitions by joining again. So it has two other
limits, both of its rebalance timeout: to fetch its assignment after it joined, and to join again
after it was told to.
"""

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
    metadata = group.members.get(member_id)
    if metadata is not None and metadata.classic is not None:
        timeout_ms = metadata.classic.session_timeout_ms
    else:
        timeout_ms = shard.consumers.settings_of(group.group_id).session_timeout_ms
    ends_ms = now.ticks_ms + timeout_ms
    session = group.sessions.setdefault(member_id, Session(ends_ms))
    session.ends_ms = ends_ms
    if session.timer_at_ms is None or session.timer_at_ms > ends_ms:
        set_session_timer(shard, group, member_id, session)


def set_session_timer(
    shard: ShardState, group: ConsumerGroup, member_id: str, session: Session
) -> None:
    session.timer_at_ms = session.ends_ms
    shard.effects.set_timer(TimerKey(TimerKind.SESSION, group.group_id, member_id), session.ends_ms)


def restart(shard: ShardState, group: ConsumerGroup, now: Now) -> None:
    """Gives all members their full time again, as after a load.

    Members could not be heard while an append was late, so nobody may be removed for that time. A
    removal that has been asked for already finds a new limit, and does nothing.
    """
    for member_id in group.members:
        extend_session(shard, group, member_id, now)
        if group.revocations.pop(member_id, None) is not None:
            match_revocation(shard, group, member_id, now)
        if group.syncs_due.pop(member_id, None) is not None:
            expect_sync(shard, group, member_id, now)
        if group.rejoins_due.pop(member_id, None) is not None:
            expect_rejoin(shard, group, member_id, now)


def match_revocation(shard: ShardState, group: ConsumerGroup, member_id: str, now: Now) -> None:
    """Sets or cancels the timer of a member, as its state requires.

    The time starts when the member is told to give up partitions. It ends with the member's epoch,
    or when the member is told to give up other ones: it may have to do so again in the same epoch.
    """
    current = group.current(member_id)
    running = group.revocations.get(member_id)
    metadata = group.members.get(member_id)
    is_classic = metadata is not None and metadata.classic is not None
    if is_classic or current.state is not MemberState.UNREVOKED:
        if running is not None:
            _cancel_revocation(shard, group, member_id)
        return
    pending = frozenset(current.pending)
    if running is None or (running.epoch, running.pending) != (current.epoch, pending):
        at_ms = now.ticks_ms + max(0, group.members[member_id].rebalance_timeout_ms)
        group.revocations[member_id] = Revocation(current.epoch, pending, at_ms)
        shard.effects.set_timer(TimerKey(TimerKind.REVOCATION, group.group_id, member_id), at_ms)


def _cancel_revocation(shard: ShardState, group: ConsumerGroup, member_id: str) -> None:
    if group.revocations.pop(member_id, None) is not None:
        shard.effects.cancel_timer(TimerKey(TimerKind.REVOCATION, group.group_id, member_id))


def expect_sync(shard: ShardState, group: ConsumerGroup, member_id: str, now: Now) -> None:
    """Starts the time in which a classic member that joined must fetch its assignment."""
    cancel_rejoin(shard, group, member_id)
    at_ms = now.ticks_ms + max(0, group.members[member_id].rebalance_timeout_ms)
    group.syncs_due[member_id] = at_ms
    shard.effects.set_timer(TimerKey(TimerKind.SYNC, group.group_id, member_id), at_ms)


def cancel_sync(shard: ShardState, group: ConsumerGroup, member_id: str) -> None:
    if group.syncs_due.pop(member_id, None) is not None:
        shard.effects.cancel_timer(TimerKey(TimerKind.SYNC, group.group_id, member_id))


def expect_rejoin(shard: ShardState, group: ConsumerGroup, member_id: str, now: Now) -> None:
    """Starts the time in which a classic member must join again, unless it runs already."""
    if member_id not in group.rejoins_due:
        at_ms = now.ticks_ms + max(0, group.members[member_id].rebalance_timeout_ms)
        group.rejoins_due[member_id] = at_ms
        shard.effects.set_timer(TimerKey(TimerKind.JOIN, group.group_id, member_id), at_ms)


def cancel_rejoin(shard: ShardState, group: ConsumerGroup, member_id: str) -> None:
    if group.rejoins_due.pop(member_id, None) is not None:
        shard.effects.cancel_timer(TimerKey(TimerKind.JOIN, group.group_id, member_id))


def match_protocol(shard: ShardState, group: ConsumerGroup, member_id: str) -> None:
    """Cancels the limits of the classic protocol unless the member speaks it."""
    metadata = group.members.get(member_id)
    if metadata is None or metadata.classic is None:
        cancel_sync(shard, group, member_id)
        cancel_rejoin(shard, group, member_id)


def cancel(shard: ShardState, group: ConsumerGroup, member_id: str) -> None:
    """Cancels the timers of a member that is removed."""
    session = group.sessions.pop(member_id, None)
    if session is not None and session.timer_at_ms is not None:
        shard.effects.cancel_timer(TimerKey(TimerKind.SESSION, group.group_id, member_id))
    _cancel_revocation(shard, group, member_id)
    cancel_sync(shard, group, member_id)
    cancel_rejoin(shard, group, member_id)


def _timed(group: ConsumerGroup) -> list[str]:
    """Returns the ids that timers are set for."""
    each = group.sessions, group.revocations, group.syncs_due, group.rejoins_due
    return sorted(set().union(*each))


def cancel_all(shard: ShardState, group: ConsumerGroup) -> None:
    for member_id in _timed(group):
        cancel(shard, group, member_id)


def match_members(shard: ShardState, group: ConsumerGroup, now: Now) -> None:
    """Gives every member its timers, and only members, after the group was loaded or set back."""
    for member_id in _timed(group):
        if member_id not in group.members:
            cancel(shard, group, member_id)
    for member_id in group.members:
        session = group.sessions.get(member_id)
        if session is None:
            extend_session(shard, group, member_id, now)
        elif session.timer_at_ms is None:
            session.ends_ms = max(session.ends_ms, now.ticks_ms + _REMOVE_AGAIN_MS)
            set_session_timer(shard, group, member_id, session)
        match_protocol(shard, group, member_id)
        match_revocation(shard, group, member_id, now)
