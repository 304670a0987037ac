"""Planted bugs of share groups: records that are lost or delivered too often, locks that do not
hold, leaders and members that are not fenced, state that a failover loses.

See `replication`.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Final

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.shares.led_partition import LedPartition
from penstock.broker.shares.share_leader import ShareLeader
from penstock.coordination.effects import LogRecord, Now, Token
from penstock.groups import share_timers
from penstock.groups.consumer.group import Session
from penstock.groups.image import NO_PRODUCER
from penstock.groups.shard import GroupShard
from penstock.groups.shard_state import ShardState
from penstock.groups.share.group import ShareGroup
from penstock.groups.share.records import StatesEntry, read_entry
from penstock.groups.share_heartbeats import _Heartbeat
from penstock.shares import decisions, loading, share_partition, state_requests, state_shard
from penstock.shares.decisions import Decision
from penstock.shares.events import Acknowledge, Acknowledged, TimerFired
from penstock.shares.formats import decode
from penstock.shares.image import Delta, ShareImage
from penstock.shares.promoted_spans import SpanTables
from penstock.shares.sessions import Refuse, SessionKey, SharedPartition, ShareSessions, _Session
from penstock.shares.settings import ShareSettings
from penstock.shares.share_partition import SharePartition
from penstock.shares.spans import Span, SpanTable
from penstock.shares.state_requests import (
    Change,
    Content,
    Initialize,
    Known,
    Read,
    StateAnswer,
    Write,
    content_of,
)
from penstock.shares.state_shard import ShareShard
from penstock.shares.states import DONE, RecordState
from penstock.sim.bugs.planting import Plant, bug, patch
from penstock.wire.errors import ErrorCode

SHARE_BUGS: Final[dict[str, Plant]] = {}
_bug = partial(bug, SHARE_BUGS)
_HOUR_MS: Final = 3_600_000


# -- the share partition


@_bug("acknowledgement-answered-before-it-is-stored")
def _answers_at_once(patches: ExitStack) -> None:
    """A member is told that its acknowledgement is stored when the write has only begun."""
    write = SharePartition._write

    def hasty(
        self: SharePartition,
        decided: list[tuple[Span, Decision]],
        now: Now,
        token: Token | None = None,
    ) -> None:
        write(self, decided, now)
        if token is not None:
            self._effects.append(Acknowledged(token, ErrorCode.NONE))

    patch(patches, SharePartition, "_write", hasty)


@_bug("delivery-count-forgotten-by-a-new-leader")
def _counts_anew(patches: ExitStack) -> None:
    """A new leader begins to count the deliveries of each record again."""
    load = loading.load_spans

    def forgetful(tables: SpanTables, image: ShareImage, settings: ShareSettings, now: Now) -> None:
        uncounted = image.copy()
        uncounted.spans = [span._replace(delivery_count=0) for span in image.spans]
        load(tables, uncounted, settings, now)

    patch(patches, share_partition, "load_spans", forgetful)


@_bug("lock-never-ends")
def _locks_forever(patches: ExitStack) -> None:
    """A record that its member has forgotten stays locked."""
    fire = SharePartition._on_timer

    def patient(self: SharePartition, event: TimerFired, now: Now) -> None:
        for span in self._table.spans:
            if span.state is RecordState.ACQUIRED and span.lock_until_ms <= now.ticks_ms:
                span.lock_until_ms = now.ticks_ms + _HOUR_MS
        fire(self, event, now)

    patch(patches, share_partition, "_HANDLERS", {**_handlers(), TimerFired: patient})


@_bug("locked-record-delivered-to-another-member")
def _ignores_locks(patches: ExitStack) -> None:
    """Any timer ends all locks, not only those whose time is over."""
    fire = SharePartition._on_timer

    def early(self: SharePartition, event: TimerFired, now: Now) -> None:
        for span in self._table.spans:
            if span.state is RecordState.ACQUIRED:
                span.lock_until_ms = now.ticks_ms
        fire(self, event, now)

    patch(patches, share_partition, "_HANDLERS", {**_handlers(), TimerFired: early})


@_bug("locks-forgotten-after-an-unknown-outcome")
def _forgets_locks(patches: ExitStack) -> None:
    """A leader that does not know whether its write was stored loads the state again, and delivers
    what other members have."""
    patch(patches, SharePartition, "put_back", lambda self, locks: None)


@_bug("renewal-answered-without-effect")
def _renews_nothing(patches: ExitStack) -> None:
    """A member that extends a lock is told that this has worked, but the lock ends as before."""
    acknowledge = SharePartition._on_acknowledge

    def forgetful(self: SharePartition, event: Acknowledge, now: Now) -> None:
        ends = {
            offset: span.lock_until_ms
            for span in self._table.spans
            for offset in range(span.first, span.last + 1)
        }
        acknowledge(self, event, now)
        if event.is_renew:
            for span in self._table.spans:
                span.lock_until_ms = ends[span.first]

    patch(patches, share_partition, "_HANDLERS", {**_handlers(), Acknowledge: forgetful})


@_bug("start-offset-passes-an-acquired-record")
def _drops_acquired(patches: ExitStack) -> None:
    """The start offset moves past records that a member still has."""

    def greedy(self: SpanTable) -> bool:
        count = 0
        for span in self.spans:
            if span.state not in DONE and span.state is not RecordState.ACQUIRED:
                break
            count += 1
        if not any(span.state in DONE for span in self.spans[:count]):
            return False
        self.start = self.spans[count - 1].last + 1
        del self.spans[:count]
        return True

    patch(patches, SpanTable, "drop_done", greedy)


@_bug("delivery-limit-not-enforced")
def _delivers_on(patches: ExitStack) -> None:
    """A record that was delivered as often as the limit allows is delivered again."""
    release = decisions.release

    def lenient(span: Span, settings: ShareSettings, now: Now, *, backoff: bool = True) -> Decision:
        return release(span, replace(settings, delivery_limit=1_000), now, backoff=backoff)

    patch(patches, decisions, "release", lenient)
    patch(patches, share_partition, "release", lenient)


@_bug("record-given-up-one-delivery-early")
def _gives_up_early(patches: ExitStack) -> None:
    """A record is given up before its last delivery."""
    release = decisions.release

    def strict(span: Span, settings: ShareSettings, now: Now, *, backoff: bool = True) -> Decision:
        limit = settings.delivery_limit - 1
        return release(span, replace(settings, delivery_limit=limit), now, backoff=backoff)

    patch(patches, decisions, "release", strict)
    patch(patches, share_partition, "release", strict)


def _handlers() -> dict[type, Any]:
    return dict(share_partition._HANDLERS)


# -- the leader of the partition


@_bug("former-leader-serves-share-fetches")
def _serves_on(patches: ExitStack) -> None:
    """A broker goes on delivering records of a partition that it does not lead any more."""
    lead = ShareLeader.lead

    def lax(self: ShareLeader, hosted: HostedPartition) -> LedPartition:
        led = self._led.get(SharedPartition(hosted.topic_id, hosted.index))
        return lead(self, hosted) if led is None or led.hosted is not hosted else led

    patch(patches, ShareLeader, "lead", lax)
    patch(patches, ShareLeader, "_on_resigned", lambda self, hosted: None)


@_bug("share-session-epoch-not-checked")
def _takes_any_epoch(patches: ExitStack) -> None:
    """A request of a share session is accepted whatever its epoch is."""

    def lax(self: ShareSessions, key: SessionKey, epoch: int) -> _Session | Refuse:
        session = self._sessions.get(key)
        if session is None:
            return Refuse(ErrorCode.SHARE_SESSION_NOT_FOUND)
        session.epoch = epoch + 1
        return session

    patch(patches, ShareSessions, "_next", lax)


# -- the share coordinator


@_bug("writes-of-former-leaders-accepted")
def _fences_nobody(patches: ExitStack) -> None:
    """The share coordinator stores writes of leaders that others have replaced, and of earlier
    loads of the same leader."""

    def lax(change: Change, known: Known | None, wall_ms: int) -> tuple[Content, Known | None]:
        if isinstance(change, Write) and known is not None:
            return change.delta, known
        return content_of(change, known, wall_ms)

    patch(patches, state_shard, "content_of", lax)


@_bug("reads-of-former-leaders-accepted")
def _reads_backwards(patches: ExitStack) -> None:
    """A leader that was replaced may read the state, and is then taken for the newest one."""

    def lax(change: Change, known: Known | None, wall_ms: int) -> tuple[Content, Known | None]:
        if isinstance(change, Read) and known is not None:
            known = known._replace(leader_epoch=-1)
        return content_of(change, known, wall_ms)

    patch(patches, state_shard, "content_of", lax)


@_bug("state-write-answered-before-it-is-committed")
def _confirms_early(patches: ExitStack) -> None:
    """The share coordinator answers a write when it has appended it, before it is committed."""
    append = ShareShard._append

    def hasty(self: ShareShard, now: Now) -> None:
        append(self, now)
        batch = self._under_way
        for number, waiting in enumerate(() if batch is None else batch.asked):
            if isinstance(waiting.change, Write) and waiting.token is not None:
                self._effects.reply(waiting.token, StateAnswer(ErrorCode.NONE))
                assert batch is not None
                batch.asked[number] = waiting._replace(token=None)

    patch(patches, ShareShard, "_append", hasty)


@_bug("changes-not-replayed-by-a-new-share-coordinator")
def _replays_snapshots_only(patches: ExitStack) -> None:
    """A new share coordinator has the last snapshot of each state, without the changes since."""
    replay = ShareShard.replay

    def forgetful(self: ShareShard, record: LogRecord, offset: int) -> None:
        entry = decode(record)
        if isinstance(entry.content, Delta) and entry.content.spans:
            self._end_offset = offset + 1
            return
        replay(self, record, offset)

    patch(patches, ShareShard, "replay", forgetful)


# -- the group coordinator


@_bug("initialized-partitions-forgotten-by-a-new-coordinator")
def _begins_again(patches: ExitStack) -> None:
    """A new coordinator of a share group does not know which states exist, and initializes them
    again. The share coordinator takes that for a reset, and overwrites the states in use."""
    replay, initialized = GroupShard.replay, state_requests._initialized

    def reset(change: Initialize, known: Known | None) -> tuple[Content, Known]:
        return initialized(replace(change, start_offset=0), known)

    def forgetful(
        self: GroupShard, key: bytes | None, value: bytes | None, producer_id: int = NO_PRODUCER
    ) -> None:
        if key is not None and isinstance(read_entry(key, value), StatesEntry):
            return
        replay(self, key, value, producer_id)

    patch(patches, GroupShard, "replay", forgetful)
    patch(patches, state_requests, "_initialized", reset)


@_bug("dead-share-member-never-removed")
def _waits_forever(patches: ExitStack) -> None:
    """A member that stays away keeps its partitions."""

    def never(shard: ShardState, group: ShareGroup, member_id: str, session: Session) -> None:
        pass

    patch(patches, share_timers, "set_session_timer", never)


@_bug("share-sessions-not-restarted-by-a-new-coordinator")
def _leaves_alone(patches: ExitStack) -> None:
    """A new coordinator sets no timers for the members that it finds in the log."""

    def leave_alone(shard: ShardState, group: ShareGroup, now: Now) -> None:
        pass

    patch(patches, share_timers, "match_members", leave_alone)


@_bug("share-member-epoch-not-checked")
def _accepts_any_epoch(patches: ExitStack) -> None:
    """A heartbeat is accepted whatever epoch the member sends."""
    patch(patches, _Heartbeat, "_require_epoch", lambda self, group: None)
