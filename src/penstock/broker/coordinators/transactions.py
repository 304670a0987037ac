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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.coordinators.batches import batch_of
from penstock.broker.coordinators.markers import MarkerSender
from penstock.broker.coordinators.producer_ids import ProducerIds
from penstock.broker.coordinators.shard_shell import Shards, ShardShell
from penstock.broker.error_codes import EXPECTED, code_of
from penstock.broker.partitions.partition import HostedPartition, Written
from penstock.metadata.image import Changed
from penstock.metadata.keys import CLUSTER_KEY
from penstock.ports import Env
from penstock.records.batch import BatchHeader
from penstock.records.record import Record
from penstock.txns.config import TransactionConfig
from penstock.txns.effects import (
    AllocateProducerIds,
    Answer,
    Append,
    CancelTimer,
    Effect,
    Marker,
    Now,
    Reply,
    SendMarkers,
    SetTimer,
    TimerKey,
    Token,
    TopicPartition,
)
from penstock.txns.formats import TOPIC
from penstock.txns.hashing import partition_for_transactional_id
from penstock.txns.shard import TransactionShard
from penstock.wire.errors import ErrorCode, KafkaError

Step = Callable[[TransactionShard, Token, Now], list[Effect]]
_log = logging.getLogger(__name__)


class TransactionRuntime(ShardShell[Effect, TimerKey, Answer]):
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
        super().__init__(env, hosted)
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

    def now(self) -> Now:
        return Now(self.ticks_ms(), self.wall_ms())

    def ask(self, step: Step) -> asyncio.Future[Answer]:
        """Passes a request to the shard, and returns a future for its reply."""
        return self.put(lambda token: step(self.shard, token, self.now()))

    def on_partitions_gone(self, partitions: Collection[TopicPartition]) -> None:
        self.step(lambda: self.shard.on_partitions_gone(partitions, self.now()))

    # Calls to the shard

    def replay(self, header: BatchHeader, records: Iterable[Record]) -> None:
        if not header.is_control:
            for record in records:
                self.shard.replay(record.key, record.value)

    def on_loaded(self) -> Iterable[Effect]:
        return self.shard.on_loaded(self.now())

    def on_committed(self, append_id: int) -> Iterable[Effect]:
        return self.shard.on_committed(append_id, self.now())

    def on_append_failed(self, append_id: int, code: ErrorCode) -> Iterable[Effect]:
        return self.shard.on_append_failed(append_id, code, self.now())

    def on_append_late(self, append_id: int) -> Iterable[Effect]:
        return self.shard.on_append_late(append_id)

    def on_timer(self, key: TimerKey) -> Iterable[Effect]:
        return self.shard.on_timer(key, self.now())

    def on_unload(self, code: ErrorCode) -> Iterable[Effect]:
        return self.shard.unload(code)

    def take_effects(self) -> Sequence[Effect]:
        return self.shard.core.take_effects()

    def carry_out_one(self, effect: Effect) -> None:
        if isinstance(effect, Reply):
            self.reply(effect.token, effect.answer)
        elif isinstance(effect, Append):
            self.append(effect.append_id, effect.records, effect.timestamp_ms, self._write)
        elif isinstance(effect, SetTimer):
            self.set_timer(effect.key, effect.at_ms)
        elif isinstance(effect, CancelTimer):
            self.cancel_timer(effect.key)
        elif isinstance(effect, SendMarkers):
            # Markers are sent after the answer to the client that ended the transaction. The answer
            # passes through several callbacks before it is written, and writing markers takes
            # longer.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, loop.call_soon, self._send_markers, effect)
        elif isinstance(effect, AllocateProducerIds):
            self._spawn(self._allocate(effect))

    def _send_markers(self, effect: SendMarkers) -> None:
        if not self.is_over:
            tell = partial(self._on_markers, effect.transactional_id, effect.marker)
            self._markers.send(effect.marker, effect.partitions, tell)

    def _write(self, records: Sequence[Record]) -> Written:
        # No size limit here: a transaction that cannot be ended would block its partitions forever.
        # `txns.adding` bounds how large it can grow.
        return self.hosted.append_own(batch_of(self.hosted, records), self.wall_ms())

    async def _allocate(self, effect: AllocateProducerIds) -> None:
        try:
            ids = [await self._producer_ids.next() for _ in range(effect.count)]
        except Exception as error:  # noqa: BLE001 - the waiting requests are answered
            if not isinstance(error, EXPECTED):
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


class TransactionCoordinator(Shards[TransactionRuntime]):
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

    def make(self, hosted: HostedPartition) -> TransactionRuntime:
        return TransactionRuntime(
            self._env,
            hosted,
            self._config,
            self._cluster,
            self._producer_ids,
            self._markers,
            self._spawn,
        )

    def index_of(self, name: str) -> int:
        topic = self._cluster.image.topics.get(TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return partition_for_transactional_id(name, len(topic.partitions))

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
            for runtime in self.loaded():
                runtime.on_partitions_gone(gone)
