"""Limits the request bytes that all connections hold together.

There are two such budgets. One is for large requests (`LARGE_BYTES`) that are incomplete, the other
for everything else. So peers that announce large requests and stall delay each other, but not
clients with small requests.

A request counts from its first byte until it is answered. While it is incomplete, it counts with
the memory that its received bytes occupy (`FrameReader.held`, up to a few times as much). A peer
that announces a hundred megabytes and sends none of them takes nothing from the others.

While a budget is exhausted, reads are small, and a connection that has read something waits for its
turn before it reads more. Turns are granted as bytes are returned. Tenants take turns, so that one
with many connections does not get more than the others; the connections of a tenant get their turns
in the order in which they asked for them.

Many incomplete requests could then fill the budget so that none of them could ever be completed. So
if incomplete requests hold half of the budget or more, one of them at a time, the first in the
queue, is *favoured*: it may read to its end whatever the budget says. That frees its bytes, and the
next one is favoured. The total can therefore exceed the limit by one request, plus one small read
per connection.

A peer may also send part of a request and then stall. Connections check for that once per tick.
While others wait for the memory, such a connection is dropped at the second tick without progress;
otherwise after `frame_stall_timeout_s`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from penstock.net.fair_turns import Turn

TURN_BYTES: Final = 64 << 10
"""How many bytes one turn is assumed to need, and the most it reads of a large request."""
TAIL_BYTES_MIN: Final = 32 << 10
"""The rest of a frame is read directly into its buffer, unless it is so short that a separate
system call costs more than copying it. A short rest is read together with the bytes that follow
it."""
SMALL_READ_BYTES: Final = 4 << 10
"""The most that is read of new requests while the budget is exhausted."""
LARGE_BYTES: Final = 64 << 10
"""A request that announces more than this is large."""
STALL_BYTES: Final = 16 << 10
"""A peer that sends less than this between two ticks, while others wait for the memory, has
stalled."""


class Waiter(Protocol):
    """A connection, as the request budget sees it."""

    @property
    def queue(self) -> str:
        """In which queue it waits: each tenant has one."""

    def on_budget(self) -> None:
        """Called when the waiter may read again."""


class RequestBudget:
    """One budget of request bytes, and the queue of connections that wait for it."""

    __slots__ = ("_queues", "_waiting", "bytes_max", "exhausted", "favoured", "half_read", "used")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.half_read = 0
        """How much of `used` belongs to incomplete requests."""
        self.exhausted = False
        """Nothing is left, or others are already waiting."""
        self.favoured: Waiter | None = None
        self._waiting: dict[Waiter, str] = {}
        """The waiters and their queues."""
        self._queues: dict[str, dict[Waiter, bool]] = {}
        """The queues in the order of their turns. Each has its waiters in order, and whether they
        have an incomplete request."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_tight(self) -> bool:
        return 2 * self.used >= self.bytes_max

    def charge(self, size: int) -> None:
        """Counts bytes that are in memory."""
        self.used += size
        if self.used >= self.bytes_max:
            self.exhausted = True

    def give_back(self, size: int) -> None:
        self.used -= size
        if self.exhausted:
            self._give_turns()

    def hold(self, change: int) -> None:
        """Changes the bytes held by incomplete requests. They decrease when a request is completed
        or dropped."""
        self.half_read += change
        if change > 0:
            self.charge(change)
        else:
            self.give_back(-change)

    def may_read(self, waiter: Waiter, *, begun: bool) -> bool:
        """Whether the waiter may continue reading. `begun`: it has an incomplete request. If False,
        `on_budget` is called when it may."""
        if not self.exhausted or waiter is self.favoured:
            return True
        queue = self._waiting.setdefault(waiter, waiter.queue)
        self._queues.setdefault(queue, {})[waiter] = begun
        self._give_turns(asking=waiter)
        return waiter not in self._waiting

    def done(self, waiter: Waiter) -> None:
        """Removes a waiter whose request is complete or will never be: it no longer waits and is no
        longer favoured."""
        waited = waiter in self._waiting
        if waited:
            self._remove(waiter)
        if waiter is self.favoured:
            self.favoured = None
        elif not waited:
            return
        self._give_turns()

    def _give_turns(self, asking: Waiter | None = None) -> None:
        """Lets waiters continue as far as possible, and notifies all of them except the one that is
        asking."""
        waiting = self._waiting
        left = self.bytes_max - self.used
        while waiting and left > 0:
            left -= TURN_BYTES
            self._let_go(next(iter(next(iter(self._queues.values())))), asking)
        if self.favoured is None and 2 * (self.used - self.half_read) <= self.bytes_max:
            queues = self._queues.values()
            favoured = next(
                (each for queue in queues for each, begun in queue.items() if begun), None
            )
            if favoured is not None:
                self.favoured = favoured
                self._let_go(favoured, asking)
        self.exhausted = bool(waiting) or self.used >= self.bytes_max

    def _let_go(self, waiter: Waiter, asking: Waiter | None) -> None:
        self._remove(waiter)
        if waiter is not asking:
            waiter.on_budget()

    def _remove(self, waiter: Waiter) -> None:
        """Removes a waiter. Its queue is the last one to get the next turn."""
        name = self._waiting.pop(waiter)
        queue = self._queues.pop(name)
        del queue[waiter]
        if queue:
            self._queues[name] = queue


