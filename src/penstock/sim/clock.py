"""The `Clock` of a simulated node: virtual time is shared, the wall clock is its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.sim.loop import START_S, SimLoop

WALL_START_MS: Final = 1_800_000_000_000
"""What every wall clock without skew shows when a run begins."""


class SimClock:
    def __init__(self, loop: SimLoop, skew_ms: Callable[[], int]) -> None:
        self._loop = loop
        self._skew_ms = skew_ms

    def monotonic(self) -> float:
        return self._loop.now

    def wall_ms(self) -> int:
        return WALL_START_MS + int((self._loop.now - START_S) * 1000) + self._skew_ms()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
