"""Long work on the event loop, in slices: others have their turn after each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

SLICE_S: Final = 0.004
"""A turn of a busy loop may take as long: shorter slices would make the whole take ages."""


class Turns:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since = now()

    async def give(self) -> None:
        """Let the others go on, if it is time."""
        if self._now() - self._since >= SLICE_S:
            await asyncio.sleep(0)
            self._since = self._now()
