"""The real clock, randomness and threads, for production wiring."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SystemRandom:
    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def bytes(self, size: int) -> bytes:
        return os.urandom(size)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)

    def uniform(self) -> float:
        return self._random.random()


class Threads:
    """Blocking work on a few threads of its own."""

    def __init__(self, threads: int = 4) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="penstock")

    async def run(self, work: Callable[[], T]) -> T:
        # Shielded: the thread cannot be stopped, so its result must not be lost to a cancellation
        # that leaves files half accounted for. The caller's cancellation waits for the work.
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    def close(self) -> None:
        self._pool.shutdown(wait=True)


def give_way() -> None:
    """Let another thread have the interpreter, which it might get only milliseconds later."""
    time.sleep(0)  # No time passes; the interpreter's lock is let go of.
