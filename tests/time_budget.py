"""On CI a run that takes too long is thrown away, however well it went.

The longest tests come first. On a machine that is given a fraction of its processors they alone can
take the time that CI allows. So on CI they begin within the first `LONG_TESTS_S` seconds of a run,
or not at all, and the run says at its end how many were left out. Runs on quiet machines are over
by then. Without `CI` in the environment every test runs.
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
        """Whether no further long test is to begin."""
        return self._is_limited and time.monotonic() - self._began > LONG_TESTS_S


def summary(reasons: list[str]) -> str:
    """What the run says of the tests that were skipped for these reasons; empty if none was."""
    count = sum(REASON in reason for reason in reasons)
    return f"{count} long tests were {REASON}" if count else ""
