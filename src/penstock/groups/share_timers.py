"""The sessions of members of share groups: a member that stays away is removed."""

from __future__ import annotations

from typing import Final

from penstock.coordination.effects import Now
from penstock.groups.consumer.group import Session
from penstock.groups.effects import TimerKey, TimerKind
from penstock.groups.shard_state import ShardState
from penstock.groups.share.group import ShareGroup

_REMOVE_AGAIN_MS: Final = 1_000
"""How long to wait if a member's removal could not be stored."""


def extend_session(shard: ShardState, group: ShareGroup, member_id: str, now: Now) -> None:
    """Restarts the member's session timeout, because the member made contact.

    A timer that is set for an earlier time stays: when it fires, it is set again for the rest.
    """
    ends_ms = now.ticks_ms + shard.shares.settings_of(group.group_id).session_timeout_ms
    session = group.sessions.setdefault(member_id, Session(ends_ms))
    session.ends_ms = ends_ms
    if session.timer_at_ms is None or session.timer_at_ms > ends_ms:
        set_session_timer(shard, group, member_id, session)


def set_session_timer(
    shard: ShardState, group: ShareGroup, member_id: str, session: Session
) -> None:
    session.timer_at_ms = session.ends_ms
    shard.effects.set_timer(TimerKey(TimerKind.SESSION, group.group_id, member_id), session.ends_ms)


def restart(shard: ShardState, group: ShareGroup, now: Now) -> None:
    """Restarts all sessions, as after a load: members could not be heard while an append was late.

    A removal that has been asked for already finds a new timer, and does nothing.
    """
    for member_id in group.members:
        extend_session(shard, group, member_id, now)


def cancel(shard: ShardState, group: ShareGroup, member_id: str) -> None:
    session = group.sessions.pop(member_id, None)
    if session is not None and session.timer_at_ms is not None:
        shard.effects.cancel_timer(TimerKey(TimerKind.SESSION, group.group_id, member_id))


def cancel_all(shard: ShardState, group: ShareGroup) -> None:
    for member_id in sorted(group.sessions):
        cancel(shard, group, member_id)


def match_members(shard: ShardState, group: ShareGroup, now: Now) -> None:
    """Gives every member a timer, and only members, after the group was loaded or set back."""
    for member_id in sorted(group.sessions):
        if member_id not in group.members:
            cancel(shard, group, member_id)
    for member_id in group.members:
        session = group.sessions.get(member_id)
        if session is None:
            extend_session(shard, group, member_id, now)
        elif session.timer_at_ms is None:
            session.ends_ms = max(session.ends_ms, now.ticks_ms + _REMOVE_AGAIN_MS)
            set_session_timer(shard, group, member_id, session)
