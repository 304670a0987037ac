"""Runs the work that production sends to threads: on the loop, with a delay, in a single step.

Each piece of work takes effect at one instant, after a random duration, and its caller gets the
result afterwards. When its process is killed, it is random whether work in progress was done.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from math import log
from random import Random  # noqa: TID251 - only for the type: instances are seeded
from typing import Any, TypeVar

from penstock.security.exchange import PasswordHash
from penstock.sim.loop import SimLoop
from penstock.sim.process import Process

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DiskSpeed:
    """How long work on threads takes. Nearly all of it waits for a disk."""

    delay_min_s: float = 0.0005
    delay_mean_s: float = 0.002
    stall_chance: float = 0.002
    stall_s: float = 0.5


def _result(work: Callable[[], Any]) -> Any:
    """Does the work. Passwords are hashed once: that is slow, and always gives the same. As on a
    thread, no event loop is running."""
    hashing = getattr(work, "__self__", None)
    if isinstance(hashing, PasswordHash):
        return _hashed(hashing)
    running = events._get_running_loop()
    events._set_running_loop(None)
    try:
        return work()
    finally:
        events._set_running_loop(running)


@lru_cache(maxsize=64)
def _hashed(hashing: PasswordHash) -> bytes:
    return hashing.run()


class SimExecutor:
    def __init__(
        self,
        loop: SimLoop,
        process: Process,
        speed: Callable[[], DiskSpeed],
        draws: Random,
        waited_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`waited_s` returns how long the last work has waited for another machine. Its caller gets
        the result that much later."""
        self._loop = loop
        self._process = process
        self._speed = speed
        self._draws = draws
        self._under_way: dict[asyncio.Future[Any], Callable[[], object]] = {}
        self._waited_s = waited_s
        self.stalled_until = 0.0

    async def run(self, work: Callable[[], T]) -> T:
        # As with threads: cancelling the caller neither stops the work nor loses its result.
        future: asyncio.Future[Any] = self._loop.create_future()
        self._under_way[future] = work
        when = max(self._loop.now, self.stalled_until) + self._duration()
        self._loop.call_at(when, self._do, work, future, context=self._process.context)
        try:
            result: T = await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise
        return result

    def on_killed(self) -> int:
        """Decides which of the work in progress was done. Returns how much."""
        done = 0
        for work in self._under_way.values():
            if self._draws.random() < 0.5:
                done += 1
                # Errors of the work are ignored: its caller is dead.
                with suppress(Exception):
                    _result(work)
        self._under_way.clear()
        return done

    def _do(self, work: Callable[[], T], future: asyncio.Future[Any]) -> None:
        # A frozen machine's disk continues, and its process sees the result later. This has the
        # same effect.
        del self._under_way[future]
        self._loop.trace.mark("work", self._process.index, 0, self._process.name)
        try:
            result = _result(work)
        except Exception as error:  # noqa: BLE001 - raised in the caller
            end = partial(future.set_exception, error)
        else:
            end = partial(future.set_result, result)
        if waited_s := self._waited_s():
            self._loop.call_later(waited_s, end, context=self._process.context)
        else:
            end()

    def _duration(self) -> float:
        speed, draw = self._speed(), self._draws.random
        duration = speed.delay_min_s - speed.delay_mean_s * log(1.0 - draw())
        if draw() < speed.stall_chance:
            duration += speed.stall_s * draw()
        return duration
