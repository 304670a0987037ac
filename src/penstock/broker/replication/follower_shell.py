"""Carries out a follower's decisions on the log of its partition.

Appends are written at once. An effect that truncates the log (`Truncate`, `StartAt`,
`AdvanceLogStart`) must not run during a flush, so it may have to wait. `carry_out` does what can be
done now and returns the rest, and `change_log` does the rest once it has exclusive access to the
log. By then the partition may have another role. Then the remaining effects are dropped: a broker
that has become the leader must not truncate its log for an earlier leader. Truncation itself is
short (a few small synced writes and renames) and runs on the event loop, which owns the log's
state. Deleting whole files takes longer and runs on a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.partition.follower import (
    AdvanceHighWatermark,
    AdvanceLogStart,
    Append,
    Effect,
    Fetch,
    FetchAnswer,
    Follower,
    Halt,
    StartAt,
    Truncate,
)
from penstock.ports import Buffer, Env
from penstock.records.batch import CorruptBatch
from penstock.storage.errors import LogOffline, StorageError
from penstock.storage.flusher import Flusher
from penstock.storage.log import Log

_log = logging.getLogger(__name__)


def is_damaged(log: Log) -> bool:
    """Returns whether the log lacks records that were safe before.

    Such a log must not count as a copy of the leader's log, so it does not fetch until
    `replica_repair` has dropped the damaged part."""
    return any(held.end_offset > log.log_start_offset for held in log.damage)


class FollowerShell:
    """Runs the follower machine of one partition, for one leader epoch."""

    __slots__ = ("_env", "_flusher", "_monotonic_ms", "follower", "hosted")

    def __init__(
        self,
        hosted: HostedPartition,
        follower: Follower,
        flusher: Flusher,
        env: Env,
        monotonic_ms: Callable[[], int],
    ) -> None:
        self.hosted = hosted
        self.follower = follower
        self._flusher = flusher
        self._env = env
        self._monotonic_ms = monotonic_ms

    def __str__(self) -> str:
        return f"{self.hosted.topic}-{self.hosted.index}"

    @property
    def is_current(self) -> bool:
        return self.hosted.follower is self.follower

    @property
    def waits_for_flush(self) -> bool:
        """Whether some records of the log do not count yet, because they are not synced."""
        return self.hosted.machine.counted_end < self.hosted.log.end_offset

    def request_flush(self) -> None:
        self._flusher.request(self.hosted.log)

    # Asking the machine

    def next_fetch(self) -> Fetch | None:
        log = self.hosted.log
        if not self.is_current or log.failure is not None or is_damaged(log):
            return None
        if log.lacks_space:
            # A fetch at the end of the leader's log would put this replica into the ISR, but it
            # could not store the next record. `disk_full` resumes when there is space.
            return None
        return self.follower.next_fetch(self.hosted.log_view(), self._monotonic_ms())

    def on_answer(self, fetch: Fetch, answer: FetchAnswer) -> tuple[Effect, ...]:
        if not self.is_current:
            return ()
        return self.follower.on_answer(fetch, answer, self.hosted.log_view(), self._monotonic_ms())

    def on_lost(self, fetch: Fetch) -> tuple[Effect, ...]:
        return self.follower.on_lost(fetch, self._monotonic_ms()) if self.is_current else ()

    def on_bounds(self, bounds: tuple[int, int] | None) -> tuple[Effect, ...]:
        """The leader has answered where its log starts and ends; None if it did not answer."""
        if not self.is_current:
            return ()
        if bounds is None:
            return self.follower.on_bounds_lost(self._monotonic_ms())
        return self.follower.on_bounds(*bounds, self.hosted.log_view(), self._monotonic_ms())

    # Carrying out

    def carry_out(self, effects: Sequence[Effect], records: Buffer) -> Sequence[Effect]:
        """Carries out the effects in order, up to the first that needs exclusive access to the log.

        Returns the remaining effects."""
        if not self.is_current:
            return ()
        replicated = False
        for number, effect in enumerate(effects):
            match effect:
                case Truncate() | StartAt() | AdvanceLogStart():
                    return effects[number:]
                case Append(_, size):
                    try:
                        log = self.hosted.log
                        log.append_replica(memoryview(records)[:size], self._env.clock.wall_ms())
                    except (StorageError, CorruptBatch) as error:
                        return self._failed(error)
                    self.hosted.fetched_bytes += size
                    replicated = True
                    if self.waits_for_flush:
                        self.request_flush()
                case AdvanceHighWatermark():
                    replicated = True
                case Halt(reason):
                    _log.error(
                        "%s: this replica stopped fetching from its leader: %s", self, reason
                    )
        if replicated:
            self.hosted.on_replicated()
        return ()

    async def change_log(self, effects: Sequence[Effect], records: Buffer) -> Sequence[Effect]:
        """Carries out the effects that `carry_out` returned. Returns new effects that result from
        a failure, such as a retry."""
        rest = effects
        while rest:
            try:
                async with self._flusher.exclusive(self.hosted.log):
                    if not self.is_current:
                        return ()
                    self._cut(rest[0])
            except StorageError as error:
                return self._failed(error)
            await self._free_space()
            rest = self.carry_out(rest[1:], records)
        if self.is_current:
            self.hosted.on_replicated()
        return ()

    def _cut(self, effect: Effect) -> None:
        log, leader = self.hosted.log, self.follower.leader
        end = log.end_offset
        match effect:
            case Truncate(offset, loses_committed):
                log.truncate_to(offset)
                _log.log(
                    logging.ERROR if loses_committed else logging.INFO,
                    "%s: truncated the log from %d to %d, where it diverges from leader %d's%s",
                    self,
                    end,
                    log.end_offset,
                    leader,
                    "; committed records are lost" if loses_committed else "",
                )
            case StartAt(offset, loses_committed):
                log.start_at(offset)
                self.follower.on_restarted(offset)
                _log.log(
                    logging.ERROR if loses_committed else logging.INFO,
                    "%s: dropped the log, which ended at %d, and restarted it at %d: leader %d has "
                    "none of it%s",
                    self,
                    end,
                    offset,
                    leader,
                    "; committed records are lost" if loses_committed else "",
                )
            case AdvanceLogStart(offset):
                log.delete_before(min(offset, log.end_offset))
            case _:
                raise AssertionError(f"{effect} does not truncate the log")

    async def _free_space(self) -> None:
        """Deletes files that are no longer used. If that fails, the next start deletes them."""
        try:
            await self._env.executor.run(self.hosted.log.purge)
        except StorageError as error:
            _log.warning("%s: %s", self, error)

    def _failed(self, error: StorageError | CorruptBatch) -> Sequence[Effect]:
        if not self.is_current:
            return ()
        if isinstance(error, LogOffline) or self.hosted.log.failure is not None:
            _log.error("%s: this replica stopped fetching from its leader: %s", self, error)
            # The flusher notifies everything that depends on the log.
            self._flusher.request(self.hosted.log)
            return (Halt(str(error)),)
        _log.warning("%s: could not store the leader's records, retrying: %s", self, error)
        return self.follower.on_failed(str(error), self.hosted.log_view(), self._monotonic_ms())
