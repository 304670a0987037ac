"""Estimates how long ago the oldest unread record of a partition was written. Pure.

Remembers when the end of the log was at which offset. The record at an offset was written when the
end passed that offset. Times between two samples are interpolated.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Mapping
from typing import Final

from penstock.topic_partition import TopicPartition

PARTITIONS_MAX: Final = 1_000
SAMPLES_MAX: Final = 200
"""A sample takes 16 bytes, so all samples take about 3 MB at most."""


class EndOffsets:
    """The end offset of a partition over time. Older samples are further apart."""

    __slots__ = ("_ends", "_times")

    def __init__(self) -> None:
        self._times = array("q")
        self._ends = array("q")

    def __len__(self) -> int:
        return len(self._times)

    def add(self, now_ms: int, end: int) -> None:
        times, ends = self._times, self._ends
        if ends and (end < ends[-1] or now_ms < times[-1]):
            # The log was truncated, the topic was created again, or the clock was set back.
            del times[:], ends[:]
        if len(ends) > 1 and ends[-2] == ends[-1] == end:
            times[-1] = now_ms
            return
        times.append(now_ms)
        ends.append(end)
        if len(times) > SAMPLES_MAX:
            half = len(times) // 2
            del times[1:half:2], ends[1:half:2]

    def age_s(self, now_ms: int, offset: int) -> float | None:
        """Returns the age of the record at this offset; 0 if it is not written yet.

        None: it was written before the first sample.
        """
        at = bisect_right(self._ends, offset)
        if at == 0:
            return None
        if at == len(self._ends):
            return 0.0
        before, after = self._ends[at - 1], self._ends[at]
        share = (offset - before) / (after - before)
        written_ms = self._times[at - 1] + share * (self._times[at] - self._times[at - 1])
        return max(0.0, (now_ms - written_ms) / 1000)


class LagTimes:
    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, EndOffsets] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def add(
        self,
        now_ms: int,
        ends: Mapping[TopicPartition, int],
        wanted: Collection[TopicPartition],
    ) -> None:
        """Adds the end offsets of the partitions that groups read. Forgets the other partitions.

        The lag of partitions beyond `PARTITIONS_MAX` is not known in seconds.
        """
        for each in self._partitions.keys() - wanted:
            del self._partitions[each]
        for each in wanted:
            if each in ends and (
                each in self._partitions or len(self._partitions) < PARTITIONS_MAX
            ):
                self._partitions.setdefault(each, EndOffsets()).add(now_ms, ends[each])

    def lag_s(self, now_ms: int, committed: Mapping[TopicPartition, int]) -> float | None:
        """Returns the age of the oldest record that a group has not read, or None."""
        most = 0.0
        for topic_partition, offset in committed.items():
            known = self._partitions.get(topic_partition)
            age = None if known is None else known.age_s(now_ms, offset)
            if age is None:
                return None
            most = max(most, age)
        return most
