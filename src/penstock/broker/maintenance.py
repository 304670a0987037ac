"""What a broker does now and then: retention, compaction, flush policies, forgetting producers.

One round looks at every log, led or followed: each replica deletes and compacts its own, below the
high watermark it knows of. Rounds are spread over time by their own intervals; each piece of
surgery takes turns with that log's flushes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.broker.hosted import HostedPartition
from penstock.broker.services import Services
from penstock.storage.cleaner import begin_clean
from penstock.storage.errors import StorageError
from penstock.storage.retain import apply_retention

_TICK_S: Final = 1.0
_log = logging.getLogger(__name__)

_Work = Callable[[HostedPartition], Awaitable[None]]


class Maintenance:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._retained_at = services.env.clock.monotonic()
        self._cleaned_at = self._retained_at

    async def run(self) -> None:
        """Until cancelled."""
        clock = self._services.env.clock
        while True:
            await clock.sleep(_TICK_S)
            now = clock.monotonic()
            configs = self._services.configs()
            self._flush_due()
            self._services.directory.space.check()
            self._services.directory.space.take_ballast()
            retention_s = configs.int_value("log.retention.check.interval.ms") / 1000
            if now - self._retained_at >= retention_s:
                self._retained_at = now
                await self._each(self._retain)
            cleaner_rests_s = configs.int_value("log.cleaner.backoff.ms") / 1000
            if (
                configs.bool_value("log.cleaner.enable")
                and now - self._cleaned_at >= cleaner_rests_s
            ):
                self._cleaned_at = now
                await self._each(self._clean)

    async def _each(self, work: _Work) -> None:
        for hosted in self._services.replicas:
            if hosted.log.failure is not None:
                continue
            try:
                await work(hosted)
            except StorageError as error:
                _log.warning("%s-%d: %s", hosted.topic, hosted.index, error)
            await asyncio.sleep(0)

    def _flush_due(self) -> None:
        now_ms = self._services.now_ms()
        for hosted in self._services.replicas:
            # A term that could not begin for want of room to note its epoch tries again.
            if hosted.is_beginning or hosted.log.flush_due(now_ms):
                self._services.replicas.flusher.request(hosted.log)

    async def _retain(self, hosted: HostedPartition) -> None:
        log, flusher = hosted.log, self._services.replicas.flusher
        now_ms = self._services.now_ms()
        expiration_ms = self._services.configs().int_value("producer.id.expiration.ms")
        log.producers.expire(now_ms, expiration_ms)
        async with flusher.exclusive(log):
            decision = apply_retention(log, now_ms, hosted.high_watermark)
        if decision.delete:
            _log.info(
                "%s-%d: %d segments deleted, the log starts at %d",
                hosted.topic,
                hosted.index,
                len(decision.delete),
                decision.log_start_offset,
            )
            self._services.figures.cleaner.segments_deleted += len(decision.delete)
            await self._services.env.executor.run(log.purge)

    async def _clean(self, hosted: HostedPartition) -> None:
        log = hosted.log
        if not log.config.compact:
            return
        task = begin_clean(
            log,
            now_ms=self._services.now_ms(),
            last_stable_offset=hosted.last_stable_offset,
            map_bytes_max=self._services.configs().int_value("log.cleaner.dedupe.buffer.size"),
        )
        if task is None:
            return
        figures = self._services.figures
        began = figures.now()
        await self._services.env.executor.run(task.run)
        async with self._services.replicas.flusher.exclusive(log):
            task.install(log)
        figures.cleaner.on_cleaned(task.bytes_before, task.bytes_after, figures.now() - began)
        _log.info(
            "%s-%d: compacted %d bytes to %d",
            hosted.topic,
            hosted.index,
            task.bytes_before,
            task.bytes_after,
        )
