"""The groups of one partition of `__consumer_offsets`: the entry point of this package.

`coordination.shard` gives the rules for the shell that runs a shard. In addition, the shell appends
transaction markers itself. It reports them by `on_marker` once they are committed, in log order
with respect to the appends, and calls `replay_marker` for those that it finds when it loads the
log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping

from penstock.coordination.effects import Now, Token
from penstock.groups import (
    admin,
    consumer_admin,
    consumer_expiry,
    consumer_heartbeats,
    consumer_regexes,
    consumer_timers,
    consumer_turns,
    joining,
    membership,
    offset_fetch,
    offsets,
    rebalance,
    share_admin,
    share_heartbeats,
    share_states,
    share_timers,
    share_turns,
    transactions,
)
from penstock.groups.config import GroupConfig
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.effects import Effect, RequestInfo, TimerKey, TimerKind
from penstock.groups.formats import NO_TIMESTAMP
from penstock.groups.group import Group
from penstock.groups.image import NO_PRODUCER
from penstock.groups.shard_state import ConsumerContext, ShardState, ShareContext
from penstock.groups.share.group import Failures, ShareGroup
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterShareGroupOffsetsRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)


class GroupShard:
    def __init__(
        self,
        config: GroupConfig,
        new_member_id: Callable[[str], str],
        batch_bytes_max: Callable[[], int],
        consumers: ConsumerContext | None = None,
        shares: ShareContext | None = None,
    ) -> None:
        """`new_member_id` makes a unique id from a prefix: `{prefix}-{uuid}`.

        `batch_bytes_max` returns the current size limit of a batch in this partition: its topic's
        max.message.bytes. Records that do not fit into one batch are appended in several.

        `consumers` is what consumer groups of the new protocol depend on, `shares` is what share
        groups need in addition.
        """
        self.state = ShardState(
            config,
            new_member_id,
            batch_bytes_max,
            consumers or ConsumerContext(),
            shares or ShareContext(),
        )

    # Requests

    def join_group(
        self, request: JoinGroupRequest, info: RequestInfo, token: Token, now: Now
    ) -> list[Effect]:
        if not share_admin.refuse_others(self.state, request, info.version, token):
            joining.join_group(self.state, request, info, token, now)
        return self.state.effects.take()

    def sync_group(
        self, request: SyncGroupRequest, info: RequestInfo, token: Token, now: Now
    ) -> list[Effect]:
        if not share_admin.refuse_others(self.state, request, info.version, token):
            membership.sync_group(self.state, request, info, token, now)
        return self.state.effects.take()

    def heartbeat(
        self, request: HeartbeatRequest, info: RequestInfo, token: Token, now: Now
    ) -> list[Effect]:
        if not share_admin.refuse_others(self.state, request, info.version, token):
            membership.heartbeat(self.state, request, info, token, now)
        return self.state.effects.take()

    def consumer_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        info: RequestInfo,
        may_describe: Callable[[str], bool],
        token: Token,
        now: Now,
    ) -> list[Effect]:
        """`may_describe` stands for the member's rights: expressions match only such topics."""
        if not share_admin.refuse_others(self.state, request, info.version, token):
            consumer_heartbeats.heartbeat(self.state, request, info, may_describe, token, now)
        return self.state.effects.take()

    def leave_group(
        self, request: LeaveGroupRequest, info: RequestInfo, token: Token, now: Now
    ) -> list[Effect]:
        if not share_admin.refuse_others(self.state, request, info.version, token):
            membership.leave_group(self.state, request, info, token, now)
        return self.state.effects.take()

    def offset_commit(
        self, request: OffsetCommitRequest, info: RequestInfo, token: Token, now: Now
    ) -> list[Effect]:
        if not share_admin.refuse_others(self.state, request, info.version, token):
            offsets.offset_commit(self.state, request, info, token, now)
        return self.state.effects.take()

    def offset_delete(
        self, request: OffsetDeleteRequest, info: RequestInfo, token: Token, now: Now
    ) -> list[Effect]:
        if not share_admin.refuse_others(self.state, request, info.version, token):
            offsets.offset_delete(self.state, request, info, token, now)
        return self.state.effects.take()

    def txn_offset_commit(
        self, request: TxnOffsetCommitRequest, guard: int, token: Token, now: Now
    ) -> list[Effect]:
        """`guard` is the partition's guard from the verification of the transaction; 0 for none."""
        if not share_admin.refuse_others(self.state, request, 0, token):
            transactions.txn_offset_commit(self.state, request, guard, token, now)
        return self.state.effects.take()

    def delete_groups(
        self, request: DeleteGroupsRequest, info: RequestInfo, token: Token, now: Now
    ) -> list[Effect]:
        """A share group must be the only one of its request."""
        names = request.groups_names
        share_group = self.state.share_groups.get(names[0]) if len(names) == 1 else None
        if share_group is not None:
            share_admin.delete_group(self.state, share_group, token, now)
        else:
            admin.delete_groups(self.state, request, token, now)
        return self.state.effects.take()

    def share_heartbeat(
        self, request: ShareGroupHeartbeatRequest, info: RequestInfo, token: Token, now: Now
    ) -> list[Effect]:
        share_heartbeats.heartbeat(self.state, request, info, token, now)
        return self.state.effects.take()

    def alter_share_offsets(
        self, request: AlterShareGroupOffsetsRequest, info: RequestInfo, token: Token, now: Now
    ) -> list[Effect]:
        share_admin.alter_offsets(self.state, request, token, now)
        return self.state.effects.take()

    def delete_share_offsets(
        self, request: DeleteShareGroupOffsetsRequest, info: RequestInfo, token: Token, now: Now
    ) -> list[Effect]:
        share_admin.delete_offsets(self.state, request, token, now)
        return self.state.effects.take()

    # Queries

    def group_ids(self) -> list[str]:
        """Returns the ids of all groups, of all types."""
        return [*self.state.groups, *self.state.share_groups]

    def describe_groups(
        self, group_ids: Iterable[str], version: int
    ) -> list[DescribeGroupsResponse.Group]:
        return [admin.describe_group(self.state, group_id, version) for group_id in group_ids]

    def describe_consumer_group(self, group_id: str) -> ConsumerGroupDescribeResponse.Group:
        return consumer_admin.describe(self.state, group_id)

    def describe_share_group(self, group_id: str) -> ShareGroupDescribeResponse.DescribedGroup:
        return share_admin.describe(self.state, group_id)

    def share_partitions(self, group_id: str) -> dict[bytes, frozenset[int]]:
        """Returns the partitions of each topic id that have share state.

        Raises GROUP_ID_NOT_FOUND if there is no such share group.
        """
        return share_admin.initialized_partitions(self.state, group_id)

    def list_groups(
        self,
        states_filter: Iterable[str] = (),
        types_filter: Iterable[str] = (),
        among: Iterable[str] | None = None,
    ) -> list[ListGroupsResponse.Group]:
        return admin.list_groups(self.state, states_filter, types_filter, among)

    def fetch_offsets(
        self, group: OffsetFetchRequest.Group, *, require_stable: bool
    ) -> OffsetFetchResponse.Group:
        return offset_fetch.fetch_offsets(self.state, group, require_stable=require_stable)

    def offset_fetch_steps(
        self, group: OffsetFetchRequest.Group, *, require_stable: bool
    ) -> Generator[None, None, OffsetFetchResponse.Group]:
        """Like `fetch_offsets`, with a pause after each part of the work."""
        return offset_fetch.fetch_steps(self.state, group, require_stable=require_stable)

    # Events

    def on_timer(self, key: TimerKey, now: Now) -> list[Effect]:
        if key.kind is TimerKind.EXPIRY:
            offsets.expire(self.state, now)
        elif share_group := self.state.share_groups.get(key.group_id):
            share_heartbeats.on_timer(self.state, share_group, key, now)
        elif consumer_group := self.state.consumer(key.group_id):
            consumer_expiry.on_timer(self.state, consumer_group, key, now)
        elif group := self.state.classic(key.group_id):
            match key.kind:
                case TimerKind.JOIN:
                    rebalance.on_join_timer(self.state, group, now)
                case TimerKind.SYNC:
                    rebalance.on_sync_timer(self.state, group, now)
                case TimerKind.SESSION:
                    rebalance.on_session_timer(self.state, group, key.member_id, now)
                case TimerKind.PENDING:
                    rebalance.on_pending_timer(self.state, group, key.member_id, now)
        return self.state.effects.take()

    def on_committed(self, append_id: int, now: Now) -> list[Effect]:
        self.state.appends.on_committed(append_id, now)
        return self.state.effects.take()

    def on_append_failed(self, append_id: int, error: ErrorCode, now: Now) -> list[Effect]:
        self.state.appends.on_failed(append_id, error, now)
        return self.state.effects.take()

    def on_append_late(self, append_id: int) -> list[Effect]:
        """Answers requests that wait for an append that takes too long.

        The outcome of the append must still be reported.
        """
        self.state.appends.on_late(append_id)
        return self.state.effects.take()

    def on_marker(self, producer_id: int, *, committed: bool) -> list[Effect]:
        """Notes that a producer's transaction has ended on this partition."""
        self.state.image.end_transaction(producer_id, committed=committed)
        return self.state.effects.take()

    def on_regexes_resolved(
        self, group_id: str, found: Mapping[str, frozenset[str] | None], now: Now
    ) -> list[Effect]:
        """Reports the topics that match the expressions of `ResolveRegexes`; nothing if that
        failed."""
        consumer_regexes.on_resolved(self.state, group_id, found, now)
        return self.state.effects.take()

    def on_share_state_called(
        self, group_id: str, call_id: int, failures: Failures, now: Now
    ) -> list[Effect]:
        """Reports the end of a `ShareStateCall`: the partitions for which it failed, and why."""
        share_turns.on_called(self.state, group_id, call_id, failures, now)
        return self.state.effects.take()

    def on_topics_changed(self, names: Iterable[str], *, created: bool) -> None:
        """Notes that topics were created, deleted or changed.

        The next heartbeat of a member acts on it. `created` says that some of them are new: then
        regular expressions may match them.
        """
        state = self.state
        for group_id in state.readers.of(names):
            if group := state.consumer(group_id):
                group.metadata_is_stale = True
        for group_id in state.readers.with_regexes() if created else ():
            if group := state.consumer(group_id):
                group.topics_were_created = True
        for share_group in self.state.share_groups.values():
            share_group.metadata_is_stale = share_group.may_lack_states = True

    def on_topics_deleted(self, topic_ids: Collection[bytes], now: Now) -> list[Effect]:
        """Deletes the share states of topics."""
        share_states.forget_topics(self.state, topic_ids, now)
        return self.state.effects.take()

    def forget_topics(self, names: Collection[str], now: Now) -> list[Effect]:
        offsets.forget_topics(self.state, names, now)
        return self.state.effects.take()

    # Lifecycle

    def replay(
        self, key: bytes | None, value: bytes | None, producer_id: int = NO_PRODUCER
    ) -> None:
        """Replays a record; `producer_id` is set if the record belongs to a transaction."""
        self.state.image.replay(key, value, producer_id)

    def replay_marker(self, producer_id: int, *, committed: bool) -> None:
        self.state.image.end_transaction(producer_id, committed=committed)

    def on_loaded(self, now: Now) -> list[Effect]:
        """Creates the groups from the replayed log."""
        state = self.state
        for group_id, value in state.image.groups.items():
            rebalance.restore(state, group_id, value, now)
        for group_id, stored in state.image.consumer_groups.items():
            consumer_group = ConsumerGroup(group_id, stored)
            state.groups[group_id] = consumer_group
            state.readers.note(consumer_group)
            consumer_timers.match_members(state, consumer_group, now)
        for group_id, stored_share_group in state.image.share_groups.items():
            share_group = ShareGroup(group_id, stored_share_group)
            state.share_groups[group_id] = share_group
            share_timers.match_members(state, share_group, now)
        for group_id in sorted(state.image.group_ids()):
            state.groups.setdefault(group_id, Group(group_id, NO_TIMESTAMP))
        state.effects.set_timer(
            offsets.EXPIRY_TIMER, now.ticks_ms + state.config.offsets_retention_check_interval_ms
        )
        return state.effects.take()

    def unload(self, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> list[Effect]:
        """Answers all waiting requests: this broker no longer coordinates these groups."""
        state = self.state
        state.appends.abandon(code)
        for group in state.groups.values():
            if isinstance(group, ConsumerGroup):
                consumer_turns.refuse_waiting(state, group, code)
                consumer_timers.cancel_all(state, group)
                continue
            for member_id, member in group.members.items():
                rebalance.evict_parked(state, group, member_id, code)
                state.cancel_session_timer(group, member)
            for member_id in list(group.pending_members):
                rebalance.forget_pending(state, group, member_id)
            state.cancel_join_timer(group)
            state.cancel_sync_timer(group)
        for share_group in state.share_groups.values():
            share_turns.refuse_waiting(state, share_group, code)
            share_turns.abandon_calls(state, share_group, code)
            share_timers.cancel_all(state, share_group)
        state.effects.cancel_timer(offsets.EXPIRY_TIMER)
        state.groups.clear()
        state.share_groups.clear()
        return state.effects.take()

    def take_effects(self) -> list[Effect]:
        """Returns the effects that a call had decided on before it raised."""
        return self.state.effects.take()

    def verify(self) -> None:
        """Checks the invariants of every group; for tests and simulations."""
        for group in (*self.state.groups.values(), *self.state.share_groups.values()):
            group.verify()
