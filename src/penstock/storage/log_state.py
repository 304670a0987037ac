"""The state of a log: its segments, offsets, and what is not yet synced.

The parts of a `log.Log` share one `LogState`: reader, appender, flusher, truncation, compaction and
closing. Each of them reads and assigns its attributes. Code outside this package reads them through
`Log`.
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
from penstock.storage.encrypted_disk import protect
from penstock.storage.errors import LogOffline
from penstock.storage.files import FilePool
from penstock.storage.flush_plan import FlushPlan
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
    cut_since: int = -1
    cut_offset: int = -1
    restored_high_watermark: int = 0


class LogState:
    """The segments, the offsets, and what is not yet synced."""

    # Slots: there are many logs, and these attributes are read on every append.
    __slots__ = (
        "active",
        "bases",
        "cache",
        "changed",
        "cleaned_offset",
        "config",
        "cut_offset",
        "cut_since",
        "damage",
        "directory",
        "dirty",
        "dirty_active",
        "dirty_since_ms",
        "disk",
        "end_offset",
        "epoch",
        "epochs",
        "epochs_dirty",
        "failure",
        "flushing",
        "generation",
        "lacks_key",
        "log_start_offset",
        "names_dirty",
        "noted_point",
        "partition",
        "pool",
        "producers",
        "recovery_point",
        "restored_high_watermark",
        "roll_at_ms",
        "roll_bytes",
        "roll_config",
        "roll_offset",
        "segments",
        "space",
        "sparse_offset",
        "suspect",
        "topic",
        "topic_id",
        "truncations",
        "unindexed_offset",
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
        self.cut_since, self.cut_offset = parts.cut_since, parts.cut_offset
        """As in `Checkpoint`."""
        self.restored_high_watermark = parts.restored_high_watermark
        """Everything below this was committed when the log was opened; 0 if unknown."""
        self.noted_point = parts.noted_point
        """The recovery point in the checkpoint on disk, where a restart would begin. At most
        `recovery_point`."""
        self.pool = pool
        self.cache = cache
        self.disk = pool.disk
        self.space = space
        self.segments = parts.segments
        self.bases = [segment.base_offset for segment in parts.segments]
        """The base offsets of `segments`, for a binary search."""
        self.activate(parts.segments[-1])
        self.log_start_offset = parts.log_start_offset
        self.end_offset = parts.end_offset
        """The offset that the next record will get."""
        self.recovery_point = parts.recovery_point
        """Offsets below this survive a power loss."""
        self.epoch = parts.epochs.latest
        self.reconfigure(parts.config)
        self.dirty: dict[str, None] = dict.fromkeys(parts.dirty)
        """Files whose content no flush begun so far will sync."""
        self.dirty_active: Segment | None = None
        self.dirty_since_ms = 0
        self.names_dirty = parts.names_dirty
        """Files were created or removed since the last checkpoint."""
        self.epochs_dirty = parts.epochs_dirty
        self.flushing: FlushPlan | None = None
        self.unindexed_offset = parts.unindexed_offset
        """Base offset of the first segment that was sealed since the last flush."""
        self.failure: str | None = None
        self.lacks_key = False
        """The log is offline only because its topic key was dropped: its files are sound."""
        """Why the log is offline; None if it is not."""
        self.truncations = 0
        """How often the log was truncated. Work prepared before a truncation (compaction, a scrub)
        is invalid after it."""
        self.suspect = False
        """A read found bad bytes that are not yet quarantined."""
        self.changed = False
        """Whether a clean stop has anything to store."""

    def reconfigure(self, config: LogConfig) -> None:
        """Applies changed limits. Segments that are already sealed stay as they are."""
        self.config = config
        protect(self.disk, self.directory, self.topic_id, self.partition, config.encryption)
        self.roll_config = config.roll
        # The index gets at most one entry per interval. Below this size neither the segment nor its
        # index can be full.
        entries_max = config.segment_index_bytes // ENTRY_SIZE
        self.roll_bytes = min(config.segment_bytes, entries_max * (config.index_interval_bytes + 1))
        self.active.index_interval_bytes = config.index_interval_bytes
        self.roll_at_ms = ASK_ALWAYS

    @property
    def needs_flush(self) -> bool:
        return bool(self.dirty or self.names_dirty or self.epochs_dirty)

    def activate(self, segment: Segment) -> None:
        """Makes this segment the active one, and resets what is known about when to roll."""
        self.active = segment
        self.roll_at_ms = ASK_ALWAYS
        self.roll_offset = -1

    def fail(
        self,
        reason: str,
        advice: str = "repair the disk and restart the broker",
        *,
        lacks_key: bool = False,
    ) -> None:
        """Takes this log offline: it refuses all further calls until it is recovered.

        A flush may be running when the topic key is dropped. If it fails, that is what counts."""
        if self.failure is None or (self.lacks_key and not lacks_key):
            self.failure = f"{reason}; {advice}"
            self.lacks_key = lacks_key

    def refuse(self) -> NoReturn:
        """Raises the error for a log that is offline."""
        raise LogOffline(f"{self.directory} is offline: {self.failure}")

    def note_cut(self) -> None:
        """Invalidates the stored synced offset and high watermark, since records may be gone from
        the end of this log.

        Raises the generation; the next checkpoint stores it.
        """
        self.generation += 1
        self.cut_since = self.cut_offset = -1
        self.names_dirty = self.changed = True

    def on_offsets_noted(self, generation: int) -> None:
        """Forgets earlier truncations: the stored offsets take them into account."""
        if generation == self.generation:
            self.cut_since = self.cut_offset = -1

    def checkpoint(self, recovery_point: int) -> Checkpoint:
        """Returns a checkpoint of the log as it is, with this recovery point."""
        unindexed = self.unindexed_offset
        return Checkpoint(
            recovery_point=recovery_point,
            indexed_offset=self.active.base_offset if unindexed is None else unindexed,
            log_start_offset=self.log_start_offset,
            cleaned_offset=self.cleaned_offset,
            sparse_offset=self.sparse_offset,
            generation=self.generation,
            cut_since=self.cut_since,
            cut_offset=self.cut_offset,
            segment_bases=tuple(self.bases),
            damage=tuple(self.damage),
            epochs=self.epochs.entries,
            aborted=aborted_notes(self.segments),
        )
