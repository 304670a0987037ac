"""A partition's log: segments in a row, appended at one end and deleted at the other.

    log start offset          recovery point                    log end offset
          |                         |                               |
    [ sealed ][ sealed ][ sealed    .    ][ active ->               |
                                    synced to disk up to here

The log is synchronous and single-threaded: its owner calls it from one event loop. Work that waits
for the disk is split into three steps, and only the middle step runs on another thread:

    plan = log.begin_flush()     on the loop: collects what must reach the disk, pins the files
    plan.run()                   on any thread: fsyncs
    log.end_flush(plan)          on the loop: moves the recovery point

Rules that the rest of the system relies on:
- An append is in the file when `append` returns. It is durable when a flush that was begun later
  has ended, and never before the directory entry of its file is durable.
- A failed write or fsync takes the log offline. What the disk then holds is unknown, and repeating
  the fsync could falsely succeed. Only recovery, which reads everything back, can tell.
- A full disk is not such a failure: the partial batch is cut off durably, and the log continues.
- Everything except the `.log` files can be rebuilt from them.
"""

from __future__ import annotations

from dataclasses import replace
from errno import EDQUOT, ENOSPC
from typing import Final, NamedTuple, NoReturn

from penstock.partition.producer_snapshot import encode_snapshot
from penstock.partition.producers import BATCHES_REMEMBERED
from penstock.partition.retention import RELATIVE_OFFSET_MAX, should_roll
from penstock.ports import Buffer
from penstock.records.batch import (
    LOG_OVERHEAD,
    CorruptBatch,
    HeaderFields,
    iter_batches,
    read_header,
    stamp_prefix,
    validate_fields,
)
from penstock.storage.errors import (
    DiskFull,
    DiskTrouble,
)
from penstock.storage.files import SNAPSHOT, offset_name, write_all
from penstock.storage.flush import FlushPlan, lacks_descriptors
from penstock.storage.index import ENTRY_SIZE
from penstock.storage.log_state import ASK_ALWAYS
from penstock.storage.producer_state import note_producer
from penstock.storage.read_log import ReadLog
from penstock.storage.segment import Segment

_make: Final = tuple.__new__


class Appended(NamedTuple):
    """The offsets that an append has assigned."""

    base_offset: int
    last_offset: int


