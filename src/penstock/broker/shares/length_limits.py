"""Limits the length of a queue: `penstock.queue.length.max` of a topic.

The length is the number of offsets from the lowest start offset of the share groups to the end of
the log. With the policy `refuse`, the partition asks `QueueLength` before each append. It has a
guard only while it has the setting and a share group is in memory, so other topics pay for one
comparison. With `drop-oldest`, a share fetch first gives up what is too much. Without dead letters,
nothing of it is read, unless the topic has scheduled records, which stay. With dead letters, the
records are read as for a delivery, because only a record that would be delivered gets a letter.

A group without members stays in memory while its topic has a limit, because its start offset is
needed. Meanwhile the state of the group is looked up from time to time, because an administrator
may reset or delete it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.broker.error_codes import EXPECTED_ERRORS
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.metadata.queue_configs import DROP_OLDEST, REFUSE
from penstock.partition.batch_rules import BatchRefused
from penstock.ports import Clock
from penstock.shares.partition_shares import PartitionShares
from penstock.shares.state_port import SharePartitionId, ShareState
from penstock.wire.errors import ErrorCode

LOOK_UP_S: Final = 10.0
"""How often the state of a group without members is looked up."""


class LengthCounters:
    """What the limits of this broker's queues have done since it started."""

    __slots__ = ("dropped", "refused")

    def __init__(self) -> None:
        self.dropped = 0
        """Records that share groups gave up."""
        self.refused = 0
        """Batches of producers."""


class QueueLength:
    """The limit of one partition."""

    def __init__(self, hosted: HostedPartition, counters: LengthCounters) -> None:
        self._hosted = hosted
        self._counters = counters
        self._start_offset = 0

    @property
    def is_limited(self) -> bool:
        return self._hosted.settings.penstock_queue_length_max > 0

    def update(self, shares: PartitionShares) -> None:
        """Follows the start offsets of the share groups in memory."""
        starts = [shares.partition(each).start_offset for each in shares.live_groups]
        self._hosted.append_guard = self._check if starts and self.is_limited else None
        self._start_offset = min(starts, default=0)

    def close(self) -> None:
        self._hosted.append_guard = None

    def _check(self) -> None:
        """Raises `BatchRefused` if the queue is too long."""
        hosted = self._hosted
        limit = hosted.settings.penstock_queue_length_max
        length = hosted.log.end_offset - self._start_offset
        if not limit or length < limit or hosted.settings.penstock_queue_length_policy != REFUSE:
            return
        self._counters.refused += 1
        raise BatchRefused(
            ErrorCode.POLICY_VIOLATION,
            f"the queue {hosted.topic}-{hosted.index} has {length} records, and "
            f"penstock.queue.length.max is {limit}: try again when workers have caught up",
        )

    def drop_below(self, upper_offset: int) -> int:
        """Returns the offset below which a share group gives up its records; `upper_offset` is
        where it may read. 0: it gives up nothing."""
        settings = self._hosted.settings
        if not self.is_limited or settings.penstock_queue_length_policy != DROP_OLDEST:
            return 0
        return min(
            max(0, self._hosted.high_watermark - settings.penstock_queue_length_max), upper_offset
        )

    def note_dropped(self, count: int) -> None:
        self._counters.dropped += count


async def until_changed(
    clock: Clock,
    state: Callable[[], ShareState],
    share_partition: SharePartitionId,
    state_epoch: int,
    length: QueueLength,
    is_kept: Callable[[], bool],
) -> None:
    """Returns when the state was reset or deleted, or the start offset is not needed any more."""
    while is_kept() and length.is_limited:
        await clock.sleep(LOOK_UP_S)
        try:
            summary = await state().summary(share_partition)
        except EXPECTED_ERRORS:
            continue
        if summary is None or summary.state_epoch != state_epoch:
            return
