"""Compacts one log. `partition.compaction` decides what to keep; this module does the work.

    task = begin_clean(log, ...)    on the loop: what to clean, copied out of the log
    task.run()                      on any thread: reads sealed segments, writes `.cleaned` files
    task.install(log)               on the loop: swaps in each finished group

The thread opens its own files and never touches the log's state. If the log has lost a segment of a
group in the meantime (retention, truncation), the group is stale: it is dropped, and cleaned
another time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.partition.compaction import (
    ClosedSegment,
    CompactionPlan,
    OffsetMap,
    compact_batch,
    group_segments,
    is_needed_empty,
    map_batch,
    plan,
)
from penstock.partition.transactions import AbortedEntry, CleaningTransactions, MarkerFate
from penstock.ports import Buffer, Disk, File
from penstock.records.batch import BatchHeader, CorruptBatch, read_header
from penstock.storage.aborted import AbortedIndex
from penstock.storage.config import LogConfig
from penstock.storage.errors import LogDamaged, disk_trouble
from penstock.storage.files import CLEANED, write_all
from penstock.storage.index import ENTRY_SIZE, TIME_ENTRY_SIZE
from penstock.storage.log import Log
from penstock.storage.scan import BadBatch, scan_batches
from penstock.storage.segment import Segment


@dataclass(frozen=True, slots=True)
class _Source:
    """A sealed segment as the thread may use it. `segment` is only compared, on the loop."""

    segment: Segment
    base_offset: int
    path: str
    size: int


@dataclass(slots=True)
class CleanTask:
    """One round of cleaning of one log, and its result."""

    directory: str
    disk: Disk
    config: LogConfig
    plan: CompactionPlan
    now_ms: int
    map_bytes_max: int
    sources: list[_Source]
    closed: list[ClosedSegment]
    active_base_offset: int
    last_data_offsets: dict[int, int]
    marker_epochs: dict[int, int]
    aborted: list[AbortedEntry]
    """The aborted transactions of all sealed segments."""
    truncations: int
    targets: dict[int, Segment]
    """For each source, an unused segment object that can become the cleaned segment."""
    done: list[tuple[Segment, list[tuple[Segment, int]]]] = field(default_factory=list)
    cleaned_offset: int = -1
    bytes_before: int = 0
    bytes_after: int = 0
    undecodable: int = 0
    """Batches that cannot be decoded. They were kept unchanged."""

    def run(self) -> None:
        """Cleans the segments. Blocking. Raises `LogDamaged` if a segment cannot be read; nothing
        is changed then."""
        offsets = self._map()
        self.cleaned_offset = min(offsets.end_offset, self.plan.uncleanable_offset)
        groups = group_segments(
            self.closed,
            end_offset=self.cleaned_offset,
            active_base_offset=self.active_base_offset,
            segment_bytes=self.config.segment_bytes,
            index_bytes_max=self.config.segment_index_bytes,
        )
        transactions = CleaningTransactions(self.aborted)
        for group in groups:
            self._rewrite(group, offsets, transactions)

    def _map(self) -> OffsetMap:
        """Returns the last offset of each key in the dirty part of the log."""
        start = self.plan.first_dirty_offset
        offsets = OffsetMap(self.map_bytes_max, start)
        dirty = set(self.plan.map_segments)
        # Leave out transactions that ended earlier: their markers are not read here.
        transactions = CleaningTransactions(
            entry for entry in self.aborted if entry.last_offset >= start
        )
        for source in self.sources:
            if source.base_offset not in dirty:
                continue
            for header, batch in self._batches(source):
                if header.next_offset <= start:
                    continue
                aborted = False
                if header.is_control:
                    transactions.on_marker(header, self.now_ms)
                elif header.is_transactional:
                    aborted = transactions.on_data(header)
                if not map_batch(offsets, batch, header, start_offset=start, aborted=aborted):
                    return offsets
        offsets.cover(self.plan.uncleanable_offset)
        return offsets

    def _batches(self, source: _Source) -> Iterator[tuple[BatchHeader, memoryview]]:
        file = self.disk.open(source.path)
        try:
            for _, header, batch in scan_batches(
                file, 0, source.size, offset_min=source.base_offset
            ):
                yield header, batch
        except BadBatch as error:
            raise LogDamaged(f"{source.path} is damaged {error}; it is not compacted") from error
        finally:
            file.close()

    def _rewrite(
        self, group: tuple[int, ...], offsets: OffsetMap, transactions: CleaningTransactions
    ) -> None:
        target = self.targets[group[0]]
        transactions.kept.clear()
        members = set(group)
        path = target.path + CLEANED
        file = self.disk.open(path, create=True)
        try:
            file.truncate(0)
            for source in self.sources:
                if source.base_offset in members:
                    self.bytes_before += source.size
                    self._rewrite_segment(source, target, file, offsets, transactions)
            file.fsync()
        finally:
            file.close()
        self.bytes_after += target.size
        indexes = target.take_indexes()
        if transactions.kept:
            target.aborted = AbortedIndex(target.files.aborted_path, transactions.kept)
            indexes.append((target.files.aborted_path, target.aborted.take()))
        for name, data in indexes:
            write_durably(self.disk, name + CLEANED, data)
        replaced = [
            (source.segment, source.size)
            for source in self.sources
            if source.base_offset in members
        ]
        self.done.append((target, replaced))

    def _rewrite_segment(
        self,
        source: _Source,
        target: Segment,
        file: File,
        offsets: OffsetMap,
        transactions: CleaningTransactions,
    ) -> None:
        for header, batch in self._batches(source):
            aborted, marker = False, MarkerFate.KEEP
            if header.is_control:
                marker = transactions.on_marker(header, self.now_ms)
            elif header.is_transactional:
                aborted = transactions.on_data(header)
            kept = self._compact(batch, header, offsets, aborted, marker)
            if kept is None:
                continue
            write_all(file, kept, target.size)
            newest = read_header(kept).max_timestamp
            target.note(target.size, len(kept), header.last_offset, newest)
            target.size += len(kept)
            target.verified = target.size

    def _compact(
        self,
        batch: memoryview,
        header: BatchHeader,
        offsets: OffsetMap,
        aborted: bool,
        marker: MarkerFate,
    ) -> Buffer | None:
        try:
            return compact_batch(
                batch,
                header,
                offsets,
                now_ms=self.now_ms,
                delete_retention_ms=self.config.delete_retention_ms,
                needed_empty=is_needed_empty(
                    header,
                    self.last_data_offsets,
                    self.plan.uncleanable_offset,
                    self.marker_epochs,
                ),
                aborted=aborted,
                marker=marker,
                tombstones_expire=not self.undecodable,
            )
        except CorruptBatch:
            self.undecodable += 1
            return batch

    def discard(self) -> None:
        """Removes the files of a round that failed."""
        for segment, _ in self.done:
            segment.files.drop_cleaned()
        self.done.clear()

    def install(self, log: Log) -> int:
        """Swaps in the cleaned segments. Returns how many groups were still valid."""
        if log.truncations != self.truncations:
            # Segments may have grown again and look exactly like those that were read.
            for segment, _ in self.done:
                segment.files.drop_cleaned()
            return 0
        log.note_sparse(self.cleaned_offset)
        installed = sum(log.swap_in(segment, group) for segment, group in self.done)
        if installed == len(self.done):
            log.note_cleaned(self.cleaned_offset)
        return installed


def write_durably(disk: Disk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        write_all(file, data, 0)
        file.fsync()
    finally:
        file.close()


def begin_clean(
    log: Log, *, now_ms: int, last_stable_offset: int, map_bytes_max: int, force: bool = False
) -> CleanTask | None:
    """Returns the next round of cleaning; None if it is not worthwhile yet.

    `force` requests a round whatever the dirty ratio. A log with damage is not cleaned: the
    quarantined range may hold the newest value of a key.
    """
    if log.damage or log.failure is not None:
        return None
    sealed = [segment for segment in log.segments if segment is not log.active]
    with disk_trouble(f"the compaction of {log.directory} could not be planned"):
        closed = [_closed(segment) for segment in sealed]
    what = plan(
        closed,
        active_base_offset=log.active.base_offset,
        log_start_offset=log.log_start_offset,
        # Above the stored recovery point, recovery would take every gap for a loss.
        last_stable_offset=min(last_stable_offset, log.noted_point),
        checkpoint_offset=log.cleaned_offset,
        min_compaction_lag_ms=log.config.min_compaction_lag_ms,
        now_ms=now_ms,
    )
    overdue = any(
        segment.newest_ms + log.config.max_compaction_lag_ms < now_ms
        for segment in closed
        if segment.base_offset in what.map_segments
    )
    worth_it = force or overdue or what.dirty_ratio > log.config.min_cleanable_dirty_ratio
    if not what.map_segments or not worth_it:
        return None
    return CleanTask(
        directory=log.directory,
        disk=log.pool.disk,
        config=log.config,
        plan=what,
        now_ms=now_ms,
        map_bytes_max=map_bytes_max,
        sources=[
            _Source(segment, segment.base_offset, segment.path, segment.size) for segment in sealed
        ],
        closed=closed,
        active_base_offset=log.active.base_offset,
        last_data_offsets=log.producers.last_data_offsets(),
        marker_epochs=log.producers.marker_epochs(),
        aborted=log.aborted_entries(log.segments[0].base_offset, log.active.base_offset),
        truncations=log.truncations,
        targets={segment.base_offset: _target(log, segment) for segment in sealed},
    )


def _closed(segment: Segment) -> ClosedSegment:
    newest_ms = segment.largest_timestamp()
    return ClosedSegment(
        base_offset=segment.base_offset,
        size_bytes=segment.size,
        offset_index_bytes=len(segment.index) * ENTRY_SIZE,
        time_index_bytes=len(segment.time_index) * TIME_ENTRY_SIZE,
        newest_ms=newest_ms if newest_ms >= 0 else segment.created_ms,
    )


def _target(log: Log, segment: Segment) -> Segment:
    target = Segment(
        log.directory,
        segment.base_offset,
        log.pool,
        log.cache,
        created_ms=segment.created_ms,
        index_interval_bytes=log.config.index_interval_bytes,
    )
    target.files.hold_indexes()
    return target
