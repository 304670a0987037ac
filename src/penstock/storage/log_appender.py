"""Appends to a log: assigns offsets, writes batches, rolls segments, follows leader epochs.

An append that fails leaves the log as it was, or takes it offline. If the disk is full, the partial
batch is cut off durably and the log continues. After any other failed write, what the disk holds is
unknown.
"""

from __future__ import annotations

from errno import EDQUOT, ENOSPC
from typing import Final, NamedTuple, NoReturn

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
from penstock.storage.data_keys import KeyUnavailable
from penstock.storage.errors import DiskFull, DiskTrouble
from penstock.storage.files import SNAPSHOT, offset_name, write_all
from penstock.storage.flush_plan import lacks_descriptors
from penstock.storage.index import ENTRY_SIZE
from penstock.storage.log_state import ASK_ALWAYS, LogState
from penstock.storage.producer_snapshots import note_producer, snapshot_of
from penstock.storage.segment import Segment

_make: Final = tuple.__new__


class Appended(NamedTuple):
    """The offsets that an append has assigned."""

    base_offset: int
    last_offset: int


class LogAppender:
    """Appends to the active segment, and begins a new one when a limit is reached."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

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
        state = self._state
        if state.failure is not None:
            state.refuse()
        fields = validate_fields(batch) if header is None else header
        # Uses locals and avoids calls: with small batches the cost of this function, not the disk,
        # limits the number of appends per second.
        _, length, _, _, _, _, delta, _, max_timestamp, producer_id, _, _, _ = fields
        size = length + LOG_OVERHEAD
        if size != len(batch):
            raise CorruptBatch(
                f"the batch has {size} bytes, but {len(batch)} were given: append one at a time"
            )
        if leader_epoch < state.epoch:
            raise self._stale_epoch(leader_epoch)
        base_offset = state.end_offset
        last_offset = base_offset + delta
        space = state.space
        space.credit -= size
        if (space.credit < 0 or space.refusing) and not space.allows(0):
            raise DiskFull(space.explain())
        active = state.active
        if (
            active.size + size > state.roll_bytes
            or max_timestamp >= state.roll_at_ms
            or last_offset > state.roll_offset
        ) and self._must_roll(size, last_offset, max_timestamp, now_ms):
            self.roll(now_ms)
            active = state.active
        stamp_prefix(batch, 0, base_offset, length, leader_epoch)
        try:
            active.append(batch, size, last_offset, max_timestamp)
        except OSError as error:
            self._append_failed(error)
        if active is not state.dirty_active:
            self._mark_dirty(active, now_ms)
        if leader_epoch != state.epoch:
            self._enter_epoch(leader_epoch, base_offset)
        state.end_offset = last_offset + 1
        if producer_id >= 0:
            ended = note_producer(state.producers, batch, read_header(batch), now_ms)
            if ended is not None and ended.aborted:
                active.note_aborted(ended)
        return _make(Appended, (base_offset, last_offset))

    def _stale_epoch(self, leader_epoch: int) -> CorruptBatch:
        """Returns the error for an epoch below the log's. Epochs never decrease within a log;
        recovery treats a decrease as damage."""
        return CorruptBatch(
            f"leader epoch {leader_epoch} is older than leader epoch {self._state.epoch}, which "
            "has already written to this log: another broker leads the partition now"
        )

    def _mark_dirty(self, segment: Segment, now_ms: int) -> None:
        """Records that the segment has bytes that no flush begun so far will sync."""
        state = self._state
        if not state.dirty:
            state.dirty_since_ms = now_ms
        state.dirty[segment.path] = None
        state.dirty_active = segment
        state.changed = True

    def append_replica(self, chunk: Buffer, now_ms: int) -> Appended:
        """Writes batches with the offsets and epochs that the leader stamped on them."""
        state = self._state
        if state.failure is not None:
            state.refuse()
        first = last = -1
        space, view = state.space, memoryview(chunk)
        for position, header in iter_batches(view):
            if header.base_offset < state.end_offset:
                raise CorruptBatch(
                    f"offset {header.base_offset} is below the log end offset "
                    f"{state.end_offset}; truncate the log first"
                )
            if header.leader_epoch < state.epoch:
                self._forget_unwritten_epochs()
                if header.leader_epoch < state.epoch:
                    raise self._stale_epoch(header.leader_epoch)
            space.credit -= header.size
            if (space.credit < 0 or space.refusing) and not space.allows(0):
                raise DiskFull(space.explain())
            if (
                state.active.size + header.size > state.roll_bytes
                or header.max_timestamp >= state.roll_at_ms
                or header.last_offset > state.roll_offset
            ) and self._must_roll(header.size, header.last_offset, header.max_timestamp, now_ms):
                self.roll(now_ms, header.base_offset)
            batch = view[position : position + header.size]
            try:
                state.active.append(batch, header.size, header.last_offset, header.max_timestamp)
            except OSError as error:
                self._append_failed(error)
            if state.active is not state.dirty_active:
                self._mark_dirty(state.active, now_ms)
            if header.leader_epoch != state.epoch:
                self._enter_epoch(header.leader_epoch, header.base_offset)
            state.end_offset = header.next_offset
            if header.has_producer:
                ended = note_producer(state.producers, batch, header, now_ms)
                if ended is not None and ended.aborted:
                    state.active.note_aborted(ended)
            first = header.base_offset if first < 0 else first
            last = header.last_offset
        return Appended(first, last)

    def _must_roll(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Returns whether to begin a new segment. Also stores when the next check is needed, so
        that most appends skip this function."""
        state = self._state
        active = state.active
        first = -1 if active.first_timestamp is None else active.first_timestamp
        wait_ms = state.config.segment_ms - state.config.segment_jitter_ms
        state.roll_at_ms = first + wait_ms + 1 if first >= 0 else ASK_ALWAYS
        state.roll_offset = active.base_offset + RELATIVE_OFFSET_MAX
        return should_roll(
            state.roll_config,
            base_offset=active.base_offset,
            size_bytes=active.size,
            first_timestamp_ms=first,
            created_ms=active.created_ms,
            jitter_ms=state.config.segment_jitter_ms,
            index_full=len(active.index) * ENTRY_SIZE >= state.config.segment_index_bytes,
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
        state = self._state
        base = state.end_offset
        if next_offset is not None and next_offset - base >= RELATIVE_OFFSET_MAX // 2:
            base = next_offset
        sealed = state.active
        if sealed.size == 0 and sealed.base_offset == base:
            return
        segment = Segment(
            state.directory,
            base,
            state.pool,
            state.cache,
            created_ms=now_ms,
            index_interval_bytes=state.config.index_interval_bytes,
        )
        snapshot = f"{state.directory}/{offset_name(state.end_offset, SNAPSHOT)}"
        try:
            sealed.seal()
            write_all(state.pool.create(snapshot), snapshot_of(state.producers), 0)
            # Created last: an empty segment left behind by a failure would make recovery cut the
            # log after a crash.
            state.pool.create(segment.path)
        except OSError as error:
            self._append_failed(error)
        if state.unindexed_offset is None:
            state.unindexed_offset = sealed.base_offset
        for path in sealed.files.written_paths():
            state.dirty[path] = None
        state.dirty[segment.path] = None
        state.dirty[snapshot] = None
        state.names_dirty = True
        state.segments.append(segment)
        state.bases.append(base)
        state.activate(segment)

    def _enter_epoch(self, epoch: int, start_offset: int) -> None:
        state = self._state
        state.epochs_dirty |= state.epochs.assign(epoch, start_offset)
        state.epoch = epoch

    def note_epoch(self, epoch: int) -> None:
        """Records the leader epoch of a new leader, before it appends anything."""
        state = self._state
        if epoch > state.epoch:
            self._enter_epoch(epoch, state.end_offset)
            state.changed = True

    def _forget_unwritten_epochs(self) -> None:
        """Drops epochs that this broker entered as leader without appending anything. The next
        leader may continue an older epoch at the same offset."""
        state = self._state
        state.epochs_dirty |= state.epochs.truncate_from_end(state.end_offset)
        state.epoch = state.epochs.latest

    def _append_failed(self, error: OSError) -> NoReturn:
        """Undoes what a failed write left behind, and raises. Takes the log offline if that fails
        too."""
        state = self._state
        if lacks_descriptors(error):
            raise DiskTrouble(
                f"{state.directory}: no file descriptors are left; raise the limit (ulimit -n) or "
                "lower open_files_max"
            ) from error
        if isinstance(error, KeyUnavailable):
            raise DiskTrouble(f"{state.directory}: {error}") from error
        if error.errno not in (ENOSPC, EDQUOT):
            state.fail(f"a write failed: {error}")
            state.refuse()
        try:
            state.active.discard_beyond_end()
        except OSError as worse:
            state.fail(f"a write failed ({error}) and could not be undone: {worse}")
            state.refuse()
        state.space.note_failed_write()
        raise DiskFull(state.space.explain()) from error
