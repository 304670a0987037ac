"""The limits of one log: immutable, checked once."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.partition.retention import UNLIMITED, RollConfig


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The topic configs that a log needs, and its segment jitter."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = UNLIMITED
    delete: bool = True
    """`cleanup.policy` names `delete`: retention applies."""
    compact: bool = False
    """`cleanup.policy` names `compact`: the cleaner keeps the newest value of each key."""
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    delete_retention_ms: int = 24 * 3600 * 1000
    flush_messages: int = 2**63 - 1
    flush_ms: int = 2**63 - 1
    encryption: str = ""
    """The topic key that encrypts new files; empty: they are plain."""

    def __post_init__(self) -> None:
        RollConfig(self.segment_bytes, self.segment_ms)
        if self.segment_index_bytes < 8:
            raise ValueError("segment.index.bytes must be at least 8, the size of one entry")
        if self.index_interval_bytes < 0:
            raise ValueError("index.interval.bytes cannot be negative")
        if not 0 <= self.min_cleanable_dirty_ratio <= 1:
            raise ValueError("min.cleanable.dirty.ratio must be between 0 and 1")
        if self.flush_messages < 1:
            raise ValueError("flush.messages must be at least 1")

    @property
    def roll(self) -> RollConfig:
        return RollConfig(self.segment_bytes, self.segment_ms)
