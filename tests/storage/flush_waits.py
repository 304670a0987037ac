"""Waits until records are synced, as partitions do in a broker."""

from __future__ import annotations

import asyncio

from penstock.storage.errors import LogOffline
from penstock.storage.flusher import Flusher
from penstock.storage.log import Log


class FlushWaits:
    """Pass `on_flushed` to the flusher."""

    def __init__(self) -> None:
        self._waits: list[tuple[Log, int, asyncio.Future[bool]]] = []

    def on_flushed(self, log: Log) -> None:
        waits, self._waits = self._waits, []
        for wait in waits:
            waiting_log, offset, done = wait
            if waiting_log is not log:
                self._waits.append(wait)
            elif not done.done():
                done.set_result(log.recovery_point >= offset)

    async def until_synced(self, flusher: Flusher, log: Log, offset: int) -> None:
        """Requests flushes until everything below `offset` is synced."""
        is_synced = log.recovery_point >= offset
        while not is_synced:
            if log.failure is not None:
                raise LogOffline(log.failure)
            done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._waits.append((log, offset, done))
            flusher.request(log)
            is_synced = await done
