"""Runs a coordinator's shard: the part that group and transaction coordinators have in common.

A shard (`groups.shard`, `txns.shard`) decides, and its shell carries out the effects. The shell
appends records and notifies the shard when they are committed (`shard_writes`), sends replies to
waiting requests, and runs timers (`shard_timers`). A shell is created, and its partition replayed
from the start (`shard_replay`), when this broker begins to lead the partition. It is dropped when
the leadership ends, and the shard's `unload` sends all clients to the next coordinator.

An unexpected exception is a bug in Penstock. If it is raised before the shard has decided anything,
only the request that caused it fails. In any other case the shard's memory may be wrong, while its
log is right: every waiting request is answered with NOT_COORDINATOR, the shard is dropped, and a
new one is loaded from the log under the same leadership (`break_off`).
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Generic

from penstock.broker.coordinators.shard_replay import replay_log
from penstock.broker.coordinators.shard_timers import ShardTimers, ticks_ms
from penstock.broker.coordinators.shard_writes import ShardWrites
from penstock.broker.partitions.hosted_partition import HostedPartition, Written
from penstock.coordination.effects import (
    Answer,
    Append,
    CancelTimer,
    Effect,
    Key,
    Now,
    Own,
    Reply,
    SetTimer,
    Token,
)
from penstock.coordination.shard import Shard
from penstock.ports import Env
from penstock.records.batch import BatchHeader
from penstock.records.record import Record
from penstock.wire.errors import ErrorCode, KafkaError

_APPEND_TIMEOUT_MS = 5_000
_log = logging.getLogger(__name__)


def _nothing() -> None:
    """Does nothing, until a callback is set."""


class ShardShell(ABC, Generic[Answer, Key, Own]):
    """One shard with its partition, its timers and the requests that wait for it."""

    def __init__(
        self,
        env: Env,
        hosted: HostedPartition,
        shard: Shard[Answer, Key, Own],
        append_timeout_ms: int = _APPEND_TIMEOUT_MS,
    ) -> None:
        self._env = env
        self._shard = shard
        self.hosted = hosted
        self.loaded = False
        self.is_over = False
        self.timers: ShardTimers[Key] = ShardTimers(env.clock, self._on_timer)
        self.writes = ShardWrites(env.clock, hosted, append_timeout_ms, self.break_off)
        self._waiting: dict[Token, asyncio.Future[Answer]] = {}
        self._next_token = 0
        self._due: deque[Effect[Answer, Key, Own]] = deque()
        self._is_busy = False
        self.on_broken: Callable[[], None] = _nothing
        """Called once by `break_off`, after all waiting requests have been answered."""

    # What each coordinator adds

    @abstractmethod
    def replay(self, header: BatchHeader, records: Sequence[Record]) -> None:
        """Replays the records of one batch in the shard."""

    @abstractmethod
    def append(self, append: Append) -> Written:
        """Appends the records to the partition, as one batch."""

    @abstractmethod
    def carry_out_own(self, effect: Own) -> None:
        """Carries out an effect that only this coordinator has."""

    # Loading and unloading

    def now(self) -> Now:
        clock = self._env.clock
        return Now(ticks_ms(clock), clock.wall_ms())

    async def load(self) -> None:
        if await replay_log(self._env, self.hosted, self.replay, lambda: self.is_over):
            self.loaded = True
            self.carry_out(self._shard.on_loaded(self.now()))

    def unload(self) -> None:
        """Ends the shard. Every waiting request is answered, whatever fails on the way."""
        self.is_over = True
        self._due.clear()
        self.writes.abandon_all()
        try:
            for effect in self._shard.unload(ErrorCode.NOT_COORDINATOR):
                self.carry_out_one(effect)
        except Exception:  # noqa: BLE001 - the other requests must be answered
            _log.exception(
                "the coordinator of %s failed while it was being unloaded", self.partition_name
            )
        self.timers.cancel_all()
        waiting, self._waiting = self._waiting, {}
        for reply in waiting.values():
            if not reply.done():
                reply.set_exception(KafkaError(ErrorCode.NOT_COORDINATOR))

    def break_off(self, error: Exception) -> None:
        """Drops the shard after an unexpected exception and requests a new one."""
        if self.is_over:
            _log.error(
                "the coordinator of %s failed after it was unloaded",
                self.partition_name,
                exc_info=error,
            )
            return
        _log.error(
            "the coordinator of %s failed; its clients must retry, and it is loaded again from "
            "its log",
            self.partition_name,
            exc_info=error,
        )
        self.unload()
        self.on_broken()

    @property
    def partition_name(self) -> str:
        return f"{self.hosted.topic}-{self.hosted.index}"

    # Calls to the shard

    def put(
        self, decide: Callable[[Token], Iterable[Effect[Answer, Key, Own]]]
    ) -> asyncio.Future[Answer]:
        """Passes a request to the shard under a new token, and returns a future for its reply.

        If the shard raises, this raises too. If the shard had already decided on effects by then,
        they cannot be taken back, and the shard is dropped (`break_off`).
        """
        token = self._next_token = self._next_token + 1
        reply: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[token] = reply
        try:
            effects = decide(token)
        except Exception as error:
            self._waiting.pop(token)
            if self._shard.take_effects():
                self.break_off(error)
            raise
        self.step(lambda: effects)
        return reply

    def step(self, decide: Callable[[], Iterable[Effect[Answer, Key, Own]]]) -> None:
        """Lets the shard decide and carries out the effects. If that raises, drops the shard."""
        if self.is_over:
            return
        try:
            self.carry_out(decide())
        except Exception as error:  # noqa: BLE001 - logged; every waiting request is answered
            self.break_off(error)

    def _on_timer(self, key: Key) -> None:
        self.step(lambda: self._shard.on_timer(key, self.now()))

    def _on_outcome(self, append_id: int, code: ErrorCode | None) -> None:
        if code is None:
            self.step(lambda: self._shard.on_committed(append_id, self.now()))
        else:
            self.step(lambda: self._shard.on_append_failed(append_id, code, self.now()))

    def _on_late(self, append_id: int) -> None:
        self.step(lambda: self._shard.on_append_late(append_id))

    # Effects

    def carry_out(self, effects: Iterable[Effect[Answer, Key, Own]]) -> None:
        """Carries out effects in order. Effects that result from these are carried out after
        them."""
        self._due.extend(effects)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._due:
                self.carry_out_one(self._due.popleft())
        finally:
            self._is_busy = False

    def carry_out_one(self, effect: Effect[Answer, Key, Own]) -> None:
        if isinstance(effect, Reply):
            reply = self._waiting.pop(effect.token, None)
            if reply is not None and not reply.done():
                reply.set_result(effect.answer)
        elif isinstance(effect, Append):
            self.writes.write(
                partial(self.append, effect),
                partial(self._on_outcome, effect.append_id),
                on_late=partial(self._on_late, effect.append_id),
            )
        elif isinstance(effect, SetTimer):
            self.timers.set(effect.key, effect.at_ms)
        elif isinstance(effect, CancelTimer):
            self.timers.cancel(effect.key)
        else:
            self.carry_out_own(effect)
