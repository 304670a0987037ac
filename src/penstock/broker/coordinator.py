"""The groups whose partition of `__consumer_offsets` this broker leads.

`groups.GroupShard` decides; `shard_shell` is what carries its effects out. Here is what only groups
have: offsets committed in transactions, as batches of their producers, and the markers that end
them. A marker is written through the shard's shell, so that the shard hears of it in its place
among the appends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from penstock.broker.creation import OFFSETS_TOPIC
from penstock.broker.hosted import HostedPartition, Written
from penstock.broker.shard_shell import Shards, ShardShell
from penstock.broker.txn_appends import append_in_transaction, append_marker
from penstock.groups.config import GroupConfig
from penstock.groups.effects import (
    Append,
    CancelTimer,
    Effect,
    Now,
    Reply,
    SetTimer,
    TimerKey,
    Token,
    TransactionalProducer,
)
from penstock.groups.hashing import partition_for_group
from penstock.groups.image import NO_PRODUCER
from penstock.groups.shard import GroupShard
from penstock.metadata.image import Changed, ClusterImage
from penstock.partition.producers import Verification
from penstock.ports import Env
from penstock.records.batch import BatchHeader
from penstock.records.record import ControlType, Record, build_batch, read_control
from penstock.txns.effects import Marker
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages.base import Response

Step = Callable[[GroupShard, Token, Now], list[Effect]]


class ShardRuntime(ShardShell[Effect, TimerKey, Response]):
    def __init__(self, env: Env, hosted: HostedPartition, config: GroupConfig) -> None:
        super().__init__(env, hosted, config.append_timeout_ms)
        self.shard = GroupShard(
            config,
            partial(_new_member_id, env),
            lambda: hosted.settings.max_message_bytes,
        )

    def now(self) -> Now:
        return Now(self.ticks_ms(), self.wall_ms())

    def ask(self, step: Step) -> asyncio.Future[Response]:
        """Put a request to the shard; the future is its reply."""
        return self.put(lambda token: step(self.shard, token, self.now()))

    def write_marker(self, marker: Marker, tell: Callable[[ErrorCode], None]) -> None:
        """End a transaction's offset commits; `tell` is called when that is committed, or why not.

        Only once the partition is loaded: what is written before that the shard would not hear of.
        """

        def end(code: ErrorCode | None) -> None:
            if code is None:
                self.carry_out(self.shard.on_marker(marker.producer_id, committed=marker.committed))
            tell(ErrorCode.NONE if code is None else code)

        self.write(
            lambda: append_marker(self.hosted, marker, self.wall_ms()),
            end,
            lambda: tell(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        )

    # The shard's side

    def replay(self, header: BatchHeader, records: Iterable[Record]) -> None:
        if header.is_control:
            for record in records:
                committed = read_control(record).type == ControlType.COMMIT
                self.shard.replay_marker(header.producer_id, committed=committed)
            return
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER
        for record in records:
            self.shard.replay(record.key, record.value, producer_id)

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

    def carry_out_one(self, effect: Effect) -> None:
        if isinstance(effect, Reply):
            self.reply(effect.token, effect.response)
        elif isinstance(effect, Append):
            write = partial(self._write, effect.producer)
            self.append(effect.append_id, effect.records, effect.timestamp_ms, write)
        elif isinstance(effect, SetTimer):
            self.set_timer(effect.key, effect.at_ms)
        elif isinstance(effect, CancelTimer):
            self.cancel_timer(effect.key)

    def _write(self, producer: TransactionalProducer | None, records: Sequence[Record]) -> Written:
        if producer is None:
            return self.hosted.append_own(build_batch(records), self.wall_ms())
        batch = build_batch(
            records,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transactional=True,
        )
        verification = Verification(producer.guard)
        return append_in_transaction(self.hosted, batch, verification, self.wall_ms())


class GroupCoordinator(Shards[ShardRuntime]):
    def __init__(
        self,
        env: Env,
        image: ClusterImage,
        config: GroupConfig,
        spawn: Callable[..., None],
    ) -> None:
        super().__init__(OFFSETS_TOPIC, spawn)
        self._env = env
        self._image = image
        self._config = config

    def make(self, hosted: HostedPartition) -> ShardRuntime:
        return ShardRuntime(self._env, hosted, self._config)

    def index_of(self, name: str) -> int:
        topic = self._image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return partition_for_group(name, len(topic.partitions))

    def ask(self, group_id: str, step: Step) -> asyncio.Future[Response]:
        return self.require(group_id).ask(step)

    def on_change(self, changed: Changed) -> None:
        """Topics were deleted: so are the offsets that groups committed for them."""
        gone = [change.name for change in changed.topics if change.after is None]
        if not gone:
            return
        for runtime in self.loaded():
            runtime.carry_out(runtime.shard.forget_topics(gone, runtime.now()))


def _new_member_id(env: Env, prefix: str) -> str:
    digits = env.random.bytes(16).hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return f"{prefix}-{'-'.join(parts)}"
