"""Closes all logs of a directory, a few at a time: most of a clean stop is waiting for the disk.

As with flushes, the first and last steps run on the event loop and only the waiting runs on
threads. The logs must not be in use any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from penstock.ports import Executor
from penstock.storage.directory import LogDirectory
from penstock.storage.errors import StorageError
from penstock.storage.log import Log


async def close_logs(directory: LogDirectory, executor: Executor, concurrency: int) -> list[str]:
    """Closes every log cleanly. Returns an error message for each one that failed; the next start
    recovers those."""
    logs = iter(list(directory))
    troubles: list[str] = []
    async with asyncio.TaskGroup() as tasks:
        for _ in range(concurrency):
            tasks.create_task(_close_each(logs, executor, troubles))
    return troubles + directory.close()


async def _close_each(logs: Iterator[Log], executor: Executor, troubles: list[str]) -> None:
    for log in logs:
        try:
            plan = log.begin_close()
            if plan is not None:
                try:
                    await executor.run(plan.run)
                except OSError as error:
                    log.fail_flush(plan, error)
                    troubles.append(f"{log.directory} could not be closed: {error}")
                    continue
            log.end_close(plan)
        except StorageError as error:
            troubles.append(str(error))
