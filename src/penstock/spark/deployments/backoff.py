"""Counts the failures of a pipeline, and decides how long to wait after each. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.spark.deployments.supervisor_events import TOLD_ERROR_MAX, Limits, Now

_JITTER: Final = 0.2
_DOUBLINGS_MAX: Final = 30
_MS: Final = 1_000


class Backoff:
    def __init__(self, limits: Limits, uniform: Callable[[], float]) -> None:
        self.failures = 0
        """How often it failed since it last worked."""
        self.error = ""
        self.retry_at = float("-inf")
        """Not before this boot time is it started again."""
        self.retry_ms = 0
        """The same on the wall clock, for people."""
        self._limits = limits
        self._uniform = uniform
        self._version = 0
        self._version_failures = 0

    def fail(self, version: int, error: str, now: Now, *, outside: bool = False) -> float:
        """Counts a failure, and returns the pause in seconds. `outside`: it is not the version's
        fault."""
        if self._version != version:
            self._version, self._version_failures = version, 0
        if not outside:
            self._version_failures += 1
        self.failures += 1
        self.error = error[:TOLD_ERROR_MAX]
        doublings = min(self.failures - 1, _DOUBLINGS_MAX)
        full_s = min(self._limits.backoff_s * 2.0**doublings, self._limits.backoff_max_s)
        pause_s = full_s * (1 - _JITTER * self._uniform())
        self.retry_at = now.boot + pause_s
        self.retry_ms = now.wall_ms + round(pause_s * _MS)
        return pause_s

    @property
    def is_hopeless(self) -> bool:
        """Whether the version failed so often that another one should be tried."""
        return self._version_failures >= self._limits.failures_max

    def version_failures(self, version: int) -> int:
        """Returns how often this version failed by its own fault since it last worked."""
        return self._version_failures if self._version == version else 0

    def resume(self, version: int, version_failures: int, failures: int, error: str) -> None:
        """Goes on with what another worker has counted."""
        self._version, self._version_failures = version, max(version_failures, 0)
        self.failures, self.error = failures, error

    def worked(self) -> None:
        self.failures = self._version_failures = 0
        self.error = ""

    def retry_now(self) -> None:
        self.retry_at, self.retry_ms = float("-inf"), 0
