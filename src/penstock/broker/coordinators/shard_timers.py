"""The timers of one shard, on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from penstock.ports import Clock

EARLY_S = 0.001
"""How long a timer that fired too early waits before it fires again."""

Key = TypeVar("Key", bound=Hashable)


def ticks_ms(clock: Clock) -> int:
    # A timer for a whole millisecond fires at it, but the float may be just below it.
    return int(clock.monotonic() * 1000 + 0.001)


class ShardTimers(Generic[Key]):
    def __init__(self, clock: Clock, on_timer: Callable[[Key], None]) -> None:
        self._clock = clock
        self._on_timer = on_timer
        self._timers: dict[Key, asyncio.TimerHandle] = {}

    def set(self, key: Key, at_ms: int) -> None:
        self.cancel(key)
        self._wait(key, at_ms, max(0.0, at_ms / 1000 - self._clock.monotonic()))

    def cancel(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def cancel_all(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _wait(self, key: Key, at_ms: int, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(wait_s, self._fire, key, at_ms)

    def _fire(self, key: Key, at_ms: int) -> None:
        if ticks_ms(self._clock) < at_ms:
            # uvloop rounds to milliseconds. A shard ignores a timer that fires early, as if it had
            # been cancelled, and the timer would never fire again.
            self._wait(key, at_ms, EARLY_S)
            return
        self._timers.pop(key, None)
        self._on_timer(key)
