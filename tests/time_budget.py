"""Skips long tests on CI if the run would otherwise exceed CI's time limit.

CI discards a run that takes too long, even if every test passed. The longest tests come first. On a
machine that gets a fraction of its processors they alone can take the time that CI allows. So on CI
a long test starts within the first `LONG_TESTS_S` seconds of a run, or is skipped, and the run
reports at its end how many were skipped. On a quiet machine the run is over by then. Without `CI`
in the environment every test runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

LONG_TESTS_S = 28 * 60.0
REASON = (
    "left out: this machine is so slow today that CI's time limit would end the run; "
    "`make test` without CI=true runs every test"
)


class TimeBudget:
    def __init__(self, environment: Mapping[str, str] = os.environ, *, began: float | None = None):
        self._is_limited = bool(environment.get("CI"))
        self._began = time.monotonic() if began is None else began

    def is_used_up(self) -> bool:
        """Returns whether no more long tests may start."""
        return self._is_limited and time.monotonic() - self._began > LONG_TESTS_S


def summary(reasons: list[str]) -> str:
    """Returns a line that says how many tests were skipped for `REASON`; empty if none."""
    count = sum(REASON in reason for reason in reasons)
    return f"{count} long tests were {REASON}" if count else ""
