"""The real clock, randomness, threads and boot id, used in production."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")
_BOOT_TIME: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def boot_time() -> float:
    """Returns seconds on a clock that also counts the time for which the machine was suspended.
    All processes of a machine have the same one."""
    return time.clock_gettime(_BOOT_TIME)


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
    """Runs blocking work on a small thread pool."""

    def __init__(self, threads: int = 4) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="penstock")

    async def run(self, work: Callable[[], T]) -> T:
        # Shielded: the thread cannot be stopped, so a cancellation must not lose its result and
        # leave files in an inconsistent state. The caller's cancellation waits for the work.
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    def close(self) -> None:
        self._pool.shutdown(wait=True)


def give_way() -> None:
    """Lets another thread run Python now, instead of milliseconds later."""
    time.sleep(0)  # Takes no time, but releases the interpreter's lock.


def system_boot_id() -> str:
    """Returns the id that Linux gives to each boot. On other systems it is unknown: returns ""."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def read_file(path: str, bytes_max: int = -1) -> bytes:
    """Returns the content of a file, such as a certificate, or its beginning. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(bytes_max)
