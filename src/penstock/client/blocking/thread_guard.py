"""Ensures that only one thread at a time uses a consumer. Other threads get an error.

Two threads that share a consumer would take records from each other and commit each other's
records. Using it one after the other is fine, and so are calls from a listener that the owner's own
poll runs.
"""

from __future__ import annotations

import threading

from penstock.client.errors import ClientError


class ThreadGuard:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None

    @property
    def is_mine(self) -> bool:
        return self._owner == threading.get_ident()

    def begin(self) -> bool:
        """Takes the turn. Returns whether this is the thread's outermost call; pass the result to
        `end`."""
        if self.is_mine:
            return False
        if not self._lock.acquire(blocking=False):
            raise ClientError(
                "this consumer is in use by another thread: give each thread its own consumer; "
                "only wakeup() and close() may be called from other threads"
            )
        self._owner = threading.get_ident()
        return True

    def wait(self, timeout_s: float) -> bool:
        """Takes the turn like `begin`, but waits for its owner. Also returns False if that takes
        too long."""
        if self.is_mine or not self._lock.acquire(timeout=timeout_s):
            return False
        self._owner = threading.get_ident()
        return True

    def end(self, outermost: bool) -> None:
        if outermost:
            self._owner = None
            self._lock.release()
