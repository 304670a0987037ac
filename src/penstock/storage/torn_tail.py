"""Distinguishes a torn tail from damage: which bad bytes may a crash have left? `salvage` says why.

Recovery decides by this, and so does verification, which therefore reports what recovery will do.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.ports import File
from penstock.records.batch import HEADER_SIZE, BatchHeader, read_header
from penstock.storage.checkpoints import Checkpoint
from penstock.storage.offset_checkpoint import LogOffsets, valid_offsets


@dataclass(frozen=True, slots=True)
class CrashEvidence:
    """What is known about the state of a log before a crash."""

    promised: int | None
    """Everything below this offset was on disk. None without a checkpoint."""
    cache_is_intact: bool
    """Whether the page cache still holds every write."""

    def is_torn(self, expected: int, *, is_whole: bool, ends_the_log: bool) -> bool:
        """Returns whether bad bytes, found where offset `expected` should begin, are a torn tail.

        `is_whole` says that the file is long enough for the batch there, `ends_the_log` that no
        sound batch follows.
        """
        if self.promised is not None and expected < self.promised:
            return False
        if self.cache_is_intact:
            return ends_the_log and not is_whole
        return ends_the_log or self.promised is not None


def promised_offset(checkpoint: Checkpoint | None, noted: LogOffsets | None) -> int | None:
    """Returns the offset below which everything was on disk. These offsets are never used again,
    even if their bytes are lost.

    `noted` are the offsets that the broker stored for the log.
    """
    if checkpoint is None:
        return None
    valid = valid_offsets(noted, checkpoint)
    if valid is None:
        return checkpoint.recovery_point
    return max(checkpoint.recovery_point, valid.synced_offset)


def skips_promised(
    checkpoint: Checkpoint | None, promised: int | None, expected: int, base_offset: int
) -> bool:
    """Returns whether a batch that begins at `base_offset`, where `expected` should, leaves out a
    promised offset. The recovery point and the synced offset are both the end of a batch, so a
    batch that begins below one of them is not followed by one that begins above it, unless
    compaction removed the batches in between."""
    if checkpoint is None or expected < checkpoint.sparse_offset:
        return False
    points = (checkpoint.recovery_point, promised or 0)
    return any(expected < point <= base_offset for point in points)


def fits(header: BatchHeader, offset_min: int, epoch_min: int) -> bool:
    return header.base_offset >= offset_min and header.leader_epoch >= epoch_min


def is_whole_batch(file: File, position: int, size: int) -> bool:
    """Returns whether a file of `size` bytes is long enough for the batch at `position`, by the
    size in its header."""
    data = file.pread(HEADER_SIZE, position)
    if len(data) < HEADER_SIZE:
        return False
    return HEADER_SIZE <= read_header(data).size <= size - position
