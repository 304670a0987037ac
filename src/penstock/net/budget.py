"""A bound on the request bytes that all connections hold together.

There are two budgets of this kind. One is for large requests (`LARGE_BYTES`) that have not come
whole, the other for everything else. So peers that announce large requests and stall wait for each
other, and clients with small requests do not wait for them.

A request counts from its first byte until it is answered; before it has come whole, for the memory
that what has arrived of it takes (`FrameReader.held`, a few times as much). A peer that announces a
hundred megabytes and sends none of them takes nothing from the others.

While nothing is left reads are small, and whoever has read something waits for its turn before it
reads on. Turns are given in the order they were asked for, as bytes are given back.

Then many half-read requests could fill the budget, none of which could ever be finished. So if half
of it or more is theirs, one of them at a time, the first in line, is *favoured*: it may read to its
end whatever the budget says. That frees its bytes, and the next is favoured. The sum can therefore
pass the bound by one request, and by one small read per connection.

What remains is a peer that sends a part of a request and then stalls. Connections look at that once
a tick: while others wait for the memory, it is dropped at the second tick without progress; if
nobody waits, after `frame_stall_timeout_s`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

TURN_BYTES: Final = 64 << 10
"""What one turn is taken to need, and the most it reads of a large request."""
SMALL_READ_BYTES: Final = 4 << 10
"""What is read at most of new requests while nothing is left."""
LARGE_BYTES: Final = 64 << 10
"""A request that announces more than this is large."""
STALL_BYTES: Final = 16 << 10
"""Who sends less than this between two ticks, while others wait for the memory, has stalled."""


class Waiter(Protocol):
    def on_budget(self) -> None:
        """It may read on."""


class RequestBudget:
    __slots__ = ("_waiting", "bytes_max", "exhausted", "favoured", "half_read", "used")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.half_read = 0
        """How much of that is of requests that have not come whole."""
        self.exhausted = False
        """Nothing is left, or others already wait."""
        self.favoured: Waiter | None = None
        self._waiting: dict[Waiter, bool] = {}
        """In order, and whether a request of theirs is half read."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_tight(self) -> bool:
        return 2 * self.used >= self.bytes_max

    def charge(self, size: int) -> None:
        """Count bytes that are in memory."""
        self.used += size
        if self.used >= self.bytes_max:
            self.exhausted = True

    def give_back(self, size: int) -> None:
        self.used -= size
        if self.exhausted:
            self._give_turns()

    def hold(self, change: int) -> None:
        """A half-read request takes so much more; or less, having come whole or been lost."""
        self.half_read += change
        if change > 0:
            self.charge(change)
        else:
            self.give_back(-change)

    def may_read(self, waiter: Waiter, *, begun: bool) -> bool:
        """Whether it may go on, with a request half read or without; if False, `on_budget` is
        called when it may."""
        if not self.exhausted or waiter is self.favoured:
            return True
        self._waiting[waiter] = begun
        self._give_turns(asking=waiter)
        return waiter not in self._waiting

    def done(self, waiter: Waiter) -> None:
        """Its request has come whole or will not: it waits for nothing and is favoured no more."""
        waited = self._waiting.pop(waiter, None) is not None
        if waiter is self.favoured:
            self.favoured = None
        elif not waited:
            return
        self._give_turns()

    def _give_turns(self, asking: Waiter | None = None) -> None:
        """Let go on who can, all but the one that asks being told."""
        waiting = self._waiting
        left = self.bytes_max - self.used
        while waiting and left > 0:
            left -= TURN_BYTES
            self._let_go(next(iter(waiting)), asking)
        if self.favoured is None and 2 * (self.used - self.half_read) <= self.bytes_max:
            favoured = next((waiter for waiter, begun in waiting.items() if begun), None)
            if favoured is not None:
                self.favoured = favoured
                self._let_go(favoured, asking)
        self.exhausted = bool(waiting) or self.used >= self.bytes_max

    def _let_go(self, waiter: Waiter, asking: Waiter | None) -> None:
        del self._waiting[waiter]
        if waiter is not asking:
            waiter.on_budget()


def _do_nothing() -> None:
    """Nobody is left to be told."""


class Share:
    """One connection's part in the budgets: what it holds of a request that has not come whole."""

    __slots__ = (
        "_arrived",
        "_arrived_at_tick",
        "_budget",
        "_budgets",
        "_held",
        "_progress",
        "_progress_at",
        "_resume",
        "waits",
    )

    def __init__(
        self, budget: RequestBudget, large: RequestBudget, resume: Callable[[], None]
    ) -> None:
        """`large` is for requests that announce more than `LARGE_BYTES`."""
        self._budgets = budget, large
        self._budget = budget
        self._resume = resume
        self._arrived = 0
        self._held = 0
        self._arrived_at_tick = -1
        """-1 unless the same request was looked at then, and others waited."""
        self._progress = -STALL_BYTES
        """How much had arrived when progress was last seen, at `_progress_at`."""
        self._progress_at = 0.0
        self.waits = False
        """Nothing may be read until it is this connection's turn."""

    @property
    def exhausted(self) -> bool:
        """Whether the budget that it takes from has nothing left."""
        return self._budget.exhausted

    def on_read(self, arrived: int, held: int, wanted: int, *, came_whole: bool) -> None:
        """So many bytes have come of a request that is not whole, in so much memory, and so many
        are announced; the one before it may have come whole by this read."""
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
        """The request that was begun will not be finished."""
        held, self._held = self._held, 0
        self.waits = False
        if held:
            self._budget.hold(-held)
        self._budget.done(self)

    def close(self) -> None:
        """The connection is gone. It is let go of here, too: a cycle would keep both alive."""
        self.release()
        self._resume = _do_nothing

    def restart(self) -> None:
        """Another request, or the peer was not read for a while: progress counts from now on."""
        self._progress = -STALL_BYTES

    def rests(self, now: float) -> float:
        """Asked once a tick while something is half read: for how long it has made no progress;
        0 if it holds next to nothing."""
        if (
            self._held < SMALL_READ_BYTES
            or self.waits
            or (self._arrived - self._progress >= STALL_BYTES)
        ):
            self._progress, self._progress_at = self._arrived, now
        return now - self._progress_at

    def stalls(self) -> bool:
        """Asked once a tick while something is half read: whether others wait in vain for that."""
        budget, before = self._budget, self._arrived_at_tick
        self._arrived_at_tick = -1
        if not budget.waiting or self.waits:
            return False
        if self._held < SMALL_READ_BYTES and budget.favoured is not self:
            return False
        self._arrived_at_tick = self._arrived
        return before >= 0 and self._arrived - before < STALL_BYTES
