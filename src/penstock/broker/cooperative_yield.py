"""Divides long work on the event loop into slices, so that other tasks can run in between.

Work whose length depends on a request is written as steps: a generator that yields after each piece
of work and returns the result. Short work runs all its steps at once, long work runs in slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TypeVar

from penstock.ports import Env, Slicing

R = TypeVar("R")
Steps = Generator[None, None, R]


class Slices:
    def __init__(self, now: Callable[[], float], slice_s: float = Slicing().slice_s) -> None:
        self._now = now
        self._slice_s = slice_s
        self._since = now()

    async def give_way(self) -> None:
        """Lets other tasks run if the current slice has lasted long enough."""
        if self._now() - self._since >= self._slice_s:
            await asyncio.sleep(0)
            self._since = self._now()


def slices_of(env: Env) -> Slices:
    return Slices(env.clock.monotonic, env.slicing.slice_s)


def at_once(steps: Steps[R]) -> R:
    """Runs all steps and returns the result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: R = done.value
            return result


async def in_slices(steps: Steps[R], slices: Slices) -> R:
    """Runs the steps in slices and returns the result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: R = done.value
            return result
        await slices.give_way()
