"""The requests of one connection that are not yet dispatched, or not yet answered.

Their bytes count against the request budget of all connections until they are answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from penstock.net.budget import RequestBudget
from penstock.net.session import Part

Ready = Sequence[Part]
Later = asyncio.Future[Ready | None]


class RequestQueue:
    """Frames that wait to be dispatched, and answers that wait to be written, oldest first."""

    __slots__ = ("_budget", "pending", "pending_bytes", "waiting", "waiting_bytes")

    def __init__(self, budget: RequestBudget) -> None:
        self._budget = budget
        self.waiting: deque[memoryview] = deque()
        self.waiting_bytes = 0
        self.pending: deque[tuple[Ready | Later, int]] = deque()
        self.pending_bytes = 0

    def count_waiting(self, change: int) -> None:
        """Charges the budget for frames that wait now, or gives back what it was charged."""
        self.waiting_bytes += change
        if change > 0:
            self._budget.charge(change)
        else:
            self._budget.give_back(-change)

    def own_waiting(self) -> None:
        """Copies the waiting frames out of the read buffer, which the next read reuses."""
        owned = [memoryview(bytearray(frame)) for frame in self.waiting]
        self.waiting.clear()
        self.waiting.extend(owned)

    def forget_waiting(self) -> None:
        self.waiting.clear()
        self.count_waiting(-self.waiting_bytes)

    def park(self, answer: Ready | Later, size: int) -> bool:
        """Adds an answer that cannot be written yet. Returns whether it is the oldest one."""
        self.pending.append((answer, size))
        self.pending_bytes += size
        self._budget.charge(size)
        return len(self.pending) == 1

    def clear_pending(self) -> int:
        """Drops all answers. Returns their bytes, which the caller gives back to the budget."""
        dropped, self.pending_bytes = self.pending_bytes, 0
        self.pending.clear()
        return dropped
