"""Figures over time, for the charts of the console. Pure.

A series has one value per two seconds for the last 15 minutes, and one per half a minute for the
last six hours. A value is the mean of what was recorded in its step. A step in which nothing was
recorded has no value: the charts show a gap, not a zero.

A full series takes less than 10 KB, and there are at most `SERIES_MAX` of them, so a history takes
about 10 MB at most. When there is no more room, a page gets the room of what no page has shown for
the longest time. Other new series are left out, and the answer says so.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isnan, nan
from typing import Any, Final

FINE_STEP_MS: Final = 2_000
FINE_KEPT: Final = 450
COARSE_STEP_MS: Final = 30_000
COARSE_KEPT: Final = 720
SERIES_MAX: Final = 1_000
RANGES_S: Final = (300, 900, 3_600, 21_600)
LINES_SHOWN: Final = 8
"""A chart shows this many lines. If a figure has more, those with the largest values are shown."""
_FOLLOWED_MS: Final = 3_600_000
_IDLE_MS: Final = 60_000
_log = logging.getLogger(__name__)

Scope = tuple[str, str]
"""What the figures are about: a kind, such as "topic", and a name."""
Values = Mapping[str, Mapping[str, float]]
"""Values by figure, such as "lag", and by line, such as the name of a partition."""
CLUSTER: Final[Scope] = ("cluster", "")
BROKERS: Final[Scope] = ("brokers", "")
QUERIES: Final[Scope] = ("queries", "")


class Ring:
    """The mean of each of the last steps."""

    __slots__ = ("_count", "_first", "_kept", "_newest", "_values", "step_ms")

    def __init__(self, step_ms: int, kept: int) -> None:
        self.step_ms = step_ms
        self._kept = kept
        self._values = array("d")
        self._first = 0
        self._newest = -1
        self._count = 0
        """How many values the mean of the newest step has."""

    def add(self, since_ms: int, at_ms: int, value: float) -> None:
        """Adds a value that describes the time after `since_ms`, up to `at_ms`."""
        step = at_ms // self.step_ms
        described = since_ms // self.step_ms + 1
        if not self._values or step < self._newest:
            # It is the first value, or the clock was set back.
            del self._values[:]
            self._first = max(step - self._kept + 1, min(described, step))
            self._newest = self._first - 1
        if step == self._newest:
            self._count += 1
            at = (step - self._first) % self._kept
            self._values[at] += (value - self._values[at]) / self._count
            return
        for each in range(max(self._newest + 1, step - self._kept + 1), step + 1):
            self._put(each, value if each >= described or each == step else nan)
        self._newest = step
        self._count = 1

    def _put(self, step: int, value: float) -> None:
        at = (step - self._first) % self._kept
        if at < len(self._values):
            self._values[at] = value
            return
        # The array grows as it is filled. Steps that were jumped over have no values.
        self._values.extend([nan] * (at - len(self._values)))
        self._values.append(value)

    def read(self, first: int, last: int) -> list[float | None]:
        """Returns the values of these steps. None: there is no value."""
        found: list[float | None] = []
        for step in range(first, last + 1):
            value = nan
            if self._newest - self._kept < step <= self._newest and step >= self._first:
                value = self._values[(step - self._first) % self._kept]
            found.append(None if isnan(value) else value)
        return found


class Series:
    __slots__ = ("coarse", "fine")

    def __init__(self) -> None:
        self.fine = Ring(FINE_STEP_MS, FINE_KEPT)
        self.coarse = Ring(COARSE_STEP_MS, COARSE_KEPT)

    def add(self, since_ms: int, at_ms: int, value: float) -> None:
        self.fine.add(since_ms, at_ms, value)
        self.coarse.add(since_ms, at_ms, value)


@dataclass(slots=True)
class _Kept:
    """The series of a scope."""

    looked_ms: float
    """When a page last asked for them. 0: never."""
    recorded_ms: int
    figures: dict[str, dict[str, Series]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(len(lines) for lines in self.figures.values())


class History:
    def __init__(self, series_max: int = SERIES_MAX) -> None:
        self._series_max = series_max
        self._scopes: dict[Scope, _Kept] = {}
        self._size = 0
        self._full_until_ms = 0
        """There was no room for a series. Until then no scope is dropped for one that no page
        shows, since the search takes time."""

    def __len__(self) -> int:
        return self._size

    def record(self, scope: Scope, since_ms: int, at_ms: int, values: Values) -> None:
        """Records values that describe the time after `since_ms`, up to `at_ms`."""
        kept = self._scopes.get(scope)
        if kept is None:
            if not any(values.values()):
                return
            looked_ms = inf if scope in (CLUSTER, BROKERS) else 0
            kept = self._scopes[scope] = _Kept(looked_ms, at_ms)
        for figure, lines in values.items():
            known = kept.figures.setdefault(figure, {})
            for line, value in lines.items():
                series = known.get(line)
                if series is None:
                    if not self._has_room(scope, kept, at_ms):
                        continue
                    series = known[line] = Series()
                    self._size += 1
                series.add(since_ms, at_ms, value)
        kept.recorded_ms = at_ms
        if not kept.size and not kept.looked_ms:
            del self._scopes[scope]

    def _has_room(self, scope: Scope, kept: _Kept, now_ms: int) -> bool:
        if self._size < self._series_max:
            return True
        if not kept.looked_ms and now_ms < self._full_until_ms:
            return False
        others = [each for each in self._scopes if each != scope]
        victim = min(
            others,
            key=lambda each: (self._scopes[each].looked_ms, self._scopes[each].recorded_ms),
            default=None,
        )
        if victim is not None:
            worst = self._scopes[victim]
            if worst.looked_ms < kept.looked_ms or now_ms - worst.recorded_ms > _IDLE_MS:
                self._size -= worst.size
                del self._scopes[victim]
                return True
        if not self._full_until_ms:
            _log.warning(
                "the metrics history is full (%d series): new series are not recorded", self._size
            )
        self._full_until_ms = now_ms + _IDLE_MS
        return False

    def follow(self, scope: Scope, now_ms: int) -> None:
        """Notes that a page shows this scope."""
        kept = self._scopes.get(scope)
        if kept is None:
            kept = self._scopes[scope] = _Kept(now_ms, now_ms)
        kept.looked_ms = max(kept.looked_ms, now_ms)
        if len(self._scopes) > self._series_max:
            for each in [each for each, found in self._scopes.items() if not found.size]:
                if each != scope:
                    del self._scopes[each]

    def is_followed(self, scope: Scope, now_ms: int) -> bool:
        """Returns whether a page has shown this scope in the last hour."""
        kept = self._scopes.get(scope)
        return kept is not None and now_ms - kept.looked_ms < _FOLLOWED_MS

    def read(self, scope: Scope, now_ms: int, range_s: int) -> dict[str, Any]:
        """Returns the figures of the last `range_s` seconds, as the charts need them."""
        fine = range_s * 1000 <= FINE_STEP_MS * FINE_KEPT
        step_ms = FINE_STEP_MS if fine else COARSE_STEP_MS
        last = now_ms // step_ms
        first = last - range_s * 1000 // step_ms + 1
        kept = self._scopes.get(scope)
        figures: dict[str, Any] = {}
        for figure, lines in {} if kept is None else kept.figures.items():
            read = {
                line: (series.fine if fine else series.coarse).read(first, last)
                for line, series in lines.items()
            }
            figures[figure] = _largest(read)
        return {
            "range_s": range_s,
            "step_ms": step_ms,
            "from_ms": first * step_ms,
            "steps": last - first + 1,
            "full": now_ms < self._full_until_ms,
            "figures": figures,
        }


def _largest(lines: dict[str, list[float | None]]) -> dict[str, Any]:
    """Returns the lines with the largest values, in the order of their names."""
    most = {
        line: max(found)
        for line, values in lines.items()
        if (found := [value for value in values if value is not None])
    }
    chosen = sorted(most, key=lambda line: -most[line])[:LINES_SHOWN]
    return {"lines": {line: lines[line] for line in sorted(chosen)}, "of": len(most)}
