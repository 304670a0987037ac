"""Measures how much slower this machine is now than a quiet one, for deadlines in tests.

A test waits for a condition, and fails when the condition does not hold before a deadline. On a
machine that other programs keep busy the same work takes several times as long, so tests with fixed
deadlines fail without a defect. `patient(10.0)` is ten seconds on a quiet machine and more on a
busy one.

The factor comes from two numbers that Linux keeps: how many processes want a processor, and which
share of the time the host gave to other virtual machines ("steal"). It is never below 1. It is the
largest of the last two minutes, as a machine that was busy a moment ago may be busy again a moment
later. `PENSTOCK_SLOWNESS` sets a lower bound, and so does a CPU limit of the container (a quota of
its cgroup): with half a processor it is 4, as deadlines are chosen for two.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.ports import Clock
from penstock.runtime import SystemClock

_LOOK_EVERY_S: Final = 1.0
_REMEMBER_S: Final = 120.0
_FACTOR_MAX: Final = 30.0
_PROCESSORS_EXPECTED: Final = 2
"""How many processors a quiet machine has."""
_STEAL_FIELD: Final = 8
"""The number of the stolen time in the first line of /proc/stat, counted after the word `cpu`."""


def factor_of(runnable: float, processors: int, stolen_share: float) -> float:
    """Returns 1 while every runnable process has a processor; N if each gets an Nth of one."""
    crowding = max(1.0, runnable / processors)
    return min(_FACTOR_MAX, crowding / max(1.0 / _FACTOR_MAX, 1.0 - stolen_share))


def read_system() -> tuple[str, float]:
    """Returns the text of /proc/stat, and the average number of runnable processes (1 minute)."""
    try:
        stat = Path("/proc/stat").read_text()
    except OSError:
        stat = ""
    return stat, os.getloadavg()[0]


def cpu_limit(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """Returns how many processors the cgroup of this process may use; infinite without a limit."""
    try:
        rows = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return math.inf
    limit = math.inf
    for _, controllers, path in rows:
        names = controllers.split(",")
        for group in (path, *map(str, Path(path).parents)):
            if not controllers:
                limit = min(limit, _quota(root / group.strip("/") / "cpu.max"))
            elif "cpu" in names:
                directory = root / "cpu" / group.strip("/")
                quota, period = directory / "cpu.cfs_quota_us", directory / "cpu.cfs_period_us"
                limit = min(limit, _quota(quota, period))
    return limit


def _quota(*files: Path) -> float:
    """Returns a quota divided by its period. The numbers are in one file, or in one file each."""
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
    except (OSError, ValueError):
        return math.inf
    return int(quota) / int(period) if quota.isdigit() and int(quota) else math.inf


class Slowness:
    """The measured factor. It looks at the system at most once a second."""

    def __init__(
        self,
        clock: Clock,
        read: Callable[[], tuple[str, float]] = read_system,
        processors: int | None = None,
        at_least: float = 1.0,
    ) -> None:
        self._clock = clock
        self._read = read
        self._processors = processors or os.cpu_count() or 1
        self._at_least = max(1.0, at_least)
        self._seen: list[tuple[float, float]] = []
        """When each factor was seen, oldest first."""
        self._times: tuple[int, int] | None = None

    @property
    def factor(self) -> float:
        now = self._clock.monotonic()
        if not self._seen or now - self._seen[-1][0] >= _LOOK_EVERY_S:
            oldest = now - _REMEMBER_S
            self._seen = [each for each in self._seen if each[0] >= oldest]
            self._seen.append((now, self._look()))
        return max(self._at_least, *(factor for _, factor in self._seen))

    def _look(self) -> float:
        stat, load = self._read()
        runnable, stolen_share = load, 0.0
        for line in stat.splitlines():
            name, *numbers = line.split()
            if name == "procs_running":
                runnable = max(runnable, int(numbers[0]))
            elif name == "cpu" and len(numbers) >= _STEAL_FIELD:
                times = [int(each) for each in numbers[:_STEAL_FIELD]]
                stolen, whole = times[-1], sum(times)
                if self._times is not None and whole > self._times[1]:
                    stolen_share = (stolen - self._times[0]) / (whole - self._times[1])
                self._times = (stolen, whole)
        return factor_of(runnable, self._processors, stolen_share)


_HERE: Final = Slowness(
    SystemClock(),
    at_least=max(
        float(os.environ.get("PENSTOCK_SLOWNESS") or 1), _PROCESSORS_EXPECTED / cpu_limit()
    ),
)


def slowness() -> float:
    """Returns the current factor of this machine: 1 on a quiet one."""
    return _HERE.factor


def patient(seconds: float) -> float:
    """Returns `seconds` on a quiet machine, and more on a busy one."""
    return seconds * slowness()
