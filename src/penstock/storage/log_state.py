"""The state of a log: its segments, offsets, and what is not yet synced.

`read_log.ReadLog` adds reads to it, `append_log.AppendLog` adds appends and flushes, and `log.Log`
adds truncation and deletion. A log that failed refuses all further calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NoReturn

from penstock.partition.epochs import LeaderEpochs
from penstock.partition.producers import ProducerStates
from penstock.storage.aborted_recovery import aborted_notes
from penstock.storage.checkpoints import Checkpoint
from penstock.storage.config import LogConfig
from penstock.storage.damage import Damage
from penstock.storage.errors import (
    LogOffline,
)
from penstock.storage.files import FilePool
from penstock.storage.flush import FlushPlan
from penstock.storage.index import ENTRY_SIZE, IndexCache
from penstock.storage.segment import Segment
from penstock.storage.space import SpaceGuard

ASK_ALWAYS: Final = -(2**63)
"""No timestamp is lower: every append checks whether to roll."""


@dataclass(slots=True)
class LogParts:
    """The result of opening or creating a log, from which a `Log` is built."""

    directory: str
    topic: str
    partition: int
    topic_id: str
    config: LogConfig
    segments: list[Segment]
    log_start_offset: int
    end_offset: int
    recovery_point: int
    noted_point: int
    """The recovery point of the checkpoint on disk."""
    cleaned_offset: int
    sparse_offset: int
    epochs: LeaderEpochs
    producers: ProducerStates
    damage: list[Damage]
    dirty: list[str]
    """Files whose content may exist only in the page cache."""
    names_dirty: bool
    """The checkpoint is out of date because the disk had no space for it."""
    epochs_dirty: bool
    unindexed_offset: int | None
    generation: int = 0
    restored_high_watermark: int = 0


class LogState:
    """The segments, the offsets, and what is not yet synced. Created only by `recovery`."""

    # Slots: there are many logs, and these attributes are read on every append.
    __slots__ = (
        "_active",
        "_bases",
        "_dirty",
        "_dirty_active",
        "_dirty_since_ms",
        "_disk",
        "_end_offset",
        "_epoch",
        "_epochs_dirty",
        "_failure",
        "_flushing",
        "_log_start_offset",
        "_names_dirty",
        "_recovery_point",
        "_roll_at_ms",
        "_roll_bytes",
        "_roll_config",
        "_roll_offset",
        "_segments",
        "_space",
        "_unindexed_offset",
        "cache",
        "changed",
        "cleaned_offset",
        "config",
        "damage",
        "directory",
        "epochs",
        "generation",
        "noted_point",
        "partition",
        "pool",
        "producers",
        "restored_high_watermark",
        "sparse_offset",
        "suspect",
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
        self.damage = parts.damage
        self.cleaned_offset = parts.cleaned_offset
        self.sparse_offset = parts.sparse_offset
        self.generation = parts.generation
        """Changes whenever records are removed from the end. Offsets that were stored for another
        generation may be wrong (`offset_checkpoint`)."""
        self.restored_high_watermark = parts.restored_high_watermark
        """Everything below this was committed when the log was opened; 0 if unknown."""
        self.noted_point = parts.noted_point
        """The recovery point in the checkpoint on disk, where a restart would begin. At most
        `recovery_point`."""
        self.pool = pool
        self.cache = cache
        self._disk = pool.disk
        self._space = space
        self._segments = parts.segments
        self._bases = [segment.base_offset for segment in parts.segments]
        self._activate(parts.segments[-1])
        self._log_start_offset = parts.log_start_offset
        self._end_offset = parts.end_offset
        self._recovery_point = parts.recovery_point
        self._epoch = parts.epochs.latest
        self.reconfigure(parts.config)
        self._dirty: dict[str, None] = dict.fromkeys(parts.dirty)
        self._dirty_active: Segment | None = None
        self._dirty_since_ms = 0
        self._names_dirty = parts.names_dirty
        self._epochs_dirty = parts.epochs_dirty
        self._flushing: FlushPlan | None = None
        self._unindexed_offset = parts.unindexed_offset
        """Base offset of the first segment that was sealed since the last flush."""
        self._failure: str | None = None
        self.suspect = False
        """A read found bad bytes that are not yet quarantined."""
        self.changed = False
        """Whether a clean stop has anything to store."""

    def reconfigure(self, config: LogConfig) -> None:
        """Applies changed limits. Segments that are already sealed stay as they are."""
        self.config = config
        self._roll_config = config.roll
        # The index gets at most one entry per interval. Below this size neither the segment nor its
        # index can be full.
        entries_max = config.segment_index_bytes // ENTRY_SIZE
        self._roll_bytes = min(
            config.segment_bytes, entries_max * (config.index_interval_bytes + 1)
        )
        self._active.index_interval_bytes = config.index_interval_bytes
        self._roll_at_ms = ASK_ALWAYS

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.topic}-{self.partition} "
            f"[{self._log_start_offset}, {self._end_offset}) in {len(self._segments)} segments)"
        )

    @property
    def log_start_offset(self) -> int:
        return self._log_start_offset

    @property
    def end_offset(self) -> int:
        """The offset that the next record will get."""
        return self._end_offset

    @property
    def lacks_space(self) -> bool:
        """Whether the disk is full, or was for the last append that failed."""
        return self._space.lacks_room

    @property
    def recovery_point(self) -> int:
        """Offsets below this survive a power loss."""
        return self._recovery_point

    @property
    def segments(self) -> list[Segment]:
        return self._segments

    @property
    def active(self) -> Segment:
        return self._active

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def failure(self) -> str | None:
        """Why the log is offline; None if it is not."""
        return self._failure

    @property
    def needs_flush(self) -> bool:
        return bool(self._dirty or self._names_dirty or self._epochs_dirty)

    def flush_due(self, now_ms: int) -> bool:
        """Whether the topic's flush policy (flush.messages, flush.ms) requires a flush now."""
        return self.needs_flush and (
            self._end_offset - self._recovery_point >= self.config.flush_messages
            or (bool(self._dirty) and now_ms - self._dirty_since_ms >= self.config.flush_ms)
        )

    def _activate(self, segment: Segment) -> None:
        """Makes this segment the active one, and resets what is known about when to roll."""
        self._active = segment
        self._roll_at_ms = ASK_ALWAYS
        self._roll_offset = -1

    def fail(self, reason: str) -> None:
        """Takes this log offline: it refuses all further calls until it is recovered."""
        if self._failure is None:
            self._failure = f"{reason}; repair the disk and restart the broker"

    def _refuse(self) -> NoReturn:
        raise LogOffline(f"{self.directory} is offline: {self._failure}")

    def _checkpoint(self, recovery_point: int) -> Checkpoint:
        unindexed = self._unindexed_offset
        return Checkpoint(
            recovery_point=recovery_point,
            indexed_offset=self._active.base_offset if unindexed is None else unindexed,
            log_start_offset=self._log_start_offset,
            cleaned_offset=self.cleaned_offset,
            sparse_offset=self.sparse_offset,
            generation=self.generation,
            segment_bases=tuple(self._bases),
            damage=tuple(self.damage),
            epochs=self.epochs.entries,
            aborted=aborted_notes(self._segments),
        )
