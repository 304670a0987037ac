"""Short background tasks of a client. Each is owned, and awaited at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine


class BackgroundTasks:
    """Runs at most one task per name at a time. Errors are passed to `on_failure`."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False

    def start(self, name: str, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Starts the work, unless it is running already."""
        if name in self._tasks or self._is_closed:
            return
        task = asyncio.get_running_loop().create_task(work(), name=f"penstock {name}")
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._end(name, done))

    def _end(self, name: str, task: asyncio.Task[None]) -> None:
        del self._tasks[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)

    async def close(self) -> None:
        self._is_closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
