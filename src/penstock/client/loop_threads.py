"""Runs blocking work of a client on the threads of its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class LoopThreads:
    """Implements `ports.Executor`. It has no threads of its own, so there is nothing to close."""

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, work)
