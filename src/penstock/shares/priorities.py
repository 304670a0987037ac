"""Divides what a share fetch may take among the levels of priority of a topic. Pure.

Partition p of a topic with n levels has level p modulo n. Level 0 has weight 1, level 1 weight 2,
level 2 weight 4, and so on. While several levels have records, each gets records in proportion to
its weight; what a level does not use, the others get. So the highest level gets most, and none
starves.

    plan(waiting, limit)        returns how many records each level may give, the highest first
    charge(level, records)      says how many it gave

This is weighted fair queueing. Each level has a virtual time, which grows by the cost of each
record that it gives: 1 for the highest level, twice as much for each lower one. The level whose
virtual time is the lowest is next. A level may give more than it was allowed, because batches are
not divided; then it waits longer afterwards. A level that had nothing to give does not save that
up: when it has records again, it continues with the lowest virtual time that the others had.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.coordination.effects import Now
from penstock.shares.share_partition import SharePartition

_STEPS: Final = 64
"""A limit is divided in about so many steps. The charges correct what that gets wrong."""


def level_of(partition: int, levels: int) -> int:
    return partition % levels


def waiting_records(partition: SharePartition, upper_offset: int, now: Now) -> int:
    """Returns about how many records could be acquired below an offset, as far as the window
    reaches."""
    in_window = sum(
        len(span)
        for span in (*partition.promoted, *partition.spans)
        if span.is_open and span.not_before_ms <= now.ticks_ms
    )
    reach = min(upper_offset, partition.end_offset + partition.room)
    return in_window + max(0, reach - partition.end_offset)


class PriorityTurns:
    """The virtual times of one topic in one group."""

    __slots__ = ("_clock", "_times", "levels")

    def __init__(self, levels: int) -> None:
        self.levels = levels
        self._clock = 0
        """The lowest virtual time of a level that had something to give."""
        self._times = [0] * levels

    def plan(self, waiting: Mapping[int, int], limit: int) -> list[tuple[int, int]]:
        """Returns levels with the number of records that each may give, the highest level first.

        `waiting` has the number of records that each level could give now.
        """
        self._times = [max(each, self._clock) for each in self._times]
        left = {level: count for level, count in waiting.items() if count > 0}
        if not left or limit <= 0:
            return []
        self._clock = min(self._times[level] for level in left)
        times = {level: self._times[level] for level in left}
        allowed = dict.fromkeys(left, 0)
        step = max(1, limit // _STEPS)
        while limit > 0 and left:
            level = min(left, key=lambda each: (times[each], -each))
            count = min(step, limit, left[level])
            allowed[level] += count
            times[level] += count * self._cost(level)
            limit -= count
            left[level] -= count
            if not left[level]:
                del left[level]
        return [
            (level, allowed[level]) for level in sorted(allowed, reverse=True) if allowed[level]
        ]

    def charge(self, level: int, records: int) -> None:
        self._times[level] += records * self._cost(level)

    def _cost(self, level: int) -> int:
        return 1 << (self.levels - 1 - level)
