"""The real clock, randomness, threads and boot id, used in production."""

from __future__ import annotations

import asyncio
import os
import queue
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

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


class _Work:
    """A piece of work for a thread, and the future that a task waits for."""

    __slots__ = ("error", "function", "is_done", "loop", "result", "waiter")

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.function = function
        self.loop = loop
        self.waiter = loop.create_future()
        self.is_done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def on_done(self) -> None:
        """Runs in the event loop."""
        self.is_done = True
        if not self.waiter.done():
            self.waiter.set_result(None)


class Threads:
    """Runs blocking work on a small thread pool.

    The standard library's pool has a future with a lock and a condition for each piece of work.
    For a flush, which may take 50 us, that was half of the processor time of a small produce
    request. Here a queue and a callback of the event loop do.
    """

    def __init__(self, threads: int = 4) -> None:
        self._threads_max = threads
        self._threads: list[threading.Thread] = []
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._unfinished = 0
        self._is_closed = False

    async def run(self, work: Callable[[], T]) -> T:
        if self._is_closed:
            raise RuntimeError("these threads are closed: no further work can begin")
        item = _Work(work, asyncio.get_running_loop())
        self._unfinished += 1
        if self._unfinished > len(self._threads) and len(self._threads) < self._threads_max:
            self._start_thread()
        self._queue.put(item)
        try:
            await self._wait(item)
        finally:
            self._unfinished -= 1
        if item.error is not None:
            try:
                raise item.error
            finally:
                item.error = None  # Otherwise the error and its traceback would form a cycle.
        return cast("T", item.result)

    @staticmethod
    async def _wait(item: _Work) -> None:
        # The thread cannot be stopped, so a cancellation must not lose its result and leave files
        # in an inconsistent state. The caller's cancellation waits for the work.
        try:
            await item.waiter
        except asyncio.CancelledError:
            if not item.is_done:
                item.waiter = item.loop.create_future()
                await item.waiter
            raise

    def close(self) -> None:
        """Waits for the work that has begun, and for what is queued."""
        self._is_closed = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _start_thread(self) -> None:
        name = f"penstock_{len(self._threads)}"
        thread = threading.Thread(target=_work_through, args=(self._queue,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()


def _work_through(items: queue.SimpleQueue[_Work | None]) -> None:
    """What each thread does."""
    while (item := items.get()) is not None:
        try:
            item.result = item.function()
        except BaseException as error:  # noqa: BLE001 - it is raised where the caller waits
            item.error = error
        # The loop is closed if it was stopped while work was under way: nobody waits for it.
        with suppress(RuntimeError):
            item.loop.call_soon_threadsafe(item.on_done)
        del item


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
