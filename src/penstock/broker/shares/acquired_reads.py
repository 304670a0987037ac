"""Acquires records for share fetches: reads the log where a share partition may acquire something.

Promoted records are read one by one, because they may be anywhere in the log. They and the window
take turns, so neither keeps the other from being delivered, also if its records cannot be read.

What was acquired is locked, and counts as a delivery. So it is returned whatever happens after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from penstock.broker.error_codes import EXPECTED_ERRORS
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.shares.ack_answers import ShareCounters
from penstock.broker.shares.far_schedules import FarSchedules
from penstock.broker.shares.length_limits import QueueLength
from penstock.broker.shares.log_reads import (
    READ_BYTES_MAX,
    READ_BYTES_MIN,
    ReadBatch,
    ReadLimits,
    read_batches,
    records_of,
)
from penstock.broker.shares.promoted_marks import PromotedMarks
from penstock.broker.shares.record_scans import PARTS_MAX, RecordScans
from penstock.coordination.effects import Now
from penstock.shares.acquisition import isolated_size
from penstock.shares.events import Acquire, AcquiredRange, DropOldest, LogBatch
from penstock.shares.partition_shares import Effect, PartitionShares
from penstock.shares.promoted_parts import promoted_parts
from penstock.shares.settings import ShareSettings
from penstock.shares.share_partition import SharePartition
from penstock.shares.states import AcquireMode

STEPS_MAX: Final = 8
"""How many reads one attempt makes while it finds nothing to deliver, such as aborted batches."""
PROMOTED_READS_MAX: Final = 32
"""How many reads of promoted records one attempt makes."""
DROP_MARKS_MAX: Final = 500
"""How many marks of records one attempt looks at to give up what is too much."""
_RECORD_BYTES: Final = 1024
"""How large a record is assumed to be before any was read."""
_EVERYTHING: Final = 2**63 - 1


class Wanted(NamedTuple):
    """What a share fetch wants of one partition."""

    member_id: str
    max_records: int
    bytes_max: int
    batch_size: int = 0
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED


class Given(NamedTuple):
    records: bytes | memoryview
    ranges: tuple[AcquiredRange, ...]


class AcquiredReads:
    """The reads of one led partition."""

    def __init__(
        self,
        hosted: HostedPartition,
        shares: PartitionShares,
        settings: dict[str, ShareSettings],
        counters: ShareCounters,
        scans: RecordScans,
        promoted_marks: PromotedMarks,
        length: QueueLength,
        schedules: FarSchedules,
        now: Callable[[], Now],
        carry_out: Callable[[Iterable[Effect]], None],
        wake: Callable[[str], None],
    ) -> None:
        self.acquired: tuple[AcquiredRange, ...] = ()
        """What the last `Acquire` has acquired. Its owner sets it."""
        self._hosted = hosted
        self._shares = shares
        self._settings = settings
        self._counters = counters
        self._scans = scans
        self._promoted_marks = promoted_marks
        self._length = length
        self._schedules = schedules
        self._now = now
        self._carry_out = carry_out
        self._wake = wake
        self._record_bytes = _RECORD_BYTES
        self._window_is_next: set[str] = set()

    def upper_offset(self, group_id: str) -> int:
        """Returns the offset below which the group may read."""
        settings, hosted = self._settings[group_id], self._hosted
        return hosted.last_stable_offset if settings.read_committed else hosted.high_watermark

    def acquire(self, group_id: str, wanted: Wanted) -> Given | None:
        """Returns records for a member. Raises one of `EXPECTED_ERRORS` if they cannot be read."""
        partition = self._shares.partition(group_id)
        self._schedules.on_fetch(group_id, partition)
        if group_id in self._window_is_next:
            self._window_is_next.discard(group_id)
            given = self._acquire_in_window(group_id, wanted)
            return given or self._acquire_promoted(group_id, wanted)
        try:
            given = self._acquire_promoted(group_id, wanted)
        except EXPECTED_ERRORS:
            self._window_is_next.add(group_id)
            raise
        if given is not None:
            self._window_is_next.add(group_id)
        return given or self._acquire_in_window(group_id, wanted)

    def forget(self, group_id: str) -> None:
        self._window_is_next.discard(group_id)
        self._scans.forget(group_id)
        self._promoted_marks.forget(group_id)

    # The window

    def _acquire_in_window(self, group_id: str, wanted: Wanted) -> Given | None:
        settings, partition = self._settings[group_id], self._shares.partition(group_id)
        upper, now = self.upper_offset(group_id), self._now()
        below = self._length.drop_below(upper)
        if below and not settings.dead_letters:
            if not self._drop_oldest(group_id, partition, below, now):
                self._wake(group_id)
                return None
            below = 0
        bytes_max, parts_left = self._bytes_max(wanted), PARTS_MAX
        for _ in range(STEPS_MAX):
            offset = _next_offset(partition, below, now)
            if offset is None or offset >= upper:
                return None
            stop = partition.end_offset + partition.room
            limits = ReadLimits(upper, stop, bytes_max, settings.read_committed)
            batches = read_batches(self._hosted, offset, limits)
            if not batches:
                return None
            parts = self._scans.parts(group_id, partition, batches, limits, offset, parts_left)
            if parts is None:
                return None
            given = self._take(group_id, wanted, offset, batches, parts, now, drop_below=below)
            self._note_size(batches)
            if given is not None:
                return given
            if _next_offset(partition, below, now) == offset:
                return None
            parts_left -= len(parts)
            if parts_left <= 0:
                break
        self._wake(group_id)
        return None

    def _drop_oldest(self, group_id: str, partition: SharePartition, below: int, now: Now) -> bool:
        """Gives up what is too much, without reading it. Returns whether that was all.

        Scheduled records stay: where there may be some, it gives up only what was read, a limited
        number of ranges at a time.
        """
        room = partition.room
        if not room:
            below = min(below, partition.end_offset)
        first = partition.first_open(below)
        if first is None:
            return True
        marks_max = min(DROP_MARKS_MAX, max(1, room // 2))
        far = self._scans.far_between(group_id, partition, first, below, marks_max)
        end = below if far is None else far.end
        if end > first:
            ranges = () if far is None else far.ranges
            epoch = self._hosted.log.epochs.epoch_at(end - 1)
            dropped = partition.dropped
            event = DropOldest(end, epoch, ranges)
            self._carry_out(self._shares.handle(group_id, event, now))
            self._length.note_dropped(partition.dropped - dropped)
        return end == below or not self._scans.has_read(group_id, partition, end)

    # Promoted records

    def _acquire_promoted(self, group_id: str, wanted: Wanted) -> Given | None:
        settings, partition = self._settings[group_id], self._shares.partition(group_id)
        upper, now = self.upper_offset(group_id), self._now()
        if partition.next_promoted(now) is None:
            return None
        marks = self._promoted_marks.of(group_id, partition)
        pieces: list[bytes | memoryview] = []
        ranges: list[AcquiredRange] = []
        bytes_left, left = self._bytes_max(wanted), wanted.max_records
        sent = -1
        for _ in range(PROMOTED_READS_MAX):
            offset = partition.next_promoted(now)
            if offset is None or offset not in marks or offset >= upper:
                break
            if left <= 0 or bytes_left <= 0:
                break
            span = next(each for each in partition.promoted if each.last >= offset)
            is_alone = isolated_size(1, span.delivery_count, settings.delivery_limit) is not None
            if is_alone and ranges:
                break
            size = min(bytes_left, 1 + 2 * self._record_bytes * (span.last - offset))
            limits = ReadLimits(upper, _EVERYTHING, size, settings.read_committed)
            try:
                batches = read_batches(self._hosted, offset, limits)
            except EXPECTED_ERRORS:
                if not ranges:
                    raise
                break
            if not batches:
                break
            known = [each.batch for each in batches]
            parts = promoted_parts(partition.promoted, offset, known, marks)
            limited = wanted._replace(max_records=left)
            unsent = [each for each in batches if each.batch.first > sent]
            given = self._take(group_id, limited, offset, unsent, parts, now, is_promoted=True)
            if given is None:
                if partition.next_promoted(now) == offset:
                    break
                continue
            pieces.append(given.records)
            ranges += given.ranges
            # Records of one batch may be acquired one by one. The batch is sent once.
            sent = next(each.last for each in known if each.last >= ranges[-1].last)
            bytes_left -= len(given.records)
            left -= sum(each.last - each.first + 1 for each in given.ranges)
            if is_alone:
                break
        if not ranges:
            return None
        return Given(pieces[0] if len(pieces) == 1 else b"".join(pieces), tuple(ranges))

    # Both

    def _take(
        self,
        group_id: str,
        wanted: Wanted,
        offset: int,
        batches: list[ReadBatch],
        read: tuple[LogBatch, ...],
        now: Now,
        *,
        is_promoted: bool = False,
        drop_below: int = 0,
    ) -> Given | None:
        member_id, max_records, _, batch_size, mode = wanted
        sizes = (max_records, batch_size, mode)
        event = Acquire(None, member_id, offset, read, *sizes, is_promoted, drop_below)
        partition = self._shares.partition(group_id)
        redelivered, dropped = partition.redelivered, partition.dropped
        self._carry_out(self._shares.handle(group_id, event, now))
        self._length.note_dropped(partition.dropped - dropped)
        ranges, self.acquired = self.acquired, ()
        if not ranges:
            return None
        self._counters.delivered += sum(each.last - each.first + 1 for each in ranges)
        self._counters.redelivered += partition.redelivered - redelivered
        return Given(records_of(batches, ranges), ranges)

    def _bytes_max(self, wanted: Wanted) -> int:
        expected = 2 * self._record_bytes * wanted.max_records
        return min(wanted.bytes_max, READ_BYTES_MAX, max(READ_BYTES_MIN, expected))

    def _note_size(self, batches: list[ReadBatch]) -> None:
        span = batches[-1].batch.last - batches[0].batch.first + 1
        self._record_bytes = max(1, sum(len(each.data) for each in batches) // span)

    def has_bytes(self, group_id: str, size: int) -> bool:
        """Whether about this many bytes may be acquired."""
        offset = self.acquirable_at(group_id)
        if offset is None or size <= 1:
            return offset is not None
        piece = self._hosted.log.read_or_span(
            offset, min(size, READ_BYTES_MAX), self.upper_offset(group_id), READ_BYTES_MAX
        )
        # A read ends with a whole batch, so it may be less although there is more.
        return piece is not None and len(piece) >= min(size, READ_BYTES_MAX) // 2

    def acquirable_at(self, group_id: str) -> int | None:
        """Returns an offset where something may be acquired."""
        if group_id not in self._shares:
            return None
        partition, now = self._shares.partition(group_id), self._now()
        upper = self.upper_offset(group_id)
        for offset in (partition.next_promoted(now), partition.next_fetch_offset(now)):
            if offset is not None and offset < upper:
                return offset
        return None


def _next_offset(partition: SharePartition, drop_below: int, now: Now) -> int | None:
    """Returns where to read. Records that are given up need not be due."""
    to_drop = partition.first_open(drop_below) if drop_below else None
    if to_drop is not None and (to_drop < partition.end_offset or partition.room):
        return to_drop
    return partition.next_fetch_offset(now)
