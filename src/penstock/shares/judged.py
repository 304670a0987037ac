"""With which deduplication windows the far records of a share partition were judged. Pure.

The window of a share partition decides once whether a far record is a duplicate. The index of due
times is built from the log again and again, and must not decide otherwise: a record that has passed
as no duplicate would never be delivered. So the setting is stored with the schedule, and where it
has changed.

A smaller deduplication window never finds more duplicates. After a change, the smallest one that
was in use judges the records that had passed by then: some duplicates may be delivered, and nothing
is lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

_FIELDS = Struct(">qqq")


class Judged(NamedTuple):
    window_ms: int
    """The setting. 0: no deduplication."""
    earlier_end: int = 0
    """Records below it were judged with other settings before."""
    earlier_ms: int = 0
    """The smallest of these."""

    @property
    def largest_ms(self) -> int:
        return max(self.window_ms, self.earlier_ms)

    def changed(self, window_ms: int, passed_end: int) -> Judged:
        """Returns what holds with another setting. Records below `passed_end` may have passed."""
        if window_ms == self.window_ms:
            return self
        least_ms = min(self.window_ms, self.earlier_ms) if self.earlier_end else self.window_ms
        if window_ms > self.window_ms:
            return Judged(window_ms, passed_end, least_ms)
        if least_ms >= window_ms:
            return Judged(window_ms)
        return Judged(window_ms, self.earlier_end, least_ms)

    def encode(self) -> bytes:
        return _FIELDS.pack(*self)


def decode(data: bytes) -> Judged | None:
    """Returns None if nothing was stored."""
    return Judged(*_FIELDS.unpack(data)) if data else None


def combined(all_judged: Iterable[Judged]) -> Judged:
    """Returns what an index must do so that no record of any of these is missing in it.

    All of them have the same setting.
    """
    found = list(all_judged)
    earlier = [each for each in found if each.earlier_end]
    if not earlier:
        return found[0]
    end = max(each.earlier_end for each in earlier)
    return Judged(found[0].window_ms, end, min(each.earlier_ms for each in earlier))
