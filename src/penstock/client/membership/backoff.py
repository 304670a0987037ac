"""When to try again after a failure. Pure."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Pauses that double from `first_ms` to `longest_ms`. `jitter` returns numbers in [0, 1)."""

    def __init__(self, first_ms: int, longest_ms: int, jitter: Callable[[], float]) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._jitter = jitter
        self._failures = 0
        self.until = 0.0

    def on_failure(self, now: float) -> None:
        pause_ms = min(self._first_ms * 2 ** min(self._failures, 16), self._longest_ms)
        self._failures += 1
        self.until = now + pause_ms / 1000 * (0.5 + self._jitter())

    def on_success(self) -> None:
        self._failures = 0
        self.until = 0.0
