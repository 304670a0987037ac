"""Deletes logs, and frees their disk space later.

Deletion renames the log's directory, so that the log is gone at once. A task frees the disk space,
because deleting large files is slow, delays the syncs of other logs, and must not hold up the next
changes. A restart removes the files that this task did not get to.

If the disk fails, the deletion is tried again a few times. Then the files stay until the next
start. A new log of the same name counts as one that cannot be opened until they are gone
(`repair.failed_logs`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from penstock.ports import Env
from penstock.storage.directory import LogDirectory
from penstock.storage.errors import DiskTrouble

_BETWEEN_PIECES_S: Final = 0.01
_RETRY_PAUSES_S: Final = (0.05, 0.2, 0.5)
"""How long to wait after each failed attempt to delete a log. Other changes wait meanwhile."""
_log = logging.getLogger(__name__)


class DeletedLogs:
    """The deleted logs whose files still exist."""

    def __init__(self, env: Env, directory: LogDirectory) -> None:
        self._env = env
        self._directory = directory
        self._queue: asyncio.Queue[Callable[[], bool]] = asyncio.Queue()

    async def delete(self, topic: str, index: int) -> None:
        hide = self._directory.delete(topic, index)
        for pause_s in (*_RETRY_PAUSES_S, None):
            try:
                self._queue.put_nowait(await self._env.executor.run(hide))
            except DiskTrouble as error:
                if pause_s is None:
                    _log.error("%s; its files stay until the next start", error)
                    return
                await self._env.clock.sleep(pause_s)
            else:
                return

    async def free_space(self) -> None:
        """Removes the files of deleted logs until cancelled. Works in pieces and pauses after each,
        so that delayed syncs can catch up."""
        clock = self._env.clock
        while True:
            remove = await self._queue.get()
            is_gone = False
            while not is_gone:
                began = clock.monotonic()
                try:
                    is_gone = await self._env.executor.run(remove)
                except OSError as error:
                    _log.error(
                        "could not remove the files of a deleted log; a restart removes them: %s",
                        error,
                    )
                    is_gone = True
                taken_s = clock.monotonic() - began
                await clock.sleep(taken_s if is_gone else max(_BETWEEN_PIECES_S, taken_s))
