"""Answers requests for rows as a worker does, without Spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from penstock.client.environment import default_environment
from penstock.spark.deployments.preview_server import PreviewServer
from penstock.spark.deployments.previews import Preview, PreviewRequest
from penstock.testing.slowness import patient


@contextmanager
def previews(bootstrap: str, answer: Callable[[PreviewRequest], Preview]) -> Iterator[None]:
    """Answers inside the block."""

    def ask(request: PreviewRequest) -> Awaitable[Preview]:
        async def found() -> Preview:
            return answer(request)

        return found()

    ready, loops = threading.Event(), []

    def run() -> None:
        async def main() -> None:
            task = asyncio.current_task()
            assert task is not None
            loops.append((asyncio.get_running_loop(), task))
            ready.set()
            await PreviewServer(bootstrap, default_environment(), ask).run()

        with suppress(asyncio.CancelledError):
            asyncio.run(main())

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(patient(60))
    try:
        yield
    finally:
        ((loop, task),) = loops
        loop.call_soon_threadsafe(task.cancel)
        thread.join(patient(60))
