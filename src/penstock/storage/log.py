"""A partition's log: segments in a row, appended at one end and deleted at the other.

    log start offset          recovery point                    log end offset
          |                         |                               |
    [ sealed ][ sealed ][ sealed    .    ][ active ->               |
                                    synced to disk up to here

A `Log` is built from parts that share one `LogState`: `LogAppender`, `LogReader`, `LogFlusher`,
`LogTruncation`, `LogCompaction` and `LogClosing`. Each is in a module of its own and can be read
alone.

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

from collections.abc import Sequence

from penstock.partition.transactions import AbortedEntry
from penstock.storage.config import LogConfig
from penstock.storage.damage import Damage
from penstock.storage.errors import DiskTrouble
from penstock.storage.files import FilePool
from penstock.storage.flush_plan import FlushPlan
from penstock.storage.index import IndexCache
from penstock.storage.log_appender import LogAppender
from penstock.storage.log_closing import LogClosing
from penstock.storage.log_compaction import LogCompaction
from penstock.storage.log_files import LogFiles
from penstock.storage.log_flusher import LogFlusher
from penstock.storage.log_reader import LogReader
from penstock.storage.log_state import LogParts, LogState
from penstock.storage.log_truncation import LogTruncation
from penstock.storage.segment import Segment
from penstock.storage.space import SpaceGuard


class Log:
    """Created by `recovery.open_log` or `creation.create_log`."""

    __slots__ = (
        "_appender",
        "_closing",
        "_compaction",
        "_files",
        "_flusher",
        "_reader",
        "_truncation",
        "append",
        "append_replica",
        "cache",
        "directory",
        "epochs",
        "partition",
        "pool",
        "producers",
        "read",
        "read_committed",
        "read_or_span",
        "state",
        "topic",
        "topic_id",
    )

    def __init__(
        self, parts: LogParts, pool: FilePool, cache: IndexCache, space: SpaceGuard
    ) -> None:
        self.directory = parts.directory
        self.topic = parts.topic
        self.partition = parts.partition
        self.topic_id = parts.topic_id
        self.epochs = parts.epochs
        self.producers = parts.producers
        self.pool = pool
        self.cache = cache
        self.state = state = LogState(parts, pool, cache, space)
        self._appender = appender = LogAppender(state)
        self._reader = reader = LogReader(state)
        self._flusher = LogFlusher(state)
        self._files = LogFiles(state)
        self._truncation = LogTruncation(state, self._files, appender)
        self._compaction = LogCompaction(state, self._files)
        self._closing = LogClosing(state, self._files, self._flusher)
        # The hot path calls these directly, without a method of this class in between.
        self.append = appender.append
        self.append_replica = appender.append_replica
        self.read = reader.read
        self.read_or_span = reader.read_or_span
        self.read_committed = reader.read_committed

    def __repr__(self) -> str:
        state = self.state
        return (
            f"{type(self).__name__}({self.topic}-{self.partition} "
            f"[{state.log_start_offset}, {state.end_offset}) in {len(state.segments)} segments)"
        )

    # State

    @property
    def config(self) -> LogConfig:
        return self.state.config

    @property
    def log_start_offset(self) -> int:
        return self.state.log_start_offset

    @property
    def end_offset(self) -> int:
        """The offset that the next record will get."""
        return self.state.end_offset

    @property
    def recovery_point(self) -> int:
        """Offsets below this survive a power loss."""
        return self.state.recovery_point

    @property
    def noted_point(self) -> int:
        """The recovery point in the checkpoint on disk, where a restart would begin. At most
        `recovery_point`."""
        return self.state.noted_point

    @property
    def restored_high_watermark(self) -> int:
        """Everything below this was committed when the log was opened; 0 if unknown."""
        return self.state.restored_high_watermark

    @property
    def cleaned_offset(self) -> int:
        """Compaction has covered everything below this."""
        return self.state.cleaned_offset

    @property
    def sparse_offset(self) -> int:
        """Gaps below this come from compaction."""
        return self.state.sparse_offset

    @property
    def generation(self) -> int:
        """Changes whenever records are removed from the end. Offsets that were stored for another
        generation may be wrong (`offset_checkpoint`)."""
        return self.state.generation

    @property
    def truncations(self) -> int:
        """How often the log was truncated. Work prepared before a truncation (compaction, a scrub)
        is invalid after it."""
        return self.state.truncations

    @property
    def damage(self) -> list[Damage]:
        """The quarantined ranges."""
        return self.state.damage

    @property
    def suspect(self) -> bool:
        """Whether a read found bad bytes that are not yet quarantined."""
        return self.state.suspect

    @suspect.setter
    def suspect(self, value: bool) -> None:
        self.state.suspect = value

    @property
    def segments(self) -> list[Segment]:
        return self.state.segments

    @property
    def active(self) -> Segment:
        return self.state.active

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.state.segments)

    @property
    def failure(self) -> str | None:
        """Why the log is offline; None if it is not."""
        return self.state.failure

    @property
    def lacks_key(self) -> bool:
        """Whether the log is offline only because its topic key was dropped."""
        return self.state.lacks_key

    @property
    def lacks_space(self) -> bool:
        """Whether the disk is full, or was for the last append that failed."""
        return self.state.space.lacks_room

    @property
    def needs_flush(self) -> bool:
        return self.state.needs_flush

    def flush_due(self, now_ms: int) -> bool:
        """Whether the topic's flush policy (flush.messages, flush.ms) requires a flush now."""
        state = self.state
        return state.needs_flush and (
            state.end_offset - state.recovery_point >= state.config.flush_messages
            or (bool(state.dirty) and now_ms - state.dirty_since_ms >= state.config.flush_ms)
        )

    def reconfigure(self, config: LogConfig) -> None:
        """Applies changed limits. Segments that are already sealed stay as they are."""
        self.state.reconfigure(config)

    def fail(
        self,
        reason: str,
        advice: str = "repair the disk and restart the broker",
        *,
        lacks_key: bool = False,
    ) -> None:
        """Takes this log offline: it refuses all further calls until it is recovered.

        `lacks_key` means that only its topic key was dropped, and nothing is wrong with its
        files."""
        self.state.fail(reason, advice, lacks_key=lacks_key)

    # Appending, reading, flushing

    def roll(self, now_ms: int) -> None:
        """Seals the active segment and begins a new one at the log end offset."""
        self._appender.roll(now_ms)

    def note_epoch(self, epoch: int) -> None:
        """Records the leader epoch of a new leader, before it appends anything."""
        self._appender.note_epoch(epoch)

    def aborted_entries(self, start_offset: int, end_offset: int) -> list[AbortedEntry]:
        """Returns the aborted transactions that overlap [start, end), in the order of their
        markers."""
        return self._reader.aborted_entries(start_offset, end_offset)

    def flush(self, *, checkpoint: bool = False) -> None:
        """Makes everything up to the log end offset durable. Blocking."""
        self._flusher.flush(checkpoint=checkpoint)

    def begin_flush(self) -> FlushPlan:
        """Returns what must be synced so that everything up to the log end offset survives a power
        loss."""
        return self._flusher.begin_flush()

    def end_flush(self, plan: FlushPlan) -> None:
        """Records a flush that has ended: moves the recovery point."""
        self._flusher.end_flush(plan)

    def put_off_flush(self, plan: FlushPlan, error: BaseException) -> DiskTrouble:
        """Ends a flush that could not open a file. Everything in its plan must be flushed again."""
        return self._flusher.put_off_flush(plan, error)

    def fail_flush(self, plan: FlushPlan, error: BaseException) -> None:
        """Takes the log offline after a failed fsync."""
        self._flusher.fail_flush(plan, error)

    # Removing records. None of these may overlap a flush.

    def truncate_to(self, offset: int) -> None:
        """Removes everything at or above `offset`. `purge` frees the space."""
        self._truncation.truncate_to(offset)

    def start_at(self, offset: int) -> None:
        """Discards everything and continues with an empty log at `offset`. `purge` frees the
        space."""
        self._truncation.start_at(offset)

    def delete_before(self, offset: int) -> int:
        """Raises the log start offset to `offset` and removes whole segments below it. Returns the
        new log start offset. `purge` frees the space."""
        return self._truncation.delete_before(offset)

    def quarantine(self, found: Damage) -> None:
        """Stops serving a range that was found to be bad, and records it in the checkpoint for
        restarts."""
        self._truncation.quarantine(found)

    def note_cut(self) -> None:
        """Invalidates the stored synced offset and high watermark, since records may be gone from
        the end of this log."""
        self.state.note_cut()

    def on_offsets_noted(self, generation: int) -> None:
        """Notes that the offsets of this generation are stored durably (`offset_checkpoint`)."""
        self.state.on_offsets_noted(generation)

    def purge(self) -> int:
        """Unlinks deleted files. Blocking; may run on any thread. Returns the number of files
        removed."""
        return self._files.purge()

    # Compaction

    def note_sparse(self, offset: int) -> None:
        """Records that gaps below `offset` come from compaction. Durable before there are any
        gaps."""
        self._compaction.note_sparse(offset)

    def swap_in(self, cleaned: Segment, replaced: Sequence[tuple[Segment, int]]) -> bool:
        """Replaces a run of adjacent segments with one cleaned segment. Returns False and drops it
        if the log no longer has the segments it was made from."""
        return self._compaction.swap_in(cleaned, replaced)

    def note_cleaned(self, offset: int) -> None:
        """Records that compaction has covered everything below `offset`. The next checkpoint stores
        it."""
        self._compaction.note_cleaned(offset)

    # Closing

    def close(self) -> None:
        """Closes the log cleanly: flushes it and stores what the next start may trust. Blocking."""
        self._closing.close()

    def begin_close(self) -> FlushPlan | None:
        """Runs the first of the three steps of `close`, as with a flush. Returns None if the second
        step is not needed."""
        return self._closing.begin_close()

    def end_close(self, plan: FlushPlan | None) -> None:
        """Runs the last step of `close`, after the plan from `begin_close` was run."""
        self._closing.end_close(plan)

    def abandon(self, reason: str) -> None:
        """Closes every file. Later calls are refused."""
        self._closing.abandon(reason)
