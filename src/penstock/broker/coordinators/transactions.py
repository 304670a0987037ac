"""The transaction coordinator: one shard per partition of `__transaction_state` led by this broker.

`txns.TransactionShard` decides, and `shard_shell` carries out its effects. This module adds what
only transactions need: producer ids from the cluster, and markers for the partitions that a
transaction wrote to. If a partition's topic is missing from this broker's image, the partition is
given up only after a fresh read of the store confirms that it does not exist. The image may simply
be older than the transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.coordinators.batches import batch_of
from penstock.broker.coordinators.led_shards import LedShards
from penstock.broker.coordinators.markers import MarkerSender
from penstock.broker.coordinators.producer_ids import ProducerIds
from penstock.broker.coordinators.shard_shell import ShardShell
from penstock.broker.error_codes import EXPECTED_ERRORS, code_of
from penstock.broker.partitions.hosted_partition import HostedPartition, Written
from penstock.coordination.effects import Append, Now, Token
from penstock.metadata.image import Changed
from penstock.metadata.keys import CLUSTER_KEY
from penstock.ports import Env
from penstock.records.batch import BatchHeader
from penstock.records.record import Record
from penstock.topic_partition import TopicPartition
from penstock.txns.config import TransactionConfig
from penstock.txns.effects import AllocateProducerIds, Answer, Effect, Marker, SendMarkers, TimerKey
from penstock.txns.formats import TOPIC
from penstock.txns.shard import TransactionShard
from penstock.wire.errors import ErrorCode

Step = Callable[[TransactionShard, Token, Now], list[Effect]]
_log = logging.getLogger(__name__)


class TransactionShell(ShardShell[Answer, TimerKey, AllocateProducerIds | SendMarkers]):
    """One shard. Its coordinator epoch is the leader epoch that this broker leads the partition
    in."""

    def __init__(
        self,
        env: Env,
        hosted: HostedPartition,
        config: TransactionConfig,
        cluster: ClusterView,
        producer_ids: ProducerIds,
        markers: MarkerSender,
        spawn: Callable[..., None],
    ) -> None:
        self._cluster = cluster
        self._producer_ids = producer_ids
        self._markers = markers
        self._spawn = spawn
        self._is_asking_store = False
        self.shard = TransactionShard(
            config,
            hosted.require_leader().epoch,
            lambda: hosted.settings.max_message_bytes,
        )
        super().__init__(env, hosted, self.shard)

    def ask(self, step: Step) -> asyncio.Future[Answer]:
        """Passes a request to the shard, and returns a future for its reply."""
        return self.put(lambda token: step(self.shard, token, self.now()))

    def on_partitions_gone(self, partitions: Collection[TopicPartition]) -> None:
        self.step(lambda: self.shard.on_partitions_gone(partitions, self.now()))

    # What the shell needs

    def replay(self, header: BatchHeader, records: Sequence[Record]) -> None:
        if not header.is_control:
            for record in records:
                self.shard.replay(record.key, record.value)

    def append(self, append: Append) -> Written:
        # No size limit here: a transaction that cannot be ended would block its partitions forever.
        # `txns.adding` bounds how large it can grow.
        batch = batch_of(self.hosted, append.records, append.timestamp_ms)
        return self.hosted.append_own(batch, self._env.clock.wall_ms())

    def carry_out_own(self, effect: AllocateProducerIds | SendMarkers) -> None:
        if isinstance(effect, SendMarkers):
            # Markers are sent after the answer to the client that ended the transaction. The answer
            # passes through several callbacks before it is written, and writing markers takes
            # longer.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, loop.call_soon, self._send_markers, effect)
        else:
            self._spawn(self._allocate(effect))

    def _send_markers(self, effect: SendMarkers) -> None:
        if not self.is_over:
            tell = partial(self._on_markers, effect.transactional_id, effect.marker)
            self._markers.send(effect.marker, effect.partitions, tell)

    async def _allocate(self, effect: AllocateProducerIds) -> None:
        try:
            ids = [await self._producer_ids.next() for _ in range(effect.count)]
        except Exception as error:  # noqa: BLE001 - the waiting requests are answered
            if not isinstance(error, EXPECTED_ERRORS):
                _log.exception("cannot allocate producer ids")
            code = code_of(error)
            self.step(lambda: self.shard.on_no_producer_ids(effect.allocation_id, code, self.now()))
        else:
            self.step(lambda: self.shard.on_producer_ids(effect.allocation_id, ids, self.now()))

    def _on_markers(
        self, transactional_id: str, marker: Marker, answers: Mapping[TopicPartition, ErrorCode]
    ) -> None:
        if self.is_over:
            return
        self.step(lambda: self.shard.on_markers(transactional_id, marker, answers, self.now()))
        unknown = [where for where in answers if self._cluster.image.partition(*where) is None]
        if unknown and not self._is_asking_store:
            self._is_asking_store = True
            self._spawn(self._ask_store(unknown))

    async def _ask_store(self, unknown: list[TopicPartition]) -> None:
        """Finds out whether partitions are really deleted. If that fails, the next attempt asks
        again."""
        try:
            _, revision = await self._env.store.range(CLUSTER_KEY)
            await self._cluster.wait_for(revision)
        except Exception as error:  # noqa: BLE001 - logged; the next attempt asks again
            _log.warning("cannot check whether %s still exist, retrying: %r", unknown, error)
        else:
            image = self._cluster.image
            self.on_partitions_gone([where for where in unknown if image.partition(*where) is None])
        finally:
            self._is_asking_store = False


class TransactionCoordinator(LedShards[TransactionShell]):
    def __init__(
        self,
        env: Env,
        broker_id: int,
        cluster: ClusterView,
        config: TransactionConfig,
        producer_ids: ProducerIds,
        markers: MarkerSender,
        spawn: Callable[..., None],
    ) -> None:
        super().__init__(env, TOPIC, broker_id, cluster, spawn)
        self._config = config
        self._producer_ids = producer_ids
        self._markers = markers

    def make(self, hosted: HostedPartition) -> TransactionShell:
        return TransactionShell(
            self._env,
            hosted,
            self._config,
            self._cluster,
            self._producer_ids,
            self._markers,
            self._spawn,
        )

    def ask(self, transactional_id: str, step: Step) -> asyncio.Future[Answer]:
        return self.require(transactional_id).ask(step)

    def on_change(self, changed: Changed) -> None:
        """Gives up the partitions of deleted topics: they need no markers."""
        gone = [
            TopicPartition(change.name, index)
            for change in changed.topics
            if change.before is not None
            and (change.after is None or change.after.topic_id != change.before.topic_id)
            for index in range(len(change.before.partitions))
        ]
        if gone:
            for shell in self.loaded():
                shell.on_partitions_gone(gone)
