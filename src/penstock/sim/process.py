"""What belongs together and dies together: a simulated process, and how code knows which it is in.

A process has its own queue of callbacks. Which one a callback belongs to is in its context: tasks
inherit it from whoever made them, and a future's callbacks run in the context of who waits, so a
result that one process hands to another is received in the other.
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
        """Among those the loop may pick from."""
        self.frozen = False
        self.held = False
        """Paying for its last step: see `slow_s`."""
        self.dead = False
        self.slow_s = 0.0
        """How long each step of it takes, in virtual seconds."""
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)

    @property
    def may_run(self) -> bool:
        return not (self.frozen or self.held or self.dead)

    def __repr__(self) -> str:
        return f"<{self.name}>"


class SimHandle(asyncio.TimerHandle):
    """A callback that waits, at once or for its time. Leaner than asyncio's, which keeps more."""

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
    """Hashed by its number: `asyncio.wait` keeps sets of these, and sets are walked by hash."""

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        return self.number


class SimTask(asyncio.Task[Any]):
    """Hashed by its number: a `TaskGroup` keeps a set of tasks and cancels them in its order."""

    __slots__ = ("number", "process")
    number: int
    process: Process

    def __hash__(self) -> int:
        return self.number
