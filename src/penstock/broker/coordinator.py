"""The groups whose partition of `__consumer_offsets` this broker leads.

`groups.GroupShard` decides; here its effects are carried out: records are appended and the shard is
told when they are committed, replies go to whoever waits, timers run. A shard is made by replaying
its partition from the start when this broker begins to lead it, and dropped when it stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from penstock.broker.creation import OFFSETS_TOPIC
from penstock.broker.failures import EXPECTED, code_of
from penstock.broker.hosted import HostedPartition
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
)
from penstock.groups.hashing import partition_for_group
from penstock.groups.shard import GroupShard
from penstock.metadata.image import Changed, ClusterImage
from penstock.ports import Env
from penstock.records.batch import iter_batches
from penstock.records.record import Record, build_batch, read_records
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages.base import Response

_LOAD_BYTES = 4 << 20
_log = logging.getLogger(__name__)

Step = Callable[[GroupShard, Token, Now], list[Effect]]


class _Fate:
    """What became of an append."""

    __slots__ = ("append_id", "code", "is_known")

    def __init__(self, append_id: int) -> None:
        self.append_id = append_id
        self.code: ErrorCode | None = None
        self.is_known = False


class ShardRuntime:
    """One shard with its partition, its timers and the requests that wait for it."""

    def __init__(self, env: Env, hosted: HostedPartition, config: GroupConfig) -> None:
        self._env = env
        self.hosted = hosted
        self.shard = GroupShard(
            config,
            partial(_new_member_id, env),
            lambda: hosted.settings.max_message_bytes,
        )
        self.loaded = False
        self._timers: dict[TimerKey, asyncio.TimerHandle] = {}
        self._waiting: dict[Token, asyncio.Future[Response]] = {}
        self._next_token = 0
        self._fates: deque[_Fate] = deque()

    def now(self) -> Now:
        clock = self._env.clock
        return Now(int(clock.monotonic() * 1000), clock.wall_ms())

    async def load(self) -> None:
        """Replay the partition; in pieces, so that the loop is never held for long."""
        log = self.hosted.log
        offset, end = log.log_start_offset, log.end_offset
        while offset < end:
            piece = log.read(offset, _LOAD_BYTES, end)
            if piece is None:
                break
            for position, header in iter_batches(piece.data):
                offset = header.next_offset
                if header.is_control:
                    continue
                for record in read_records(piece.data[position : position + header.size], header):
                    self.shard.replay(record.key, record.value)
            await asyncio.sleep(0)
        self.loaded = True
        self.carry_out(self.shard.on_loaded(self.now()))

    def ask(self, step: Step) -> asyncio.Future[Response]:
        """Put a request to the shard; the future is its reply."""
        token = self._next_token = self._next_token + 1
        reply: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[token] = reply
        self.carry_out(step(self.shard, token, self.now()))
        return reply

    def carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                reply = self._waiting.pop(effect.token, None)
                if reply is not None and not reply.done():
                    reply.set_result(effect.response)
            elif isinstance(effect, Append):
                self._append(effect)
            elif isinstance(effect, SetTimer):
                self._set_timer(effect)
            elif isinstance(effect, CancelTimer):
                self._cancel_timer(effect.key)

    def _append(self, effect: Append) -> None:
        records = [
            Record(offset, effect.timestamp_ms, record.key, record.value)
            for offset, record in enumerate(effect.records)
        ]
        fate = _Fate(effect.append_id)
        self._fates.append(fate)
        try:
            written = self.hosted.append_own(build_batch(records), self._env.clock.wall_ms())
        except EXPECTED as error:
            self._settle(fate, code_of(error))
            return
        if self.hosted.when_committed(written.end_offset, partial(self._settle, fate)):
            self._settle(fate, None)

    def _settle(self, fate: _Fate, code: ErrorCode | None) -> None:
        """An append was committed, or failed with a code.

        The shard wants to hear of them in the order they were made: one that failed at once has to
        wait for those before it that are on their way to disk. After `unload` nobody wants to.
        """
        fate.code, fate.is_known = code, True
        while self._fates and self._fates[0].is_known:
            first = self._fates.popleft()
            if first.code is None:
                self.carry_out(self.shard.on_committed(first.append_id, self.now()))
            else:
                self.carry_out(self.shard.on_append_failed(first.append_id, first.code, self.now()))

    def _set_timer(self, effect: SetTimer) -> None:
        self._cancel_timer(effect.key)
        wait_s = max(0.0, effect.at_ms / 1000 - self._env.clock.monotonic())
        self._timers[effect.key] = asyncio.get_running_loop().call_later(
            wait_s, self._on_timer, effect.key
        )

    def _cancel_timer(self, key: TimerKey) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _on_timer(self, key: TimerKey) -> None:
        self._timers.pop(key, None)
        self.carry_out(self.shard.on_timer(key, self.now()))

    def unload(self) -> None:
        self._fates.clear()
        self.carry_out(self.shard.unload(ErrorCode.NOT_COORDINATOR))
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()


class GroupCoordinator:
    def __init__(
        self,
        env: Env,
        image: ClusterImage,
        config: GroupConfig,
        spawn: Callable[..., None],
    ) -> None:
        self._env = env
        self._image = image
        self._config = config
        self._spawn = spawn
        self._shards: dict[int, ShardRuntime] = {}

    def on_leading(self, hosted: HostedPartition) -> None:
        if hosted.topic == OFFSETS_TOPIC:
            self.on_resigned(hosted)
            runtime = self._shards[hosted.index] = ShardRuntime(self._env, hosted, self._config)
            self._spawn(self._load(runtime))

    def on_resigned(self, hosted: HostedPartition) -> None:
        if hosted.topic == OFFSETS_TOPIC:
            runtime = self._shards.pop(hosted.index, None)
            if runtime is not None:
                runtime.unload()

    async def _load(self, runtime: ShardRuntime) -> None:
        try:
            await runtime.load()
        except EXPECTED as error:
            _log.error(
                "groups of %s-%d could not be loaded: %s",
                runtime.hosted.topic,
                runtime.hosted.index,
                error,
            )

    def index_of(self, group_id: str) -> int:
        topic = self._image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return partition_for_group(group_id, len(topic.partitions))

    def require(self, group_id: str) -> ShardRuntime:
        """The shard of a group, or the code that sends its client to ask again."""
        runtime = self._shards.get(self.index_of(group_id))
        if runtime is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if not runtime.loaded:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return runtime

    def ask(self, group_id: str, step: Step) -> asyncio.Future[Response]:
        return self.require(group_id).ask(step)

    def loaded(self) -> list[ShardRuntime]:
        return [runtime for runtime in self._shards.values() if runtime.loaded]

    def is_loading(self) -> bool:
        return any(not runtime.loaded for runtime in self._shards.values())

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
