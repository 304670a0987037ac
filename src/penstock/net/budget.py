"""A bound on the request bytes that all connections hold together.

A frame counts from when its length is known until its request is answered. It is asked for before
the frame is read whole, by its announced length: counting only what has arrived would let many
half-read frames fill the budget, none of which could ever be finished.

A frame that arrived whole in one read is in memory already; it is charged without asking if it
has to wait. So the sum can pass the bound by one read per connection, and reads are made small
while the budget is exhausted.

Grants are given in the order they were asked for, and while anyone waits, everyone newly asking
waits too: small requests do not starve a large one. A frame larger than what is left still passes
when half the budget is free, because waiting for an empty server could take for ever (a parked
request of a few bytes may wait for minutes). If no frame can be larger than half the budget this
exception never applies.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol


class Waiter(Protocol):
    def on_budget(self) -> None:
        """The bytes asked for are granted."""


class RequestBudget:
    __slots__ = ("_waiting", "bytes_max", "exhausted", "used")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.exhausted = False
        """Nothing is left, or others already wait."""
        self._waiting: deque[tuple[Waiter, int]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def ask(self, waiter: Waiter, size: int) -> bool:
        """Take `size` bytes; if False, `on_budget` is called once they are taken."""
        if not self._waiting and self._fits(size):
            self.charge(size)
            return True
        self._waiting.append((waiter, size))
        self.exhausted = True
        return False

    def charge(self, size: int) -> None:
        """Count bytes that are in memory already."""
        self.used += size
        if self.used >= self.bytes_max:
            self.exhausted = True

    def give_back(self, size: int) -> None:
        self.used -= size
        if self.exhausted:
            self._grant()

    def forget(self, waiter: Waiter) -> None:
        """The waiter is gone; it had not been granted what it asked for."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not waiter)
        self._grant()

    def _fits(self, size: int) -> bool:
        used = self.used
        return used <= self.bytes_max // 2 or used + max(size, 1) <= self.bytes_max

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            waiter, size = self._waiting.popleft()
            self.used += size
            waiter.on_budget()
        self.exhausted = bool(self._waiting) or self.used >= self.bytes_max