def _do_nothing() -> None:
    """Replaces the callback of a closed connection."""


class Share:
    """One connection's share of the budgets: what it holds of an incomplete request."""

    __slots__ = (
        "_arrived",
        "_arrived_at_tick",
        "_budget",
        "_budgets",
        "_held",
        "_progress",
        "_progress_at",
        "_resume",
        "_turn",
        "waits",
    )

    def __init__(
        self,
        budget: RequestBudget,
        large: RequestBudget,
        resume: Callable[[], None],
        turn: Turn,
    ) -> None:
        """`large` is the budget for requests that announce more than `LARGE_BYTES`."""
        self._turn = turn
        self._budgets = budget, large
        self._budget = budget
        self._resume = resume
        self._arrived = 0
        self._held = 0
        self._arrived_at_tick = -1
        """Bytes received at the last tick. -1 unless the same request was checked then while others
        waited."""
        self._progress = -STALL_BYTES
        """How many bytes had arrived when progress was last seen, at `_progress_at`."""
        self._progress_at = 0.0
        self.waits = False
        """Nothing may be read until it is this connection's turn."""

    @property
    def queue(self) -> str:
        return self._turn.queue

    @property
    def exhausted(self) -> bool:
        """Whether the budget that this connection uses is exhausted."""
        return self._budget.exhausted

    def on_read(self, arrived: int, held: int, wanted: int, *, came_whole: bool) -> None:
        """Accounts for a read. Of an incomplete request, `arrived` bytes were received, they occupy
        `held` bytes of memory, and `wanted` bytes are announced. `came_whole`: this read completed
        at least one request."""
        self._arrived = arrived
        if came_whole:
            self._arrived_at_tick = -1
            self.restart()
        budget = self._budgets[wanted > LARGE_BYTES]
        if budget is not self._budget and not self.waits:
            before, self._budget = self._budget, budget
            if self._held:
                before.hold(-self._held)
                self._held = 0
            before.done(self)
        budget = self._budget
        change = held - self._held
        if change:
            self._held = held
            budget.hold(change)
        if came_whole and budget.favoured is self:
            budget.done(self)
        if budget.exhausted and not self.waits:
            self.waits = not budget.may_read(self, begun=arrived > 0)

    def on_budget(self) -> None:
        self.waits = False
        self._resume()

    def release(self) -> None:
        """Releases the memory of an incomplete request that will never be completed."""
        held, self._held = self._held, 0
        self.waits = False
        if held:
            self._budget.hold(-held)
        self._budget.done(self)

    def close(self) -> None:
        """Releases everything after the connection closed. Also drops the callback, because a
        reference cycle would keep both alive."""
        self.release()
        self._resume = _do_nothing

    def restart(self) -> None:
        """Restarts the progress check: a new request began, or the peer was not read for a
        while."""
        self._progress = -STALL_BYTES

    def rests(self, now: float) -> float:
        """Returns for how long an incomplete request has made no progress; 0 if it holds almost
        nothing. Called once per tick."""
        if (
            self._held < SMALL_READ_BYTES
            or self.waits
            or (self._arrived - self._progress >= STALL_BYTES)
        ):
            self._progress, self._progress_at = self._arrived, now
        return now - self._progress_at

    def stalls(self) -> bool:
        """Whether an incomplete request has stalled while others wait for its memory. Called once
        per tick."""
        budget, before = self._budget, self._arrived_at_tick
        self._arrived_at_tick = -1
        if not budget.waiting or self.waits:
            return False
        if self._held < SMALL_READ_BYTES and budget.favoured is not self:
            return False
        self._arrived_at_tick = self._arrived
        return before >= 0 and self._arrived - before < STALL_BYTES
