"""Long work on the event loop, in slices: others have their turn after each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.ports import Env, Slicing


class Turns:
    def __init__(self, now: Callable[[], float], slice_s: float = Slicing().slice_s) -> None:
        self._now = now
        self._slice_s = slice_s
        self._since = now()

    async def give(self) -> None:
        """Let the others go on, if it is time."""
        if self._now() - self._since >= self._slice_s:
            await asyncio.sleep(0)
            self._since = self._now()


def turns_of(env: Env) -> Turns:
    return Turns(env.clock.monotonic, env.slicing.slice_s)
