"""The `Clock` of a simulated node: virtual time is shared, the wall clock is its own."""

from __future__ import annotations

import asyncio
from math import ceil, floor
from typing import Final

from penstock.sim.loop import START_S, SimLoop

WALL_START_MS: Final = 1_800_000_000_000
"""What every wall clock without skew shows when a run begins."""


class SimClock:
    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._skews: list[tuple[float, int]] = [(0.0, 0)]
        """When the skew changed, in virtual milliseconds, and what it was from then on."""

    @property
    def skew_ms(self) -> int:
        """How many milliseconds the wall clock is ahead."""
        return self._skews[-1][1]

    @skew_ms.setter
    def skew_ms(self, skew_ms: int) -> None:
        self._skews.append(((self._loop.now - START_S) * 1000, skew_ms))

    def monotonic(self) -> float:
        return self._loop.now

    def wall_ms(self) -> int:
        return WALL_START_MS + int((self._loop.now - START_S) * 1000) + self.skew_ms

    def wall_range(self, begun_ms: float, ended_ms: float) -> tuple[int, int]:
        """Returns the lowest and the highest time that the wall clock has shown between two moments
        of virtual time."""
        ends = [*(at_ms for at_ms, _ in self._skews[1:]), ended_ms]
        shown = [
            (max(at_ms, begun_ms) + skew_ms, min(until_ms, ended_ms) + skew_ms)
            for (at_ms, skew_ms), until_ms in zip(self._skews, ends, strict=True)
            if at_ms <= ended_ms and until_ms >= begun_ms
        ]
        low_ms, high_ms = min(low for low, _ in shown), max(high for _, high in shown)
        # Virtual times in histories are rounded.
        return WALL_START_MS + floor(low_ms) - 1, WALL_START_MS + ceil(high_ms)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
