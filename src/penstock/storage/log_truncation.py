"""Takes records out of a log: from its end, from its start, all of them, or a damaged range.

Each operation changes several files, and a crash may interrupt it at any step. Each one therefore
writes the checkpoint durably before or after its file operations, in an order that lets the next
start finish it or undo it:

    truncate    store the target, cut, sync the directory, clear the target
    start at    store the offset, remove all files, create one segment there, clear the offset
    delete      store the new log start offset, then rename the files in any order
    quarantine  store the damaged range, then stop reading it

None of them may overlap a flush. The caller waits until the running flush has ended.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.storage.checkpoints import Checkpoint
from penstock.storage.damage import Damage
from penstock.storage.errors import OffsetOutOfRange, StorageError, disk_trouble
from penstock.storage.files import SNAPSHOT, offset_name
from penstock.storage.log_appender import LogAppender
from penstock.storage.log_files import LogFiles
from penstock.storage.log_state import LogState
from penstock.storage.producer_snapshots import restore_producers, snapshots
from penstock.storage.segment import Segment


class LogTruncation:
    """Removes records from a log, so that a crash at any step leaves a log that can be opened."""

    __slots__ = ("_appender", "_files", "_state")

    def __init__(self, state: LogState, files: LogFiles, appender: LogAppender) -> None:
        self._state = state
        self._files = files
        self._appender = appender

    def truncate_to(self, offset: int) -> None:
        """Removes everything at or above `offset`. Used by a follower whose leader never had these
        records.

        Whole files are only renamed here. `purge` frees their space, off the event loop.
        """
        state = self._state
        self._files.check_idle()
        if offset >= state.end_offset:
            return
        if offset < state.log_start_offset:
            raise OffsetOutOfRange(offset, state.log_start_offset, state.end_offset)
        offset = self._end_without(offset)
        # Store the target first: a truncation that was half done could leave a hole in the log that
        # looks sound.
        point, cleaned = min(state.recovery_point, offset), min(state.cleaned_offset, offset)
        since, kept = state.generation, offset
        if state.cut_since >= 0:
            since, kept = state.cut_since, min(state.cut_offset, offset)
        begun = replace(
            state.checkpoint(point),
            cleaned_offset=cleaned,
            truncating_to=offset,
            generation=state.generation + 1,
            cut_since=since,
            cut_offset=kept,
        )
        self._files.write_checkpoint(begun)
        state.truncations += 1
        state.generation += 1
        state.cut_since, state.cut_offset = since, kept
        state.restored_high_watermark = min(state.restored_high_watermark, offset)
        state.recovery_point, state.cleaned_offset = point, cleaned
        state.sparse_offset = min(state.sparse_offset, offset)
        try:
            self._cut_from(offset)
            state.disk.sync_directory(state.directory)
            self._files.write_checkpoint(state.checkpoint(state.recovery_point))
        except (OSError, StorageError) as error:
            # As long as the checkpoint holds the target, a restart would also cut off what was
            # appended later.
            state.fail(f"the truncation to offset {offset} failed: {error}")
            state.refuse()

    def _end_without(self, offset: int) -> int:
        """Returns where the log ends once everything at or above `offset` is gone: after the last
        whole batch below it.

        That is not `offset` itself if `offset` is inside a batch or in a gap, because a restart
        could not distinguish such an end from a loss. A quarantined range has no batches, but keeps
        its offsets.
        """
        state = self._state
        if any(held.start_offset < offset <= held.end_offset for held in state.damage):
            return offset
        with disk_trouble(f"{state.directory} could not be read"):
            for segment in reversed(state.segments):
                if segment.base_offset < offset:
                    end = segment.end_below(offset)
                    holes = [held.end_offset for held in state.damage if held.end_offset <= offset]
                    return max(segment.base_offset if end is None else end, *holes, 0)
        return state.segments[0].base_offset

    def _cut_from(self, offset: int) -> None:
        state = self._state
        # A segment that begins at the offset stays, empty. It shows where the log ends, whatever
        # compaction has left of the segment before it.
        while len(state.segments) > 1 and state.bases[-1] > offset:
            self._files.retire(state.segments.pop())
            state.bases.pop()
        active = state.segments[-1]
        state.activate(active)
        if state.unindexed_offset is not None and state.unindexed_offset >= active.base_offset:
            state.unindexed_offset = None
        hole = next((held for held in state.damage if held.end_offset > offset), None)
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
            state.dirty.pop(active.files.aborted_path, None)
        # The log start offset may be inside the batch that was removed.
        state.end_offset = max(offset, state.log_start_offset)
        state.damage = [
            held if held.end_offset <= state.end_offset else self._clip(held)
            for held in state.damage
            if held.start_offset < state.end_offset
        ]
        state.epochs_dirty |= state.epochs.truncate_from_end(state.end_offset)
        state.epoch = state.epochs.latest
        for at in snapshots(state.disk, state.directory):
            if at > state.end_offset:
                self._files.drop(f"{state.directory}/{offset_name(at, SNAPSHOT)}")
        restore_producers(
            state.producers, state.disk, state.directory, state.segments, state.end_offset
        )
        if state.end_offset > offset:
            # Begin a new segment at the log start offset: a file that ends below it would be taken
            # for a torn tail.
            self._appender.roll(active.created_ms)
        state.changed = True

    def start_at(self, offset: int) -> None:
        """Discards everything and continues with an empty log at `offset`. Used by a follower whose
        leader has none of these records. `purge` frees the space."""
        state = self._state
        self._files.check_idle()
        # Store the offset first: if this is half done, the remaining old records would look like
        # the whole log.
        empty = Checkpoint(
            recovery_point=offset,
            indexed_offset=offset,
            log_start_offset=offset,
            cleaned_offset=offset,
            sparse_offset=offset,
            generation=state.generation + 1,
            segment_bases=(offset,),
        )
        self._files.write_checkpoint(replace(empty, restarting_at=offset))
        state.truncations += 1
        state.generation += 1
        state.cut_since = state.cut_offset = -1
        state.restored_high_watermark = 0
        try:
            self._begin_empty(offset)
            state.disk.sync_directory(state.directory)
            self._files.write_checkpoint(empty)
        except (OSError, StorageError) as error:
            state.fail(f"the log could not be emptied to start at offset {offset}: {error}")
            state.refuse()

    def _begin_empty(self, offset: int) -> None:
        state = self._state
        fresh = Segment(
            state.directory,
            offset,
            state.pool,
            state.cache,
            created_ms=state.active.created_ms,
            index_interval_bytes=state.config.index_interval_bytes,
        )
        for segment in state.segments:
            self._files.retire(segment)
        for at in snapshots(state.disk, state.directory):
            self._files.drop(f"{state.directory}/{offset_name(at, SNAPSHOT)}")
        state.pool.create(fresh.path)
        state.segments[:], state.bases[:] = [fresh], [offset]
        state.activate(fresh)
        state.dirty_active, state.unindexed_offset = None, None
        state.log_start_offset = state.end_offset = state.recovery_point = offset
        state.cleaned_offset = state.sparse_offset = offset
        state.damage = []
        state.producers.clear()
        state.epochs_dirty |= state.epochs.clear()
        state.epoch = state.epochs.latest
        state.changed = True

    def _clip(self, held: Damage) -> Damage:
        state = self._state
        return replace(held, end_position=held.start_position, end_offset=state.end_offset)

    def delete_before(self, offset: int) -> int:
        """Raises the log start offset to `offset` and removes whole segments below it. Returns the
        new log start offset.

        The files are only renamed here. `purge` frees their space, off the event loop.
        """
        state = self._state
        self._files.check_idle()
        if not offset <= state.end_offset:
            raise OffsetOutOfRange(offset, state.log_start_offset, state.end_offset)
        if offset <= state.log_start_offset:
            return state.log_start_offset
        # Store the new log start offset durably first. The files may then disappear in any order
        # without leaving a hole above it.
        noted = state.checkpoint(state.recovery_point)
        self._files.write_checkpoint(replace(noted, log_start_offset=offset))
        state.log_start_offset = offset
        try:
            while len(state.segments) > 1 and state.bases[1] <= offset:
                self._files.retire(state.segments.pop(0))
                state.bases.pop(0)
            for at in snapshots(state.disk, state.directory):
                if at < state.bases[0]:
                    self._files.drop(f"{state.directory}/{offset_name(at, SNAPSHOT)}")
            state.disk.sync_directory(state.directory)
        except OSError as error:
            state.fail(f"segments below offset {offset} could not be deleted: {error}")
            state.refuse()
        state.epochs_dirty |= state.epochs.truncate_from_start(offset)
        # Damage is kept as long as its segment exists, so that readers of the segment skip the bad
        # bytes.
        state.damage = [held for held in state.damage if held.segment_base in state.bases]
        state.changed = True
        return offset

    def quarantine(self, found: Damage) -> None:
        """Stops serving a range that was found to be bad, and records it in the checkpoint for
        restarts."""
        state = self._state
        self._files.check_idle()
        segment = state.segments[state.bases.index(found.segment_base)]
        damage = sorted([*state.damage, found], key=lambda held: held.start_offset)
        noted = replace(state.checkpoint(state.recovery_point), damage=tuple(damage))
        self._files.write_checkpoint(noted)
        state.damage = damage
        segment.quarantine(found.start_position, found.end_position)
        state.changed = True
        if segment is state.active and found.end_position >= segment.size:
            # As after a restart: nothing is appended after bytes that cannot be read.
            self._appender.roll(segment.created_ms)
