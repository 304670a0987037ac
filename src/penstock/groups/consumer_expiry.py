"""Removes members of consumer groups that stay away, or do not give up partitions in time.

Members that speak the classic protocol are also removed if they do not join again, or do not fetch
their assignment, in time.
"""

from __future__ import annotations

from penstock.coordination.effects import Now
from penstock.groups import consumer_timers
from penstock.groups.consumer.group import Asked, ConsumerGroup, Revocation, Session, Turn
from penstock.groups.consumer.records import MemberState
from penstock.groups.consumer_targets import remove_members
from penstock.groups.consumer_turns import submit
from penstock.groups.effects import TimerKey, TimerKind
from penstock.groups.shard_state import ShardState


def on_timer(shard: ShardState, group: ConsumerGroup, key: TimerKey, now: Now) -> None:
    member_id = key.member_id
    session = group.sessions.get(member_id)
    revocation = group.revocations.get(member_id)
    if key.kind is TimerKind.SESSION and session is not None:
        _on_session_timer(shard, group, member_id, session, now)
    elif key.kind is TimerKind.REVOCATION and revocation is not None:
        _on_revocation_timer(shard, group, member_id, revocation, now)
    elif key.kind is TimerKind.SYNC:
        _on_due(shard, group, member_id, group.syncs_due, now)
    elif key.kind is TimerKind.JOIN:
        _on_due(shard, group, member_id, group.rejoins_due, now)


def _on_due(
    shard: ShardState, group: ConsumerGroup, member_id: str, due: dict[str, int], now: Now
) -> None:
    at_ms = due.get(member_id)
    if at_ms is None or now.ticks_ms < at_ms:
        return

    def decide(turn: Turn) -> None:
        # The request may have come first, or a later time may run by now.
        if due.get(member_id) == at_ms and member_id in turn.group.members:
            remove_members(shard, turn, [member_id])

    submit(shard, group, Asked(decide), now)


def _on_session_timer(
    shard: ShardState, group: ConsumerGroup, member_id: str, session: Session, now: Now
) -> None:
    if session.timer_at_ms is None:
        return
    if now.ticks_ms < session.ends_ms:
        consumer_timers.set_session_timer(shard, group, member_id, session)
        return
    session.timer_at_ms = None

    def decide(turn: Turn) -> None:
        # A heartbeat that came first may have extended the session.
        if turn.group.sessions.get(member_id) is not session or member_id not in turn.group.members:
            return
        if session.timer_at_ms is None:
            remove_members(shard, turn, [member_id])

    submit(shard, group, Asked(decide), now)


def _on_revocation_timer(
    shard: ShardState, group: ConsumerGroup, member_id: str, revocation: Revocation, now: Now
) -> None:
    if now.ticks_ms < revocation.at_ms:
        return

    def decide(turn: Turn) -> None:
        # The member may have given up its partitions by now.
        if turn.group.revocations.get(member_id) is not revocation:
            return
        del turn.group.revocations[member_id]
        current = turn.group.current(member_id)
        if current.state is MemberState.UNREVOKED and current.epoch == revocation.epoch:
            remove_members(shard, turn, [member_id])

    submit(shard, group, Asked(decide), now)
