"""The share coordinator: one shard per partition of `__share_group_state` led by this broker.

`shares.state_shard` decides, and `shard_shell` carries out its effects. This module adds what only
this coordinator needs: group commits, a log that is trimmed, and the states of deleted topics.

A topic that is deleted while its states have no coordinator is found when the next one has loaded.
The image of this broker may be older than a state. So a topic counts as deleted only if it is
missing after the image has caught up with the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.coordinators.batches import bounded_batch_of
from penstock.broker.coordinators.led_shards import LedShards
from penstock.broker.coordinators.shard_shell import ShardShell
from penstock.broker.coordinators.share_keys import share_key
from penstock.broker.error_codes import EXPECTED_ERRORS
from penstock.broker.partitions.hosted_partition import HostedPartition, Written
from penstock.broker.partitions.log_trimming import trim_log
from penstock.broker.partitions.replicas import Replicas
from penstock.coordination.effects import Append, LogRecord
from penstock.metadata.image import Changed
from penstock.metadata.model import SHARE_STATE_TOPIC
from penstock.ports import Env
from penstock.records.batch import BatchHeader
from penstock.records.record import Record
from penstock.shares.state_port import SharePartitionId
from penstock.shares.state_requests import Initialize, StateAnswer, StateRequest
from penstock.shares.state_shard import (
    FlushSoon,
    Own,
    ShareShard,
    StateConfig,
    StateCounters,
    TrimLog,
)
from penstock.wire.errors import ErrorCode, KafkaError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What all shells of a coordinator use."""

    env: Env
    cluster: ClusterView
    replicas: Replicas
    config: StateConfig
    counters: StateCounters
    spawn: Callable[..., None]


class ShareStateShell(ShardShell[StateAnswer, str, Own]):
    def __init__(self, around: _Surroundings, hosted: HostedPartition) -> None:
        self._around = around
        self._is_trimming = False
        hosted.require_leader()
        self.shard = ShareShard(
            around.config, lambda: hosted.settings.max_message_bytes, around.counters
        )
        super().__init__(around.env, hosted, self.shard, around.config.append_timeout_ms)

    def ask(self, request: StateRequest) -> asyncio.Future[StateAnswer]:
        """Passes a request to the shard, and returns a future for its answer."""
        return self.put(lambda token: self.shard.ask(request, token, self.now()))

    def remove_topics(self, topic_ids: Collection[bytes]) -> None:
        self.step(lambda: self.shard.remove_topics(topic_ids, self.now()))

    async def load(self) -> None:
        await super().load()
        if self.loaded:
            self._around.spawn(self._remove_deleted())

    async def _remove_deleted(self) -> None:
        """Removes the states of topics that were deleted before this shard was loaded."""
        try:
            await self._around.cluster.catch_up()
        except EXPECTED_ERRORS as error:
            _log.warning(
                "%s: cannot check whether topics were deleted; their states are kept until the "
                "next coordinator has loaded: %s",
                self.partition_name,
                error,
            )
            return
        image = self._around.cluster.image
        topics = {share_partition.topic_id for share_partition in self.shard.states}
        gone = {topic_id for topic_id in topics if image.topic_by_id(topic_id) is None}
        if gone:
            _log.info(
                "%s: removing the states of share groups for %d deleted topics",
                self.partition_name,
                len(gone),
            )
            self.remove_topics(gone)

    # What the shell needs

    def replay(self, header: BatchHeader, records: Sequence[Record]) -> None:
        if not header.is_control:
            for record in records:
                self.shard.replay(LogRecord(record.key or b"", record.value), record.offset)

    def append(self, append: Append) -> Written:
        batch = bounded_batch_of(self.hosted, append.records, append.timestamp_ms)
        written = self.hosted.append_own(batch, self._env.clock.wall_ms())
        self.shard.on_appended(written.base_offset)
        return written

    def carry_out_own(self, effect: Own) -> None:
        if isinstance(effect, FlushSoon):
            asyncio.get_running_loop().call_soon(self._end_turn)
        elif not self._is_trimming:
            self._is_trimming = True
            self._around.spawn(self._trim(effect))

    def _end_turn(self) -> None:
        self.step(lambda: self.shard.on_turn_ended(self.now()))

    async def _trim(self, effect: TrimLog) -> None:
        """Deletes records that no coordinator needs any more. If that fails, the log stays longer
        until the next time."""

        def choose() -> int:
            # Another leader may not have committed as much as this one.
            if self.is_over:
                raise KafkaError(ErrorCode.NOT_COORDINATOR)
            return min(effect.offset, self.hosted.require_leader().high_watermark)

        around = self._around
        try:
            await trim_log(around.env.executor, around.replicas, self.hosted, choose)
        except EXPECTED_ERRORS as error:
            if not self.is_over:
                _log.warning("%s could not be trimmed: %s", self.partition_name, error)
        finally:
            self._is_trimming = False


class ShareCoordinator(LedShards[ShareStateShell]):
    """The shards of all partitions of `__share_group_state` that this broker leads."""

    def __init__(
        self,
        env: Env,
        broker_id: int,
        cluster: ClusterView,
        replicas: Replicas,
        config: StateConfig,
        spawn: Callable[..., None],
    ) -> None:
        super().__init__(env, SHARE_STATE_TOPIC, broker_id, cluster, spawn)
        self.counters = StateCounters()
        self._around = _Surroundings(env, cluster, replicas, config, self.counters, spawn)

    def make(self, hosted: HostedPartition) -> ShareStateShell:
        return ShareStateShell(self._around, hosted)

    def partition_for(self, share_partition: SharePartitionId) -> int:
        """Returns the partition of the topic. Raises `KafkaError` while there is no topic."""
        return self.index_of(share_key(share_partition))

    def ask(self, request: StateRequest) -> asyncio.Future[StateAnswer]:
        """Raises `KafkaError` if this broker does not coordinate the share partition, or its topic
        does not exist."""
        topic_id = request.share_partition.topic_id
        if isinstance(request, Initialize) and self._cluster.image.topic_by_id(topic_id) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self.require_at(self.partition_for(request.share_partition)).ask(request)

    def on_change(self, changed: Changed) -> None:
        """Removes the states of deleted topics."""
        gone = {
            change.before.topic_id
            for change in changed.topics
            if change.before is not None
            and (change.after is None or change.after.topic_id != change.before.topic_id)
        }
        if gone:
            for shell in self.loaded():
                shell.remove_topics(gone)
