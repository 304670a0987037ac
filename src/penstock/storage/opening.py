"""The state of a log that is being opened. The parts of `recovery` share it."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.partition.epochs import LeaderEpochs
from penstock.ports import Disk
from penstock.storage.checkpoints import Checkpoint
from penstock.storage.config import LogConfig
from penstock.storage.damage import Damage
from penstock.storage.files import SEGMENT_SUFFIXES, FilePool, offset_name
from penstock.storage.index import IndexCache
from penstock.storage.offset_checkpoint import LogOffsets, valid_offsets
from penstock.storage.segment import Segment
from penstock.storage.space import SpaceGuard
from penstock.storage.torn_tail import promised_offset


@dataclass(slots=True)
class RecoveryReport:
    """What opening a log found and did, for the broker's log lines."""

    directory: str
    clean: bool = False
    scanned_bytes: int = 0
    cut_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LogResources:
    """Resources shared by all logs of one disk."""

    pool: FilePool
    cache: IndexCache
    space: SpaceGuard

    @property
    def disk(self) -> Disk:
        return self.pool.disk


class LogOpening:
    """What is known about the log so far, and its files."""

    def __init__(
        self,
        resources: LogResources,
        directory: str,
        config: LogConfig,
        now_ms: int,
        *,
        known: LogOffsets | None = None,
        cache_is_intact: bool = False,
    ) -> None:
        self.resources = resources
        self.cache_is_intact = cache_is_intact
        self.noted_offsets = known
        self.disk = resources.disk
        self.directory = directory
        self.config = config
        self.now_ms = now_ms
        self.report = RecoveryReport(directory)
        self.names_changed = False
        self.checkpoint: Checkpoint | None = None
        self.segments: list[Segment] = []
        self.epochs = LeaderEpochs()
        self.epochs_dirty = False
        self.damage: list[Damage] = []
        self.scanned: list[Segment] = []
        self.aborted_files: set[int] = set()
        """Base offsets of the segments that have a transaction index file."""
        self.unusable: list[str] = []
        """Index files that are missing, or whose length is not a whole number of entries."""

    @property
    def recovery_point(self) -> int | None:
        return self.checkpoint.recovery_point if self.checkpoint else None

    @property
    def known(self) -> LogOffsets | None:
        """The offsets that were stored for this log, as far as they are still valid."""
        return valid_offsets(self.noted_offsets, self.checkpoint)

    @property
    def promised(self) -> int | None:
        """Everything below this was on disk. These offsets are never used again, even if their
        bytes are lost."""
        return promised_offset(self.checkpoint, self.noted_offsets)

    @property
    def indexed_offset(self) -> int:
        return self.checkpoint.indexed_offset if self.checkpoint else 0

    @property
    def start(self) -> int:
        return self.checkpoint.log_start_offset if self.checkpoint else 0

    def unlink(self, name: str) -> None:
        self.resources.pool.forget(f"{self.directory}/{name}")
        self.disk.unlink(f"{self.directory}/{name}")
        self.names_changed = True

    def write_file(self, name: str) -> None:
        self.disk.open(f"{self.directory}/{name}", create=True).close()
        self.names_changed = True

    def remove_segment(self, base: int) -> None:
        self.aborted_files.discard(base)
        for suffix in SEGMENT_SUFFIXES:
            name = offset_name(base, suffix)
            if self.disk.exists(f"{self.directory}/{name}"):
                self.unlink(name)
