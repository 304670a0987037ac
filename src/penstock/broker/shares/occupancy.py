"""How much share groups have to do on this broker, for metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.shares.led_partition import LedPartition
from penstock.shares.share_partition import SharePartition
from penstock.shares.states import RecordState

_OLDEST_MAX: Final = 100
"""For so many share partitions a scrape looks up the age of the oldest record."""


class GroupOccupancy(NamedTuple):
    """The share partitions of one group on this broker."""

    group_id: str
    backlog: int
    """Records that are not done, from the start offsets to the high watermarks."""
    in_flight: int
    letters: int
    """Records whose dead letters are not written yet."""
    oldest_ms: int
    """The timestamp of the oldest record that is not done; -1 if it is unknown."""
    delayed: int
    """Records in the windows that are not due yet, or wait for their back-off."""
    full_windows: int
    """Windows that are full of such records: later records are not delivered."""
    scheduled: int
    """Records with far due times that are not due yet. They are not part of the backlog."""


class OccupancyTable:
    """Sums up the share partitions of each group."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupOccupancy] = {}
        self._looked_up = 0

    def add(self, led: LedPartition) -> None:
        for group_id in led.groups:
            partition = led.partition(group_id)
            taken = partition.occupancy()
            backlog = max(0, led.hosted.high_watermark - partition.start_offset - taken.done)
            backlog += taken.promoted
            oldest_ms = -1
            if backlog and self._looked_up < _OLDEST_MAX:
                self._looked_up += 1
                oldest_ms = timestamp_at(led.hosted, partition.start_offset)
            now = led.now()
            delayed = sum(
                len(span)
                for span in (*partition.promoted, *partition.spans)
                if span.not_before_ms > now.ticks_ms
            )
            is_full = bool(delayed) and partition.next_fetch_offset(now) is None
            is_full = is_full and not taken.acquired
            found = GroupOccupancy(
                group_id,
                backlog,
                taken.acquired,
                taken.archiving,
                oldest_ms,
                delayed,
                int(is_full),
                led.schedules.scheduled(group_id),
            )
            before = self._groups.get(group_id)
            self._groups[group_id] = found if before is None else _sum(group_id, (before, found))

    def largest(self, count: int, other: str) -> list[GroupOccupancy]:
        """Returns the groups with the largest backlogs, and the sum of all others as `other`."""
        ordered = sorted(self._groups.values(), key=lambda each: (-each.backlog, each.group_id))
        rest = ordered[count:]
        return ordered[:count] + ([_sum(other, rest)] if rest else [])


def _sum(group_id: str, parts: Iterable[GroupOccupancy]) -> GroupOccupancy:
    parts = list(parts)
    return GroupOccupancy(
        group_id,
        sum(each.backlog for each in parts),
        sum(each.in_flight for each in parts),
        sum(each.letters for each in parts),
        min((each.oldest_ms for each in parts if each.oldest_ms >= 0), default=-1),
        sum(each.delayed for each in parts),
        sum(each.full_windows for each in parts),
        sum(each.scheduled for each in parts),
    )


def delivered_before(partition: SharePartition) -> int:
    """Returns how many records are not done although they were delivered before."""
    deliveries = {RecordState.AVAILABLE: 1, RecordState.ACQUIRED: 2}
    return sum(
        len(span)
        for span in (*partition.promoted, *partition.spans)
        if span.state in deliveries and span.delivery_count >= deliveries[span.state]
    )


def timestamp_at(hosted: HostedPartition, offset: int) -> int:
    """Returns the timestamp of the batch with the offset, or of the next one; -1 if unknown."""
    segments = hosted.log.segments
    at = max((n for n, each in enumerate(segments) if each.base_offset <= offset), default=0)
    for segment in segments[at : at + 2]:
        try:
            found = segment.locate(offset)
        except OSError:
            return -1
        if found is not None:
            return found[1].max_timestamp
    return -1
