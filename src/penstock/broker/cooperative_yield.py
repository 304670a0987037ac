"""Divides long work on the event loop into slices, so that other tasks can run in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.ports import Env, Slicing


class Slices:
    def __init__(self, now: Callable[[], float], slice_s: float = Slicing().slice_s) -> None:
        self._now = now
        self._slice_s = slice_s
        self._since = now()

    async def give(self) -> None:
        """Lets other tasks run if the current slice has lasted long enough."""
        if self._now() - self._since >= self._slice_s:
            await asyncio.sleep(0)
            self._since = self._now()


def slices_of(env: Env) -> Slices:
    return Slices(env.clock.monotonic, env.slicing.slice_s)