class AppendLog(ReadLog):
    """Appends and flushes; see the module docstring. `Log` adds the rare operations on whole
    files."""

    __slots__ = ()

    def append(
        self,
        batch: bytearray | memoryview,
        leader_epoch: int,
        now_ms: int,
        header: HeaderFields | None = None,
    ) -> Appended:
        """Assigns the next offsets to one batch and writes it, as the partition's leader.

        `batch` is stamped in place. Pass `header` if the batch was already validated.
        """
        if self._failure is not None:
            self._refuse()
        fields = validate_fields(batch) if header is None else header
        # Uses locals and avoids calls: with small batches the cost of this function, not the disk,
        # limits the number of appends per second.
        _, length, _, _, _, _, delta, _, max_timestamp, producer_id, _, _, _ = fields
        size = length + LOG_OVERHEAD
        if size != len(batch):
            raise CorruptBatch(
                f"the batch has {size} bytes, but {len(batch)} were given: append one at a time"
            )
        if leader_epoch < self._epoch:
            raise self._stale_epoch(leader_epoch)
        base_offset = self._end_offset
        last_offset = base_offset + delta
        space = self._space
        space.credit -= size
        if (space.credit < 0 or space.refusing) and not space.allows(0):
            raise DiskFull(space.explain())
        active = self._active
        if (
            active.size + size > self._roll_bytes
            or max_timestamp >= self._roll_at_ms
            or last_offset > self._roll_offset
        ) and self._must_roll(size, last_offset, max_timestamp, now_ms):
            self.roll(now_ms)
            active = self._active
        stamp_prefix(batch, 0, base_offset, length, leader_epoch)
        try:
            active.append(batch, size, last_offset, max_timestamp)
        except OSError as error:
            self._append_failed(error)
        if active is not self._dirty_active:
            self._mark_dirty(active, now_ms)
        if leader_epoch != self._epoch:
            self._enter_epoch(leader_epoch, base_offset)
        self._end_offset = last_offset + 1
        if producer_id >= 0:
            ended = note_producer(self.producers, batch, read_header(batch), now_ms)
            if ended is not None and ended.aborted:
                active.note_aborted(ended)
        return _make(Appended, (base_offset, last_offset))

    def _stale_epoch(self, leader_epoch: int) -> CorruptBatch:
        """Returns the error for an epoch below the log's. Epochs never decrease within a log;
        recovery treats a decrease as damage."""
        return CorruptBatch(
            f"leader epoch {leader_epoch} is older than leader epoch {self._epoch}, which has "
            "already written to this log: another broker leads the partition now"
        )

    def _mark_dirty(self, segment: Segment, now_ms: int) -> None:
        """Records that the segment has bytes that no flush begun so far will sync."""
        if not self._dirty:
            self._dirty_since_ms = now_ms
        self._dirty[segment.path] = None
        self._dirty_active = segment
        self.changed = True

    def append_replica(self, chunk: Buffer, now_ms: int) -> Appended:
        """Writes batches with the offsets and epochs that the leader stamped on them."""
        if self._failure is not None:
            self._refuse()
        first = last = -1
        space, view = self._space, memoryview(chunk)
        for position, header in iter_batches(view):
            if header.base_offset < self._end_offset:
                raise CorruptBatch(
                    f"offset {header.base_offset} is below the log end offset "
                    f"{self._end_offset}; truncate the log first"
                )
            if header.leader_epoch < self._epoch:
                self._forget_unwritten_epochs()
                if header.leader_epoch < self._epoch:
                    raise self._stale_epoch(header.leader_epoch)
            space.credit -= header.size
            if (space.credit < 0 or space.refusing) and not space.allows(0):
                raise DiskFull(space.explain())
            if (
                self._active.size + header.size > self._roll_bytes
                or header.max_timestamp >= self._roll_at_ms
                or header.last_offset > self._roll_offset
            ) and self._must_roll(header.size, header.last_offset, header.max_timestamp, now_ms):
                self.roll(now_ms, header.base_offset)
            batch = view[position : position + header.size]
            try:
                self._active.append(batch, header.size, header.last_offset, header.max_timestamp)
            except OSError as error:
                self._append_failed(error)
            if self._active is not self._dirty_active:
                self._mark_dirty(self._active, now_ms)
            if header.leader_epoch != self._epoch:
                self._enter_epoch(header.leader_epoch, header.base_offset)
            self._end_offset = header.next_offset
            if header.has_producer:
                ended = note_producer(self.producers, batch, header, now_ms)
                if ended is not None and ended.aborted:
                    self._active.note_aborted(ended)
            first = header.base_offset if first < 0 else first
            last = header.last_offset
        return Appended(first, last)

    def _must_roll(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Returns whether to begin a new segment. Also stores when the next check is needed, so
        that most appends skip this function."""
        active = self._active
        first = -1 if active.first_timestamp is None else active.first_timestamp
        wait_ms = self.config.segment_ms - self.config.segment_jitter_ms
        self._roll_at_ms = first + wait_ms + 1 if first >= 0 else ASK_ALWAYS
        self._roll_offset = active.base_offset + RELATIVE_OFFSET_MAX
        return should_roll(
            self._roll_config,
            base_offset=active.base_offset,
            size_bytes=active.size,
            first_timestamp_ms=first,
            created_ms=active.created_ms,
            jitter_ms=self.config.segment_jitter_ms,
            index_full=len(active.index) * ENTRY_SIZE >= self.config.segment_index_bytes,
            batch_bytes=size,
            batch_last_offset=last_offset,
            batch_max_timestamp_ms=max_timestamp,
            now_ms=now_ms,
        )

    def roll(self, now_ms: int, next_offset: int | None = None) -> None:
        """Seals the active segment and begins a new one at the log end offset.

        A follower of a compacted log may receive a batch with a higher base offset (`next_offset`).
        The new segment still begins at the log end offset if the index can express the distance.
        Therefore a segment that does not begin where the one before it ended shows that a segment
        was lost.
        """
        base = self._end_offset
        if next_offset is not None and next_offset - base >= RELATIVE_OFFSET_MAX // 2:
            base = next_offset
        sealed = self._active
        if sealed.size == 0 and sealed.base_offset == base:
            return
        segment = Segment(
            self.directory,
            base,
            self.pool,
            self.cache,
            created_ms=now_ms,
            index_interval_bytes=self.config.index_interval_bytes,
        )
        snapshot = f"{self.directory}/{offset_name(self._end_offset, SNAPSHOT)}"
        try:
            sealed.seal()
            write_all(self.pool.create(snapshot), self._snapshot(), 0)
            # Created last: an empty segment left behind by a failure would make recovery cut the
            # log after a crash.
            self.pool.create(segment.path)
        except OSError as error:
            self._append_failed(error)
        if self._unindexed_offset is None:
            self._unindexed_offset = sealed.base_offset
        for path in sealed.written_paths():
            self._dirty[path] = None
        self._dirty[segment.path] = None
        self._dirty[snapshot] = None
        self._names_dirty = True
        self._segments.append(segment)
        self._bases.append(base)
        self._activate(segment)

    def _snapshot(self) -> bytes:
        producers = self.producers
        return encode_snapshot(producers.entries(BATCHES_REMEMBERED), producers.append_times())

    def _enter_epoch(self, epoch: int, start_offset: int) -> None:
        self._epochs_dirty |= self.epochs.assign(epoch, start_offset)
        self._epoch = epoch

    def note_epoch(self, epoch: int) -> None:
        """Records the leader epoch of a new leader, before it appends anything."""
        if epoch > self._epoch:
            self._enter_epoch(epoch, self._end_offset)
            self.changed = True

    def _forget_unwritten_epochs(self) -> None:
        """Drops epochs that this broker entered as leader without appending anything. The next
        leader may continue an older epoch at the same offset."""
        self._epochs_dirty |= self.epochs.truncate_from_end(self._end_offset)
        self._epoch = self.epochs.latest

    # Failures

    def _append_failed(self, error: OSError) -> NoReturn:
        """Undoes what a failed write left behind, and raises. Takes the log offline if that fails
        too."""
        if lacks_descriptors(error):
            raise DiskTrouble(
                f"{self.directory}: no file descriptors are left; raise the limit (ulimit -n) or "
                "lower open_files_max"
            ) from error
        if error.errno not in (ENOSPC, EDQUOT):
            self.fail(f"a write failed: {error}")
            self._refuse()
        try:
            active = self._active
            active.discard_beyond_end()
        except OSError as worse:
            self.fail(f"a write failed ({error}) and could not be undone: {worse}")
            self._refuse()
        self._space.note_failed_write()
        raise DiskFull(self._space.explain()) from error

    # Flushing

    def begin_flush(self, *, checkpoint: bool = False) -> FlushPlan:
        """Returns what must be synced so that everything up to the log end offset survives a power
        loss.

        Includes a checkpoint if files were created or removed, so that recovery starts from there.
        """
        if self._failure is not None:
            self._refuse()
        if self._flushing is not None:
            raise RuntimeError(f"{self.directory} is being flushed: wait until the flush ends")
        plan = FlushPlan(self._disk, self.directory, self._end_offset)
        try:
            for path in self._dirty:
                plan.handles.append(self.pool.pin(path))
        except OSError as error:
            self._unpin(plan)
            raise DiskTrouble(f"{path} could not be opened for a flush: {error}") from error
        plan.dirty = tuple(self._dirty)
        plan.passing = [path for path in self._dirty if path.endswith(SNAPSHOT)]
        plan.indexed_offset = self._active.base_offset
        if self._epochs_dirty:
            plan.epochs = self.epochs.entries
        if self._names_dirty or self._epochs_dirty or checkpoint:
            plan.checkpoint = replace(
                self._checkpoint(self._end_offset), indexed_offset=plan.indexed_offset
            )
            # The checkpoint replaces the one that the last clean stop wrote, so the next stop must
            # write one again.
            self.changed = True
        self._dirty = {}
        self._dirty_active = None
        self._names_dirty = self._epochs_dirty = False
        self._flushing = plan
        return plan

    def end_flush(self, plan: FlushPlan) -> None:
        """Records a flush that has ended: moves the recovery point."""
        self._unpin(plan)
        # Segments sealed while the flush ran are synced by the next one.
        rolled = self._active.base_offset > plan.indexed_offset
        self._unindexed_offset = plan.indexed_offset if rolled else None
        self._recovery_point = max(self._recovery_point, plan.end_offset)
        if plan.checkpoint is not None and not plan.unnoted:
            self.noted_point = plan.checkpoint.recovery_point
        # The disk had no space for the checkpoint. The next start reads more than necessary.
        self._names_dirty |= plan.unnoted
        self._epochs_dirty |= plan.unnoted

    def put_off_flush(self, plan: FlushPlan, error: BaseException) -> DiskTrouble:
        """Ends a flush that could not open a file. Everything in its plan must be flushed again."""
        self._unpin(plan)
        self._dirty = dict.fromkeys((*plan.dirty, *self._dirty))
        self._names_dirty |= plan.checkpoint is not None
        self._epochs_dirty |= plan.epochs is not None
        trouble = DiskTrouble(f"{self.directory} could not be flushed: {error}")
        trouble.__cause__ = error
        return trouble

    def fail_flush(self, plan: FlushPlan, error: BaseException) -> None:
        """Takes the log offline after a failed fsync. The kernel may have dropped the dirty pages,
        and a second fsync would not report it."""
        self._unpin(plan)
        self.fail(f"fsync failed: {error}")

    def _unpin(self, plan: FlushPlan) -> None:
        for handle in plan.handles:
            self.pool.unpin(handle)
        for path in plan.passing:
            self.pool.forget(path)
        self._flushing = None

    def flush(self, *, checkpoint: bool = False) -> None:
        """Runs the three steps of a flush. Blocking."""
        plan = self.begin_flush(checkpoint=checkpoint)
        try:
            plan.run()
        except OSError as error:
            if lacks_descriptors(error):
                raise self.put_off_flush(plan, error) from error
            self.fail_flush(plan, error)
            self._refuse()
        self.end_flush(plan)
