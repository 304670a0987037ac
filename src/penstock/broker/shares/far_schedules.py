"""Promotes far records of the share groups of one led partition when they are due.

A task reads the log into the index (`due_scan`), advances the cursors of the groups on threads, and
tells their share partitions what is due. It runs when a window has moved, when a due time has come,
or when there is room again, and one at a time. If the disk is full, or the log cannot be read, it
tries again with a growing pause: far records come late then, and everything else goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock.broker.coordinators.shard_timers import ShardTimers
from penstock.broker.error_codes import EXPECTED_ERRORS
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.schedules.bucket_index import DamagedIndex
from penstock.broker.shares.due_scan import DueScan
from penstock.coordination.effects import Now
from penstock.ports import Env
from penstock.schedule.cursor import ScheduleCursor
from penstock.shares.events import Event, Promote, SwitchSchedule
from penstock.shares.judged import Judged, combined, decode
from penstock.shares.partition_shares import PartitionShares
from penstock.shares.share_partition import SharePartition

_log = logging.getLogger(__name__)

PAUSE_MIN_MS: Final = 500
PAUSE_MAX_MS: Final = 60_000
WAIT_MAX_MS: Final = 60_000
"""The wall clock may jump, so a timer is never longer."""


@dataclass(slots=True)
class FarCounters:
    """What the schedules of this broker have done since it started."""

    promoted: int = 0
    failed: int = 0
    """Attempts to read or write an index, or to read the log for it, that failed."""


class _Seen(NamedTuple):
    """What the last advance of a group has found."""

    cursor: ScheduleCursor
    next_ms: int | None
    left: int


class FarSchedules:
    """See the module's docstring."""

    def __init__(
        self,
        env: Env,
        hosted: HostedPartition,
        scan: DueScan,
        counters: FarCounters,
        shares: PartitionShares,
        now: Callable[[], Now],
        handle: Callable[[str, Event], None],
        spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], None],
    ) -> None:
        """`handle` passes an event to the share partition of a group."""
        self._hosted = hosted
        self._scans = {False: scan}
        """One for each isolation level: whether its groups read committed records only."""
        self._counters = counters
        self._shares = shares
        self._now = now
        self._handle = handle
        self._spawn = spawn
        self._timers: ShardTimers[str] = ShardTimers(env.clock, lambda _: self.poke())
        self._seen: dict[str, _Seen] = {}
        self._judged: dict[str, tuple[SharePartition, Judged]] = {}
        self._is_used = False
        self._is_running = False
        self._is_closed = False
        self._pause_ms = 0
        self._paused_until_ms = 0

    def scheduled(self, group_id: str) -> int:
        """Returns about how many records of a group are scheduled, as far as it was looked."""
        seen = self._seen.get(group_id)
        return 0 if seen is None else seen.left

    @property
    def entries(self) -> int:
        """The number of entries in the index."""
        return sum(scan.entries for scan in self._scans.values())

    def on_fetch(self, group_id: str, partition: SharePartition) -> None:
        """Follows the setting of the topic, before records are acquired."""
        is_timed, schedule = self._hosted.settings.penstock_timed_records, partition.schedule
        if not (is_timed or schedule.number):
            return
        if schedule.switched(partition.end_offset, is_timed=is_timed) != schedule:
            self._handle(group_id, SwitchSchedule(is_timed))
        self._judge(group_id, partition)
        self._is_used = True
        self.poke()

    def poke(self) -> None:
        """Something has changed: a window, a time, or the room for promoted records."""
        if self._is_used and not self._is_running and not self._is_closed:
            if self._now().ticks_ms < self._paused_until_ms:
                self._timers.set("", self._paused_until_ms)
            elif self._ready():
                self._is_running = True
                self._spawn(self._run)
            else:
                self._set_timer()

    def close(self) -> None:
        self._is_closed = True
        self._timers.cancel_all()
        if not self._is_running:
            self._spawn(self._close_scans)

    def _scan_of(self, partition: SharePartition) -> DueScan:
        is_committed = partition.read_committed
        if is_committed not in self._scans:
            self._scans[is_committed] = self._scans[False].for_committed_readers()
        return self._scans[is_committed]

    def _sharing(self, scan: DueScan) -> dict[str, SharePartition]:
        """Returns the open share partitions that use an index."""
        return {each: one for each, one in self._open().items() if self._scan_of(one) is scan}

    # Deciding what to do

    def _open(self) -> dict[str, SharePartition]:
        """Returns the share partitions whose schedules have not ended."""
        found = {each: self._shares.partition(each) for each in self._shares.live_groups}
        return {each: one for each, one in found.items() if not one.schedule.has_ended}

    def _ready(self) -> list[str]:
        """Returns the groups whose cursors may advance."""
        wall_ms = self._now().wall_ms
        return [each for each, one in self._open().items() if self._may_advance(each, one, wall_ms)]

    def _may_advance(self, group_id: str, partition: SharePartition, wall_ms: int) -> bool:
        if not partition.room_to_promote:
            return False
        cursor, ceiling = partition.schedule.cursor, partition.schedule.ceiling
        if max(_end(partition), cursor.end) > self._scan_of(partition).readable_end:
            return False  # A fetch looks again.
        seen = self._seen.get(group_id)
        if seen is None or seen.cursor != cursor or _end(partition) > cursor.end:
            return True
        if seen.next_ms is None:
            return 0 <= ceiling <= partition.start_offset
        return seen.next_ms <= wall_ms

    def _set_timer(self) -> None:
        now = self._now()
        times = [
            seen.next_ms
            for group_id in self._open()
            if (seen := self._seen.get(group_id)) is not None
            and seen.next_ms is not None
            and seen.next_ms > now.wall_ms
        ]
        if times:
            wait_ms = min(min(times) - now.wall_ms, WAIT_MAX_MS)
            self._timers.set("", now.ticks_ms + wait_ms)

    # The task

    async def _run(self) -> None:
        try:
            while not self._is_closed and (ready := self._ready()):
                await self._advance(ready[0])
            self._pause_ms = 0
        except DamagedIndex as error:
            await self._close_scans()
            self._pause(error)
        except (OSError, *EXPECTED_ERRORS) as error:
            self._pause(error)
        finally:
            self._is_running = False
            if self._is_closed:
                await self._close_scans()
        self.poke()

    async def _close_scans(self) -> None:
        for scan in self._scans.values():
            await scan.close()

    def _judge(self, group_id: str, partition: SharePartition) -> Judged:
        """Returns how the far records of a share partition are judged, also from now on."""
        window_ms = self._hosted.settings.penstock_dedup_window_ms
        known = self._judged.get(group_id)
        if known is None or known[0] is not partition:
            known = partition, decode(partition.attachment) or Judged(window_ms)
        judged = known[1].changed(window_ms, _end(partition))
        self._judged[group_id] = partition, judged
        return judged

    async def _advance(self, group_id: str) -> None:
        """Advances one cursor. The others may move meanwhile, this one only by a promotion."""
        partition = self._shares.partition(group_id)
        scan, judged = self._scan_of(partition), self._judge(group_id, partition)
        sharing = self._sharing(scan)
        cursors = [each.schedule.cursor for each in sharing.values()]
        cursor, end, room = partition.schedule.cursor, _end(partition), partition.room_to_promote
        all_judged = combined((judged, *(self._judge(*each) for each in sharing.items())))
        await scan.cover(cursors, all_judged, max(end, cursor.end))
        wall_ms = self._now().wall_ms
        found, left, has_passed = await scan.advance(cursor, end, wall_ms, room)
        if self._is_closed or not self._is_same(group_id, partition, cursor):
            return
        log_start = self._hosted.log.log_start_offset
        offsets = tuple(each.offset for each in found.entries if each.offset >= log_start)
        self._counters.promoted += len(offsets)
        is_last = not offsets and found.next_ms is None
        attachment, known = judged.encode(), partition.attachment
        is_stored = has_passed or (bool(known) and known != attachment)
        self._handle(group_id, Promote(offsets, found.cursor, is_last, is_stored, attachment))
        if not (offsets or is_stored) and group_id in self._shares:
            # The share partition may have changed the cursor: its schedule may have ended.
            self._seen[group_id] = _Seen(partition.schedule.cursor, found.next_ms, left)
        else:
            self._seen[group_id] = _Seen(found.cursor, found.next_ms, left)
        self._judged = {each: one for each, one in self._judged.items() if each in self._shares}
        await scan.forget(each.schedule.cursor for each in self._sharing(scan).values())

    def _is_same(self, group_id: str, partition: SharePartition, cursor: ScheduleCursor) -> bool:
        """Whether the share partition was neither loaded again nor moved meanwhile."""
        return (
            group_id in self._shares
            and self._shares.partition(group_id) is partition
            and partition.schedule.cursor == cursor
            and partition.room_to_promote > 0
        )

    def _pause(self, error: Exception) -> None:
        self._counters.failed += 1
        self._pause_ms = min(max(PAUSE_MIN_MS, 2 * self._pause_ms), PAUSE_MAX_MS)
        self._paused_until_ms = self._now().ticks_ms + self._pause_ms
        _log.warning(
            "cannot read or write the schedule of %s-%d, so its records with far due times are "
            "delayed: %s; retrying in %d ms",
            self._hosted.topic,
            self._hosted.index,
            error,
            self._pause_ms,
        )


def _end(partition: SharePartition) -> int:
    """Returns the offset up to which the schedule may look."""
    ceiling = partition.schedule.ceiling
    return partition.end_offset if ceiling < 0 else min(partition.end_offset, ceiling)
