"""The group coordinator: the groups whose partition of `__consumer_offsets` this broker leads.

`groups.GroupShard` decides, and `shard_shell` carries out its effects. This module adds what only
groups have: offsets that are committed in transactions, as batches of their producers, and the
markers that end these transactions. A marker is written through the shard's shell, so that the
shard is notified of it in order with the other appends.

Committed offsets are read from memory. A broker that was cut off, or whose metadata is late, may
not know that another broker leads the partition by now and has accepted commits. So before it
answers, it reads the current revision from the store and waits until its image has reached it. If
the store cannot be read, it appends a record that changes nothing. Once that record is committed,
every replica that could have been elected instead was still following this leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.cooperative_yield import Steps, in_slices, slices_of
from penstock.broker.coordinators.batches import bounded_batch_of
from penstock.broker.coordinators.cluster_topics import ClusterTopics
from penstock.broker.coordinators.coordinator_settings import group_settings
from penstock.broker.coordinators.led_shards import LedShards
from penstock.broker.coordinators.shard_shell import ShardShell
from penstock.broker.coordinators.share_calls import ShareCalls
from penstock.broker.coordinators.share_settings import ShareGroupSettingsTable
from penstock.broker.partitions.hosted_partition import HostedPartition, Written
from penstock.broker.partitions.own_txn_appends import append_in_transaction, append_marker
from penstock.coordination.effects import Append, Now, Token
from penstock.groups.config import ConsumerGroupConfig, ConsumerGroupSettings, GroupConfig
from penstock.groups.consumer.regexes import resolve
from penstock.groups.effects import (
    Effect,
    OwnEffect,
    RegexOutgrown,
    ResolveRegexes,
    ShareStateCall,
    TimerKey,
)
from penstock.groups.formats import offset_record
from penstock.groups.image import NO_PRODUCER
from penstock.groups.shard import GroupShard
from penstock.groups.shard_state import ConsumerContext, GroupCounters, ShareContext
from penstock.metadata.image import Changed
from penstock.metadata.model import OFFSETS_TOPIC
from penstock.partition.guards import Verification
from penstock.ports import Env
from penstock.records.batch import BatchHeader
from penstock.records.record import ControlType, Record, read_control
from penstock.stores.errors import StoreError
from penstock.txns.effects import Marker
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages.base import Response

_STORE_PATIENCE_S: Final = 1.0
_log = logging.getLogger(__name__)
Step = Callable[[GroupShard, Token, Now], list[Effect]]


class GroupShell(ShardShell[Response, TimerKey, OwnEffect]):
    def __init__(
        self,
        env: Env,
        hosted: HostedPartition,
        config: GroupConfig,
        consumers: ConsumerContext,
        spawn: Callable[..., None],
        reported: set[tuple[str, int]],
        shares: ShareContext | None = None,
        share_calls: ShareCalls | None = None,
    ) -> None:
        """`reported` are the kinds and versions of records that the log told about already."""
        self._reported = reported
        self._topics = consumers.topics
        self._share_calls = share_calls or ShareCalls()
        self._spawn = spawn
        self._coordinator_epoch = hosted.require_leader().epoch
        self.shard = GroupShard(
            config,
            partial(_new_member_id, env),
            lambda: hosted.settings.max_message_bytes,
            consumers,
            shares,
        )
        super().__init__(env, hosted, self.shard, config.append_timeout_ms)

    def ask(self, step: Step) -> asyncio.Future[Response]:
        """Passes a request to the shard. The future resolves to its response."""
        return self.put(lambda token: step(self.shard, token, self.now()))

    def forget_topics(self, names: Collection[str]) -> None:
        self.step(lambda: self.shard.forget_topics(names, self.now()))

    def on_topics_deleted(self, topic_ids: Collection[bytes]) -> None:
        self.step(lambda: self.shard.on_topics_deleted(topic_ids, self.now()))

    def write_marker(self, marker: Marker, tell: Callable[[ErrorCode], None]) -> None:
        """Writes the marker that ends a transaction's offset commits.

        Calls `tell` with NONE when the marker is committed, or with the reason if it fails. May be
        called only once the partition is loaded: the shard would not be notified of a marker that
        was written before.
        """

        def end(code: ErrorCode | None) -> None:
            if code is None:
                producer_id, committed = marker.producer_id, marker.committed
                self.step(lambda: self.shard.on_marker(producer_id, committed=committed))
            tell(ErrorCode.NONE if code is None else code)

        self.writes.write(
            lambda: append_marker(self.hosted, marker, self._env.clock.wall_ms()),
            end,
            lambda: tell(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        )

    def confirm(self, tell: Callable[[ErrorCode | None], None]) -> None:
        """Checks whether this broker still leads the partition: writes a record without effect."""

        def write() -> Written:
            now_ms = self._env.clock.wall_ms()
            batch = bounded_batch_of(self.hosted, [offset_record("", "", -1, None)], now_ms)
            return self.hosted.append_own(batch, now_ms)

        def refuse() -> None:
            tell(ErrorCode.NOT_COORDINATOR)

        self.writes.write(write, tell, refuse, refuse)

    # What the shell needs

    def replay(self, header: BatchHeader, records: Sequence[Record]) -> None:
        if header.is_control:
            for record in records:
                committed = read_control(record).type == ControlType.COMMIT
                self.shard.replay_marker(header.producer_id, committed=committed)
            return
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER
        for record in records:
            self.shard.replay(record.key, record.value, producer_id)
        if self.shard.state.image.too_new - self._reported:
            self._report_too_new()

    def _report_too_new(self) -> None:
        """Logs which records were skipped: each kind once, not for every record."""
        for name, version in sorted(self.shard.state.image.too_new - self._reported):
            self._reported.add((name, version))
            _log.error(
                "skipped records of %s: %s has version %d, which this broker does not know; "
                "upgrade the broker",
                self.partition_name,
                name,
                version,
            )

    def append(self, append: Append) -> Written:
        records, timestamp_ms, producer = append.records, append.timestamp_ms, append.producer
        now_ms = self._env.clock.wall_ms()
        if producer is None:
            batch = bounded_batch_of(self.hosted, records, timestamp_ms)
            return self.hosted.append_own(batch, now_ms)
        batch = bounded_batch_of(
            self.hosted,
            records,
            timestamp_ms,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transactional=True,
        )
        return append_in_transaction(self.hosted, batch, Verification(producer.guard), now_ms)

    def carry_out_own(self, effect: OwnEffect) -> None:
        match effect:
            case ResolveRegexes():
                self._spawn(self._resolve(effect))
            case RegexOutgrown(group_id, regex):
                _log.warning(
                    "group %s does not get new topics: the regular expression %r takes too long "
                    "to match with the topics that the cluster has by now, or matches too many of "
                    "them; it keeps the topics that matched before; use a simpler or narrower "
                    "expression",
                    group_id,
                    regex,
                )
            case ShareStateCall():
                self._spawn(self._call_shares(effect))

    async def _call_shares(self, call: ShareStateCall) -> None:
        """Calls the share coordinator, and reports what failed."""
        everything = (*(each.partition for each in call.initialize), *call.delete)
        failures = dict.fromkeys(everything, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
        try:
            epoch, now = self._coordinator_epoch, self.now()
            failures = await self._share_calls.make(call, epoch, now.wall_ms)
        finally:
            self.step(
                lambda: self.shard.on_share_state_called(
                    call.group_id, call.call_id, failures, self.now()
                )
            )

    async def _resolve(self, effect: ResolveRegexes) -> None:
        """Matches the topics of the cluster on a thread, and reports those that the member may
        describe."""
        found: dict[str, frozenset[str] | None] = {}
        try:
            names = self._topics.names()
            # Not the threads that sync logs: a slow expression must not delay these.
            executor = self._env.matching or self._env.executor
            slices = slices_of(self._env)
            for regex in effect.regexes:
                # One by one, so that the expressions of other groups are not held up.
                matches = await executor.run(partial(resolve, (regex,), names))
                topics = matches[regex]
                visible: set[str] = set()
                for name in sorted(topics or ()):
                    if effect.may_describe(name):
                        visible.add(name)
                    await slices.give_way()
                found[regex] = None if topics is None else frozenset(visible)
        finally:
            # If this fails, the next heartbeat asks again.
            self.step(lambda: self.shard.on_regexes_resolved(effect.group_id, found, self.now()))


class GroupCoordinator(LedShards[GroupShell]):
    """The shards of all partitions of `__consumer_offsets` that this broker leads."""

    def __init__(
        self,
        env: Env,
        broker_id: int,
        cluster: ClusterView,
        config: GroupConfig,
        spawn: Callable[..., None],
        consumer_config: ConsumerGroupConfig,
        share_groups: ShareGroupSettingsTable,
    ) -> None:
        super().__init__(env, OFFSETS_TOPIC, broker_id, cluster, spawn)
        self.share_settings_of: Final = share_groups.share_settings_of
        """Returns the settings of a share group that the leaders of its partitions use."""
        self._counted_before = GroupCounters()
        """What shards of ended leaderships counted."""
        self._config = config
        self._consumer_config = consumer_config
        self._consumers = ConsumerContext(
            self._consumer_config, ClusterTopics(cluster), self._settings_of
        )
        self._reported: set[tuple[str, int]] = set()
        self._shares = ShareContext(share_groups.config, share_groups.group_settings_of)
        self.share_calls: Final = ShareCalls()
        self._gone: set[str] = set()
        """Deleted topics whose offsets are about to be removed."""

    def _settings_of(self, group_id: str) -> ConsumerGroupSettings:
        overrides = self._cluster.image.group_configs.get(group_id)
        if overrides is None:
            return self._consumer_config.settings
        return group_settings(self._consumer_config, overrides)

    def make(self, hosted: HostedPartition) -> GroupShell:
        return GroupShell(
            self._env,
            hosted,
            self._config,
            self._consumers,
            self._spawn,
            self._reported,
            self._shares,
            self.share_calls,
        )

    def ask(self, group_id: str, step: Step) -> asyncio.Future[Response]:
        return self.require(group_id).ask(step)

    @property
    def counted(self) -> GroupCounters:
        """What the groups of this coordinator did since the broker started."""
        total = GroupCounters()
        total.add(self._counted_before)
        for shell in self._shells.values():
            total.add(shell.shard.state.counters)
        return total

    def on_retired(self, shell: GroupShell) -> None:
        self._counted_before.add(shell.shard.state.counters)

    def confirmed(
        self, group_ids: Sequence[str], answer: Callable[[], Steps[Response]]
    ) -> asyncio.Future[Response]:
        """Runs the steps of `answer` once this broker has confirmed that it coordinates the groups.

        Otherwise another coordinator could have accepted commits that the answer lacks. The future
        resolves to the response."""
        reply: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._spawn(self._confirm(group_ids, answer, reply))
        return reply

    async def _confirm(
        self,
        group_ids: Sequence[str],
        answer: Callable[[], Steps[Response]],
        reply: asyncio.Future[Response],
    ) -> None:
        try:
            try:
                async with asyncio.timeout(_STORE_PATIENCE_S):
                    await self._cluster.catch_up()
                self._require_terms(group_ids)
            except (StoreError, TimeoutError):
                for shell in {id(one): one for one in map(self.require, group_ids)}.values():
                    await _confirmation(shell)
            response = await in_slices(answer(), slices_of(self._env))
        except Exception as error:  # noqa: BLE001 - dispatch turns it into an error response
            if not reply.done():
                reply.set_exception(error)
        else:
            if not reply.done():
                reply.set_result(response)

    def _require_terms(self, group_ids: Sequence[str]) -> None:
        """Raises NOT_COORDINATOR if the image names another leader epoch for one of the groups.

        The image is current, but the leadership may not have been updated to it yet."""
        for index in map(self.index_of, group_ids):
            partition = self._cluster.image.partition(OFFSETS_TOPIC, index)
            leadership = self.require_at(index).hosted.leadership
            if partition is None or not leadership or partition.leader_epoch != leadership.epoch:
                raise KafkaError(ErrorCode.NOT_COORDINATOR)

    def on_change(self, changed: Changed) -> None:
        """Removes the offsets that groups committed for topics that were deleted, and share states.

        Consumer and share groups learn that their topics may have changed.
        """
        if changed.topics:
            created = any(change.before is None for change in changed.topics)
            deleted = _deleted_ids(changed)
            names = [change.name for change in changed.topics]
            for shell in self.loaded():
                shell.shard.on_topics_changed(names, created=created)
                if deleted:
                    shell.on_topics_deleted(deleted)
        for change in changed.topics:
            if change.after is not None and change.name in self._gone:
                # The topic was created again: offsets that are committed from now on stay.
                self._forget_gone()
            elif change.after is None:
                if not self._gone:
                    # Later, to include the deletions that the image shows next: each removal
                    # examines all offsets.
                    asyncio.get_running_loop().call_soon(self._forget_gone)
                self._gone.add(change.name)

    def _forget_gone(self) -> None:
        gone, self._gone = self._gone, set()
        if gone:
            for shell in self.loaded():
                shell.forget_topics(gone)


def _deleted_ids(changed: Changed) -> list[bytes]:
    """Returns the ids of topics that are gone, also of those that were created again."""
    return [
        each.before.topic_id
        for each in changed.topics
        if each.before is not None
        and (each.after is None or each.after.topic_id != each.before.topic_id)
    ]


async def _confirmation(shell: GroupShell) -> None:
    outcome: asyncio.Future[ErrorCode | None] = asyncio.get_running_loop().create_future()

    def tell(code: ErrorCode | None) -> None:
        # May be called twice: when the append is late, and with its outcome.
        if not outcome.done():
            outcome.set_result(code)

    shell.confirm(tell)
    if await outcome is not None:
        raise KafkaError(ErrorCode.NOT_COORDINATOR)


def _new_member_id(env: Env, prefix: str) -> str:
    digits = env.random.bytes(16).hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return f"{prefix}-{'-'.join(parts)}"
