"""Periodic work on logs: retention, compaction, flush policies, expiry of producer state.

Each round visits every log, whether this broker leads or follows it. Every replica deletes and
compacts its own log, below the high watermark that it knows. Retention and compaction have their
own intervals. While one of them changes a log's files, flushes of that log wait
(`flusher.exclusive`).

An exception from retention or compaction affects only the log that raised it. It is logged and
counted, and that work is paused for this log: for `PAUSE_S` at first, and twice as long after each
further failure, until it succeeds again. The pause ends early if the topic's settings change. The
broker and all other logs continue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from penstock.broker.counters import BrokerCounters
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.replicas import Replicas
from penstock.metadata.configs import BrokerConfigs, TopicSettings
from penstock.ports import Env
from penstock.storage.cleaner import CleanTask, begin_clean
from penstock.storage.directory import LogDirectory
from penstock.storage.retain import apply_retention

PAUSE_S: Final = 10.0
PAUSE_MAX_S: Final = 3600.0
"""How long retention or compaction of a log is paused after a failure, at first and at most."""
_TICK_S: Final = 1.0
_RETENTION: Final = "retention"
_COMPACTION: Final = "compaction"
_log = logging.getLogger(__name__)

_Work = Callable[[HostedPartition], Awaitable[None]]
_Key = tuple[bytes, int, str]
"""Topic id, partition, and the kind of work."""


@dataclass(slots=True)
class _Pause:
    """Pauses work on a log until a time, or until its settings change."""

    until: float
    pause_s: float
    settings: TopicSettings


class Maintenance:
    def __init__(
        self,
        env: Env,
        directory: LogDirectory,
        replicas: Replicas,
        counters: BrokerCounters,
        configs: Callable[[], BrokerConfigs],
    ) -> None:
        self._env = env
        self._directory = directory
        self._replicas = replicas
        self._counters = counters
        self._configs = configs
        self._retained_at = env.clock.monotonic()
        self._cleaned_at = self._retained_at
        self._pauses: dict[_Key, _Pause] = {}
        self._undecodable: dict[tuple[bytes, int], int] = {}
        """The number of batches that cannot be decoded, per log, as of its last compaction."""

    async def run(self) -> None:
        """Does the periodic work until cancelled."""
        clock = self._env.clock
        while True:
            await clock.sleep(_TICK_S)
            now = clock.monotonic()
            configs = self._configs()
            await self._flush_due()
            self._directory.space.check()
            self._directory.space.take_ballast()
            retention_s = configs.int_value("log.retention.check.interval.ms") / 1000
            if now - self._retained_at >= retention_s:
                self._retained_at = now
                await self._each(_RETENTION, self._retain)
            cleaner_rests_s = configs.int_value("log.cleaner.backoff.ms") / 1000
            if (
                configs.bool_value("log.cleaner.enable")
                and now - self._cleaned_at >= cleaner_rests_s
            ):
                self._cleaned_at = now
                await self._each(_COMPACTION, self._clean)

    async def _each(self, kind: str, work: _Work) -> None:
        now = self._env.clock.monotonic()
        keys = set()
        for hosted in self._replicas:
            key = hosted.topic_id, hosted.index, kind
            keys.add(key)
            if hosted.log.failure is not None:
                continue
            pause = self._pauses.get(key)
            if pause is not None and now < pause.until and pause.settings is hosted.settings:
                continue
            try:
                await work(hosted)
            except Exception as error:  # noqa: BLE001 - a failing log must not stop the others
                self._put_off(key, hosted, error)
            else:
                if self._pauses.pop(key, None) is not None:
                    _log.info("%s-%d: %s works again", hosted.topic, hosted.index, kind)
            await asyncio.sleep(0)
        for key in [key for key in self._pauses if key[2] == kind and key not in keys]:
            del self._pauses[key]
        for log in [log for log in self._undecodable if (*log, kind) not in keys]:
            del self._undecodable[log]
        cleaner = self._counters.cleaner
        cleaner.paused_logs = len({key[:2] for key in self._pauses})
        cleaner.undecodable_batches = sum(self._undecodable.values())

    def _put_off(self, key: _Key, hosted: HostedPartition, error: Exception) -> None:
        held = self._pauses.get(key)
        pause_s = PAUSE_S if held is None else min(PAUSE_MAX_S, 2 * held.pause_s)
        now = self._env.clock.monotonic()
        self._pauses[key] = _Pause(now + pause_s, pause_s, hosted.settings)
        self._counters.cleaner.failures += 1
        _log.error(
            "%s-%d: %s failed and is paused for this partition for %g s, or until the topic's "
            "settings change: %s: %s",
            hosted.topic,
            hosted.index,
            key[2],
            pause_s,
            type(error).__name__,
            error,
        )

    async def _flush_due(self) -> None:
        now_ms, replicas = self._env.clock.wall_ms(), self._replicas
        # A pending leadership may have failed to store its leader epoch on a full disk. It tries
        # again.
        for hosted in await replicas.where(
            lambda hosted: hosted.machine.is_beginning or hosted.log.flush_due(now_ms)
        ):
            if replicas.get(hosted.topic, hosted.index) is hosted:
                replicas.flusher.request(hosted.log)

    async def _retain(self, hosted: HostedPartition) -> None:
        log, flusher = hosted.log, self._replicas.flusher
        now_ms = self._env.clock.wall_ms()
        expiration_ms = self._configs().int_value("producer.id.expiration.ms")
        log.producers.expire(now_ms, expiration_ms)
        async with flusher.exclusive(log):
            decision = apply_retention(log, now_ms, hosted.high_watermark)
        if decision.delete:
            _log.info(
                "%s-%d: retention deleted %d segments; the log now starts at offset %d",
                hosted.topic,
                hosted.index,
                len(decision.delete),
                decision.log_start_offset,
            )
            self._counters.cleaner.segments_deleted += len(decision.delete)
            await self._env.executor.run(log.purge)

    async def _clean(self, hosted: HostedPartition) -> None:
        log = hosted.log
        if not log.config.compact:
            return
        task = begin_clean(
            log,
            now_ms=self._env.clock.wall_ms(),
            last_stable_offset=hosted.last_stable_offset,
            map_bytes_max=self._configs().int_value("log.cleaner.dedupe.buffer.size"),
        )
        if task is None:
            return
        counters = self._counters
        began = counters.now()
        try:
            await self._env.executor.run(task.run)
        except Exception:
            # Removes the half-written segments. The caller reports the error and pauses this log.
            with suppress(OSError):
                task.discard()
            raise
        async with self._replicas.flusher.exclusive(log):
            task.install(log)
        self._note_undecodable(hosted, task)
        counters.cleaner.on_cleaned(task.bytes_before, task.bytes_after, counters.now() - began)
        _log.info(
            "%s-%d: compacted %d bytes to %d",
            hosted.topic,
            hosted.index,
            task.bytes_before,
            task.bytes_after,
        )

    def _note_undecodable(self, hosted: HostedPartition, task: CleanTask) -> None:
        key = hosted.topic_id, hosted.index
        if task.undecodable == self._undecodable.get(key, 0):
            return
        self._undecodable[key] = task.undecodable
        if task.undecodable:
            _log.warning(
                "%s-%d: %d batches cannot be decoded; compaction keeps them, and all tombstones "
                "after the first of them. Rewrite the topic's data, or delete the records up to "
                "them (kafka-delete-records)",
                hosted.topic,
                hosted.index,
                task.undecodable,
            )
