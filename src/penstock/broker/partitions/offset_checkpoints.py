"""Checkpoints the recovery point and high watermark of every log, for the next start.

`storage.offset_checkpoint` explains what for, and why the file may be out of date but is never
wrong. The interval is Kafka's `replica.high.watermark.checkpoint.interval.ms`. A round in which
nothing has changed writes nothing. At a clean stop the file is written once more, when all logs are
closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from penstock.broker.partitions.replicas import Replicas
from penstock.metadata.configs import BrokerConfigs
from penstock.ports import Env
from penstock.storage.directory import LogDirectory
from penstock.storage.errors import StorageError
from penstock.storage.log import Log
from penstock.storage.offset_checkpoint import LogOffsets

_AT_ONCE: Final = 1_000
"""How many logs are read before other tasks may run."""
_log = logging.getLogger(__name__)


class OffsetCheckpoints:
    def __init__(
        self,
        env: Env,
        directory: LogDirectory,
        replicas: Replicas,
        configs: Callable[[], BrokerConfigs],
    ) -> None:
        self._env = env
        self._directory = directory
        self._replicas = replicas
        self._configs = configs
        self._noted: dict[str, LogOffsets] = {}
        self._is_failing = False

    async def run(self) -> None:
        """Writes checkpoints until cancelled."""
        while True:
            interval_ms = self._configs().int_value("replica.high.watermark.checkpoint.interval.ms")
            await self._env.clock.sleep(interval_ms / 1000)
            await self.note(list(self._directory))

    async def note(self, logs: Sequence[Log]) -> None:
        """Writes the file if anything has changed. A failure is logged once, and retried in the
        next round."""
        offsets: dict[str, LogOffsets] = {}
        for number, log in enumerate(logs, start=1):
            offsets[log.directory.rpartition("/")[2]] = self._offsets_of(log)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        if offsets == self._noted:
            return
        try:
            await self._env.executor.run(lambda: self._directory.note_offsets(offsets))
        except StorageError as error:
            if not self._is_failing:
                _log.warning(
                    "%s; after a restart, high watermarks may have to come from other replicas",
                    error,
                )
            self._is_failing = True
        else:
            self._noted, self._is_failing = offsets, False
            for number, log in enumerate(logs, start=1):
                log.on_offsets_noted(offsets[log.directory.rpartition("/")[2]].generation)
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _offsets_of(self, log: Log) -> LogOffsets:
        hosted = self._replicas.get(log.topic, log.partition)
        if hosted is None or hosted.log is not log:
            committed = log.restored_high_watermark
        else:
            committed = min(hosted.high_watermark, log.end_offset)
        return LogOffsets(log.topic_id, log.generation, log.recovery_point, committed)
