"""A partition's log: `AppendLog` plus the rare, blocking operations on whole files.

Truncation, deletion, swapping in cleaned segments and closing each change several files. A crash
may interrupt any of them at any step. Each one therefore writes the checkpoint durably before or
after its file operations, in an order that lets the next start finish it or undo it:

    truncate    store the target, cut, sync the directory, clear the target
    start at    store the offset, remove all files, create one segment there, clear the offset
    delete      store the new log start offset, then rename the files in any order
    swap        rename the cleaned file to `.swap` durably: from then on, opening can finish it
    close       flush, and store the size and CRCs of the last segment

None of them may overlap a flush. The caller waits until the running flush has ended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from errno import EDQUOT, ENOSPC

from penstock.storage.append_log import AppendLog
from penstock.storage.checkpoints import Checkpoint, CleanStop, encode_checkpoint, write_atomic
from penstock.storage.damage import Damage
from penstock.storage.errors import DiskFull, OffsetOutOfRange, StorageError, disk_trouble
from penstock.storage.files import (
    CLEANED,
    DELETED,
    LOG_CHECKPOINT,
    SNAPSHOT,
    FilePool,
    finish_swap,
    offset_name,
    swap_name,
    write_all,
)
from penstock.storage.flush import FlushPlan
from penstock.storage.index import IndexCache
from penstock.storage.log_state import LogParts
from penstock.storage.producer_state import file_crc, restore_producers, snapshots
from penstock.storage.segment import Segment
from penstock.storage.space import SpaceGuard


class Log(AppendLog):
    """Created by `recovery.open_log` or `recovery.create_log`."""

    __slots__ = ("truncations",)

    def __init__(
        self, parts: LogParts, pool: FilePool, cache: IndexCache, space: SpaceGuard
    ) -> None:
        super().__init__(parts, pool, cache, space)
        self.truncations = 0
        """How often the log was truncated. Work prepared before a truncation (compaction, a scrub)
        is invalid after it."""

    def _begin_cut(self) -> None:
        if self._failure is not None:
            self._refuse()
        if self._flushing is not None:
            raise RuntimeError(f"{self.directory} is being flushed: wait until the flush ends")

    def _write_checkpoint(self, checkpoint: Checkpoint) -> None:
        data = encode_checkpoint(checkpoint)
        try:
            try:
                write_atomic(self._disk, self.directory, LOG_CHECKPOINT, data)
            except OSError as error:
                if error.errno not in (ENOSPC, EDQUOT) or not self._space.give_up_ballast():
                    raise
                write_atomic(self._disk, self.directory, LOG_CHECKPOINT, data)
        except OSError as error:
            if error.errno in (ENOSPC, EDQUOT):
                self._space.check()
                raise DiskFull(
                    f"no disk space for a checkpoint: {self._space.explain()}"
                ) from error
            self.fail(f"the checkpoint could not be written: {error}")
            self._refuse()
        self.noted_point = checkpoint.recovery_point

    def truncate_to(self, offset: int) -> None:
        """Removes everything at or above `offset`. Used by a follower whose leader never had these
        records.

        Whole files are only renamed here. `purge` frees their space, off the event loop.
        """
        self._begin_cut()
        if offset >= self._end_offset:
            return
        if offset < self._log_start_offset:
            raise OffsetOutOfRange(offset, self._log_start_offset, self._end_offset)
        offset = self._end_without(offset)
        # Store the target first: a truncation that was half done could leave a hole in the log that
        # looks sound.
        point, cleaned = min(self._recovery_point, offset), min(self.cleaned_offset, offset)
        begun = replace(
            self._checkpoint(point),
            cleaned_offset=cleaned,
            truncating_to=offset,
            generation=self.generation + 1,
        )
        self._write_checkpoint(begun)
        self.truncations += 1
        self.generation += 1
        self.restored_high_watermark = min(self.restored_high_watermark, offset)
        self._recovery_point, self.cleaned_offset = point, cleaned
        self.sparse_offset = min(self.sparse_offset, offset)
        try:
            self._cut_from(offset)
            self._disk.sync_directory(self.directory)
            self._write_checkpoint(self._checkpoint(self._recovery_point))
        except (OSError, StorageError) as error:
            # As long as the checkpoint holds the target, a restart would also cut off what was
            # appended later.
            self.fail(f"the truncation to offset {offset} failed: {error}")
            self._refuse()

    def _end_without(self, offset: int) -> int:
        """Returns where the log ends once everything at or above `offset` is gone: after the last
        whole batch below it.

        That is not `offset` itself if `offset` is inside a batch or in a gap, because a restart
        could not distinguish such an end from a loss. A quarantined range has no batches, but keeps
        its offsets.
        """
        if any(held.start_offset < offset <= held.end_offset for held in self.damage):
            return offset
        with disk_trouble(f"{self.directory} could not be read"):
            for segment in reversed(self._segments):
                if segment.base_offset < offset:
                    end = segment.end_below(offset)
                    holes = [held.end_offset for held in self.damage if held.end_offset <= offset]
                    return max(segment.base_offset if end is None else end, *holes, 0)
        return self._segments[0].base_offset

    def _cut_from(self, offset: int) -> None:
        # A segment that begins at the offset stays, empty. It shows where the log ends, whatever
        # compaction has left of the segment before it.
        while len(self._segments) > 1 and self._bases[-1] > offset:
            self._retire(self._segments.pop())
            self._bases.pop()
        active = self._segments[-1]
        self._activate(active)
        if self._unindexed_offset is not None and self._unindexed_offset >= active.base_offset:
            self._unindexed_offset = None
        hole = next((held for held in self.damage if held.end_offset > offset), None)
        found = active.locate(offset)
        if (
            hole is not None
            and hole.segment_base == active.base_offset
            and (found is None or hole.start_position <= found[0])
        ):
            # Remove the damaged bytes too, or a scan would find them again in front of what is
            # appended next. If the offset is in the middle of the damaged range, its byte position
            # is unknown; the offsets of the range below it stay reserved.
            active.truncate(hole.start_position, hole.start_offset)
        elif found is not None:
            active.truncate(found[0], found[1].base_offset)
        active.file.fsync()
        if active.aborted is not None and active.aborted.crc is None:
            # The file lists transactions that were truncated and is not trusted. Sealing the
            # segment replaces or removes it.
            self._dirty.pop(active.aborted_path, None)
        # The log start offset may be inside the batch that was removed.
        self._end_offset = max(offset, self._log_start_offset)
        self.damage = [
            held if held.end_offset <= self._end_offset else self._clip(held)
            for held in self.damage
            if held.start_offset < self._end_offset
        ]
        self._epochs_dirty |= self.epochs.truncate_from_end(self._end_offset)
        self._epoch = self.epochs.latest
        for at in snapshots(self._disk, self.directory):
            if at > self._end_offset:
                self._drop(f"{self.directory}/{offset_name(at, SNAPSHOT)}")
        restore_producers(
            self.producers, self._disk, self.directory, self._segments, self._end_offset
        )
        if self._end_offset > offset:
            # Begin a new segment at the log start offset: a file that ends below it would be taken
            # for a torn tail.
            self.roll(active.created_ms)
        self.changed = True

    def start_at(self, offset: int) -> None:
        """Discards everything and continues with an empty log at `offset`. Used by a follower whose
        leader has none of these records. `purge` frees the space."""
        self._begin_cut()
        # Store the offset first: if this is half done, the remaining old records would look like
        # the whole log.
        empty = Checkpoint(
            recovery_point=offset,
            indexed_offset=offset,
            log_start_offset=offset,
            cleaned_offset=offset,
            sparse_offset=offset,
            generation=self.generation + 1,
            segment_bases=(offset,),
        )
        self._write_checkpoint(replace(empty, restarting_at=offset))
        self.truncations += 1
        self.generation += 1
        self.restored_high_watermark = 0
        try:
            self._begin_empty(offset)
            self._disk.sync_directory(self.directory)
            self._write_checkpoint(empty)
        except (OSError, StorageError) as error:
            self.fail(f"the log could not be emptied to start at offset {offset}: {error}")
            self._refuse()

    def _begin_empty(self, offset: int) -> None:
        fresh = Segment(
            self.directory,
            offset,
            self.pool,
            self.cache,
            created_ms=self._active.created_ms,
            index_interval_bytes=self.config.index_interval_bytes,
        )
        for segment in self._segments:
            self._retire(segment)
        for at in snapshots(self._disk, self.directory):
            self._drop(f"{self.directory}/{offset_name(at, SNAPSHOT)}")
        self.pool.create(fresh.path)
        self._segments[:], self._bases[:] = [fresh], [offset]
        self._activate(fresh)
        self._dirty_active, self._unindexed_offset = None, None
        self._log_start_offset = self._end_offset = self._recovery_point = offset
        self.cleaned_offset = self.sparse_offset = offset
        self.damage = []
        self.producers.clear()
        self._epochs_dirty |= self.epochs.clear()
        self._epoch = self.epochs.latest
        self.changed = True

    def _clip(self, held: Damage) -> Damage:
        return replace(held, end_position=held.start_position, end_offset=self._end_offset)

    def _forget(self, segment: Segment) -> None:
        segment.cuts += 1
        for path in segment.paths():
            self.pool.forget(path)
            self._dirty.pop(path, None)
        segment.index.clear()

    def _drop(self, path: str) -> None:
        self.pool.forget(path)
        self._dirty.pop(path, None)
        if self._disk.exists(path):
            self._disk.unlink(path)

    def delete_before(self, offset: int) -> int:
        """Raises the log start offset to `offset` and removes whole segments below it. Returns the
        new log start offset.

        The files are only renamed here. `purge` frees their space, off the event loop.
        """
        self._begin_cut()
        if not offset <= self._end_offset:
            raise OffsetOutOfRange(offset, self._log_start_offset, self._end_offset)
        if offset <= self._log_start_offset:
            return self._log_start_offset
        # Store the new log start offset durably first. The files may then disappear in any order
        # without leaving a hole above it.
        noted = self._checkpoint(self._recovery_point)
        self._write_checkpoint(replace(noted, log_start_offset=offset))
        self._log_start_offset = offset
        try:
            while len(self._segments) > 1 and self._bases[1] <= offset:
                self._retire(self._segments.pop(0))
                self._bases.pop(0)
            for at in snapshots(self._disk, self.directory):
                if at < self._bases[0]:
                    self._drop(f"{self.directory}/{offset_name(at, SNAPSHOT)}")
            self._disk.sync_directory(self.directory)
        except OSError as error:
            self.fail(f"segments below offset {offset} could not be deleted: {error}")
            self._refuse()
        self._epochs_dirty |= self.epochs.truncate_from_start(offset)
        # Damage is kept as long as its segment exists, so that readers of the segment skip the bad
        # bytes.
        self.damage = [held for held in self.damage if held.segment_base in self._bases]
        self.changed = True
        return offset

    def _retire(self, segment: Segment) -> None:
        self._forget(segment)
        for path in segment.paths():
            if self._disk.exists(path):
                self._disk.rename(path, path + DELETED)

    def purge(self) -> int:
        """Unlinks deleted files. Blocking; may run on any thread. Returns the number of files
        removed."""
        with disk_trouble(f"deleted segments of {self.directory} could not be removed"):
            doomed = [name for name in self._disk.listdir(self.directory) if name.endswith(DELETED)]
            for name in doomed:
                # Another thread may be purging at the same time.
                with suppress(FileNotFoundError):
                    self._disk.unlink(f"{self.directory}/{name}")
        return len(doomed)

    def swap_in(self, cleaned: Segment, replaced: Sequence[tuple[Segment, int]]) -> bool:
        """Replaces a run of adjacent segments with one cleaned segment.

        `replaced` are the segments with the sizes they had when they were read. The files of the
        cleaned segment are complete, durable and named `.cleaned`. Returns False and drops them if
        the log no longer has the segments they were made from.
        """
        self._begin_cut()
        first = bisect_left(self._bases, cleaned.base_offset)
        after = first + len(replaced)
        same = after < len(self._segments) and all(
            held is segment and held.size == size
            for held, (segment, size) in zip(self._segments[first:after], replaced, strict=True)
        )
        if not same:
            cleaned.drop_cleaned()
            return False
        covered = (cleaned.base_offset, self._bases[after])
        name = swap_name(*covered)
        try:
            for segment in self._segments[first:after]:
                self._forget(segment)
            self._disk.rename(cleaned.path + CLEANED, f"{self.directory}/{name}")
            self._disk.sync_directory(self.directory)
            finish_swap(self._disk, self.directory, name, covered)
            for path in cleaned.paths()[1:]:
                if self._disk.exists(path + CLEANED):
                    self._disk.rename(path + CLEANED, path)
            for segment, _ in replaced[1:]:
                self._drop(f"{self.directory}/{offset_name(segment.base_offset, SNAPSHOT)}")
            self._disk.sync_directory(self.directory)
        except OSError as error:
            self.fail(f"a compacted segment could not be installed: {error}")
            self._refuse()
        self._segments[first:after] = [cleaned]
        self._bases[first:after] = [cleaned.base_offset]
        return True

    def quarantine(self, found: Damage) -> None:
        """Stops serving a range that was found to be bad, and records it in the checkpoint for
        restarts."""
        self._begin_cut()
        segment = self._segments[self._bases.index(found.segment_base)]
        damage = sorted([*self.damage, found], key=lambda held: held.start_offset)
        noted = replace(self._checkpoint(self._recovery_point), damage=tuple(damage))
        self._write_checkpoint(noted)
        self.damage = damage
        segment.quarantine(found.start_position, found.end_position)
        self.changed = True
        if segment is self._active and found.end_position >= segment.size:
            # As after a restart: nothing is appended after bytes that cannot be read.
            self.roll(segment.created_ms)

    def note_sparse(self, offset: int) -> None:
        """Records that gaps below `offset` come from compaction. Durable before there are any
        gaps."""
        self._begin_cut()
        if offset > self.sparse_offset:
            noted = self._checkpoint(self._recovery_point)
            self._write_checkpoint(replace(noted, sparse_offset=offset))
            self.sparse_offset = offset

    def note_cut(self) -> None:
        """Invalidates the stored synced offset and high watermark, since records may be gone from
        the end of this log.

        Raises the generation; the next checkpoint stores it.
        """
        self.generation += 1
        self._names_dirty = self.changed = True

    def note_cleaned(self, offset: int) -> None:
        """Records that compaction has covered everything below `offset`. The next checkpoint stores
        it.

        If that is lost in a crash, the same range is cleaned again, with no effect.
        """
        self.cleaned_offset = offset
        self._names_dirty = True

    def close(self) -> None:
        """Closes the log cleanly: flushes it and stores what the next start may trust. Blocking."""
        plan = self.begin_close()
        if plan is not None:
            try:
                plan.run()
            except OSError as error:
                self.fail_flush(plan, error)
                self._refuse()
        self.end_close(plan)

    def begin_close(self) -> FlushPlan | None:
        """Runs the first of the three steps of `close`, as with a flush. Returns None if the second
        step is not needed."""
        active = self._active
        never_used = (
            len(self._segments) == 1
            and active.size == 0
            and active.base_offset == self._end_offset == self._log_start_offset
            and self.noted_point == self._end_offset
        )
        if self._failure is not None or never_used or not (self.changed or self.needs_flush):
            return None
        try:
            active.seal()
            snapshot = f"{self.directory}/{offset_name(self._end_offset, SNAPSHOT)}"
            file = self.pool.create(snapshot)
            file.truncate(0)
            write_all(file, self._snapshot(), 0)
            self._dirty[snapshot] = None
            stop = CleanStop(
                active.base_offset,
                active.size,
                self._end_offset,
                file_crc(self._disk, active.index.path),
                file_crc(self._disk, active.time_index.path),
            )
        except OSError as error:
            self.fail(f"the log could not be closed: {error}")
            self._refuse()
        plan = self.begin_flush(checkpoint=True)
        if plan.checkpoint is not None:
            plan.checkpoint = replace(plan.checkpoint, clean_stop=stop)
        return plan

    def end_close(self, plan: FlushPlan | None) -> None:
        """Runs the last step of `close`, after the plan from `begin_close` was run."""
        if plan is not None:
            self.end_flush(plan)
            if plan.unnoted and plan.checkpoint is not None:
                self._write_checkpoint(plan.checkpoint)
            self.changed = False
        self.abandon("it was closed")

    def abandon(self, reason: str) -> None:
        """Closes every file. Later calls are refused."""
        for segment in self._segments:
            self._forget(segment)
        self._failure = self._failure or reason
