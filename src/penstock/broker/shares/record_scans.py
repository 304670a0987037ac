"""Reads the records of topics whose records have due times, or are checked for duplicates.

A share partition may only acquire batches whose records were read before: `parts` returns them, or
None, and begins to read. Records are decoded on threads, a few batches of the broker at a time.
When they are read, waiting fetches are attempted again. Each share partition reads its log once
from its start offset on; with deduplication, from one window before that.

Other topics are not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

from penstock.broker.error_codes import EXPECTED_ERRORS
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.large_batches import LargeBatches
from penstock.broker.shares.log_reads import READ_BYTES_MAX, ReadBatch, ReadLimits, read_batches
from penstock.broker.shares.start_offsets import first_since
from penstock.metadata.configs import TopicSettings
from penstock.ports import Env
from penstock.records.batch import read_header
from penstock.shares.duplicates import IDS_MAX
from penstock.shares.events import LogBatch
from penstock.shares.record_marks import FarRecords, MarkReader, MarkRules, MarkTable
from penstock.shares.share_partition import SharePartition
from penstock.shares.states import DONE
from penstock.wire.errors import ErrorCode, KafkaError

SCAN_TIMEOUT_S: Final = 60.0
"""After this time in the queue for a thread, a scan fails. Members try again."""
PARTS_MAX: Final = 1000
"""How many parts one attempt to acquire records visits."""
FORGET_MIN: Final = 1000
"""The marks of so many offsets in a row are forgotten when they are done. A window that begins with
a record that a member holds may pass over many more."""
_EVERYTHING: Final = 2**63 - 1


def rules_of(settings: TopicSettings) -> MarkRules:
    return MarkRules(settings.penstock_timed_records, settings.penstock_dedup_window_ms)


@dataclass(slots=True)
class ScanCounters:
    """What the scans of this broker have done since it started."""

    scanned: int = 0
    """Offsets whose records were read."""
    ids_forgotten: int = 0
    """Ids that were forgotten before their time because there were too many."""
    failed: int = 0


@dataclass(eq=False, slots=True)
class _Scan:
    """One share partition, as long as it is in memory."""

    partition: SharePartition
    rules: MarkRules
    read_committed: bool
    reader: MarkReader
    table: MarkTable | None = None
    is_running: bool = False
    failure: Exception | None = None


class RecordScans:
    """The scans of one led partition."""

    def __init__(
        self,
        env: Env,
        hosted: HostedPartition,
        threads: LargeBatches,
        counters: ScanCounters,
        spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], None],
        on_read: Callable[[str], None],
    ) -> None:
        """`on_read` is called with a group when more records of its share partition were read, or
        when that failed."""
        self._env = env
        self._hosted = hosted
        self._threads = threads
        self._counters = counters
        self._spawn = spawn
        self._on_read = on_read
        self._scans: dict[str, _Scan] = {}

    def forget(self, group_id: str) -> None:
        self._scans.pop(group_id, None)

    def parts(
        self,
        group_id: str,
        partition: SharePartition,
        batches: list[ReadBatch],
        limits: ReadLimits,
        read_from: int = 0,
        parts_max: int = PARTS_MAX,
    ) -> tuple[LogBatch, ...] | None:
        """Returns what to acquire; None if these records have not been read yet.

        These are the parts from an offset on, as many as one attempt may visit: the records of one
        batch may all have times of their own.

        Raises one of `EXPECTED_ERRORS` if they could not be read.
        """
        rules = rules_of(self._hosted.settings)
        rules = rules.with_schedule(partition.schedule, partition.start_offset)
        if not rules.reads_records:
            self._scans.pop(group_id, None)
            return tuple(each.batch for each in batches)
        scan = self._scans.get(group_id)
        committed = limits.read_committed
        if (
            scan is None
            or scan.partition is not partition
            or (scan.rules, scan.read_committed) != (rules, committed)
        ):
            # The ids of aborted records count only if the group reads these records.
            scan = self._scans[group_id] = _Scan(partition, rules, committed, MarkReader(rules))
        if scan.failure is not None:
            del self._scans[group_id]
            raise scan.failure
        table, last = scan.table, batches[-1].batch.last
        if table is not None and table.position > last:
            _forget(table, partition)
            parts = (part for each in batches for part in table.divide(each.batch, read_from))
            return tuple(islice(parts, parts_max))
        if not scan.is_running:
            scan.is_running = True
            self._spawn(partial(self._run, group_id, scan, last, limits))
        return None

    def far_between(
        self, group_id: str, partition: SharePartition, first: int, end: int, marks_max: int
    ) -> FarRecords | None:
        """Returns the far records from an offset on, as far as records were read.

        None: far records do not matter, and need not be read.
        """
        start, schedule = partition.start_offset, partition.schedule
        if not rules_of(self._hosted.settings).with_schedule(schedule, start).timed:
            return None
        table = self._table(group_id, partition)
        if table is None:
            return FarRecords(first, ())
        return table.far_between(first, min(end, max(first, table.position)), marks_max)

    def has_read(self, group_id: str, partition: SharePartition, offset: int) -> bool:
        """Whether the record at an offset was read."""
        table = self._table(group_id, partition)
        return table is not None and offset < table.position

    def _table(self, group_id: str, partition: SharePartition) -> MarkTable | None:
        scan = self._scans.get(group_id)
        if scan is None or scan.partition is not partition:
            return None
        return scan.table if scan.read_committed == partition.read_committed else None

    async def _run(self, group_id: str, scan: _Scan, last: int, limits: ReadLimits) -> None:
        try:
            if scan.table is None:
                start = scan.partition.start_offset
                scan.table = MarkTable(
                    await first_to_read(self._env, self._hosted, start, scan.rules)
                )
            while scan.table.position <= last and self._scans.get(group_id) is scan:
                await self._step(scan, scan.table, limits)
        except EXPECTED_ERRORS as error:
            self._counters.failed += 1
            scan.failure = error
        finally:
            scan.is_running = False
        self._on_read(group_id)

    async def _step(self, scan: _Scan, table: MarkTable, limits: ReadLimits) -> None:
        offset = max(table.position, self._hosted.log.log_start_offset)
        limits = limits._replace(stop_offset=_EVERYTHING, bytes_max=READ_BYTES_MAX)
        batches = read_batches(self._hosted, offset, limits)
        if not batches:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        forgotten = scan.reader.forgotten
        marks = await self._threads.run(partial(scan.reader.read, batches), SCAN_TIMEOUT_S)
        end = batches[-1].batch.last + 1
        table.extend(marks, end)
        _forget(table, scan.partition)
        self._counters.scanned += end - offset
        self._counters.ids_forgotten += scan.reader.forgotten - forgotten


def _forget(table: MarkTable, partition: SharePartition) -> None:
    """Forgets the marks of records that are done, if there are many at once."""
    table.forget_below(partition.start_offset)
    for span in partition.spans:
        if span.state in DONE and len(span) >= FORGET_MIN:
            table.forget_within(span.first, span.last)


async def first_to_read(env: Env, hosted: HostedPartition, start: int, rules: MarkRules) -> int:
    """Returns where to begin: one window before the start offset, if duplicates matter."""
    window_ms, log = rules.dedup_window_ms, hosted.log
    if window_ms <= 0 or start <= log.log_start_offset:
        return start
    found = await first_since(env, hosted, _time_at(env, hosted, start) - window_ms)
    if found is None:
        return start
    return max(log.log_start_offset, start - IDS_MAX, min(found.offset, start))


def _time_at(env: Env, hosted: HostedPartition, offset: int) -> int:
    """Returns the lowest timestamp that records from this offset on are expected to have."""
    now_ms = env.clock.wall_ms()
    piece = hosted.log.read(offset, 1) if offset < hosted.log.end_offset else None
    if piece is None:
        return now_ms
    header = read_header(piece.data)
    return min(now_ms, header.base_timestamp, header.max_timestamp)
