"""A simulated process, and the context variable that tells code which process it runs in.

A process has its own queue of callbacks, and everything in it ends when it is killed. The context
of a callback determines its process: tasks inherit it from the code that creates them, and the
callbacks of a future run in the context of the waiter. So a result that one process passes to
another is received in the other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any

PROCESS: ContextVar[Process] = ContextVar("PROCESS")


class Process:
    __slots__ = (
        "context",
        "dead",
        "frozen",
        "held",
        "index",
        "name",
        "queued",
        "ready",
        "slow_s",
    )

    def __init__(self, name: str, index: int) -> None:
        self.name = name
        self.index = index
        self.ready: deque[SimHandle] = deque()
        self.queued = False
        """It is in the list that the loop picks from."""
        self.frozen = False
        self.held = False
        """Waiting for the time of its last step to pass: see `slow_s`."""
        self.dead = False
        self.slow_s = 0.0
        """How long each of its steps takes, in virtual seconds."""
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)

    @property
    def may_run(self) -> bool:
        return not (self.frozen or self.held or self.dead)

    def __repr__(self) -> str:
        return f"<{self.name}>"


class SimHandle(asyncio.TimerHandle):
    """A callback that waits to run, now or at a time. Keeps less than asyncio's handle does."""

    __slots__ = ("process",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: Context,
        process: Process,
    ) -> None:
        self._when = when
        self._callback: Any = callback
        self._args: Any = args
        self._context = context
        self._cancelled = False
        self.process = process

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None

    def __hash__(self) -> int:
        raise TypeError("handles of a simulation have no hash: it would be their address")

    def __repr__(self) -> str:
        state = "cancelled" if self._cancelled else repr(self._callback)
        return f"<SimHandle {self.process.name} at {self._when}: {state}>"


class SimFuture(asyncio.Future[Any]):
    """A future that is hashed by number: `asyncio.wait` keeps futures in sets, which iterate
    by hash."""

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        return self.number


class SimTask(asyncio.Task[Any]):
    """A task that is hashed by number: a `TaskGroup` cancels its set of tasks in the
    set's order."""

    __slots__ = ("number", "process")
    number: int
    process: Process

    def __hash__(self) -> int:
        return self.number
