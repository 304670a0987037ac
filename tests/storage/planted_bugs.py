"""Planted bugs in the storage code. Each replaces one function while a case runs.

They are typical mistakes in such code, and most of them were made in real systems. A harness that
does not find every one of them quickly proves nothing when it finds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from penstock.partition.epochs import LeaderEpochs
from penstock.records.batch import BatchHeader, validate
from penstock.sim.disk.disk import SimDisk, SimFile
from penstock.storage import (
    cleaner,
    interrupted_operations,
    recovery,
    scan,
    sealed_format,
)
from penstock.storage.checkpoints import Checkpoint, encode_checkpoint, read_file, write_atomic
from penstock.storage.data_keys import DataKey, Keyring, KeyUnavailable
from penstock.storage.encrypted_file import EncryptedFile, Nonces
from penstock.storage.files import LOG_CHECKPOINT
from penstock.storage.flush_plan import FlushPlan
from penstock.storage.index import decode_entries
from penstock.storage.interrupted_operations import InterruptedOperations
from penstock.storage.log_compaction import LogCompaction
from penstock.storage.log_files import LogFiles
from penstock.storage.log_flusher import LogFlusher
from penstock.storage.log_truncation import LogTruncation
from penstock.storage.opening import LogOpening
from penstock.storage.recovery import Recovery
from penstock.storage.salvage import Salvage
from penstock.storage.scan import BadBatch
from penstock.storage.sealed_format import WrappedKey
from penstock.storage.segment import Segment

Plant = Callable[[], AbstractContextManager[Any]]
PLANTED: dict[str, Plant] = {}


def planted(plant: Plant) -> Plant:
    PLANTED[plant.__name__] = plant
    return plant


def nothing(*_: object, **__: object) -> None:
    """Does nothing, in place of a function that should do something."""


@contextmanager
def without_during(owner: type, method: str, skipped_owner: type, skipped: str) -> Iterator[None]:
    """Makes `skipped` do nothing while `method` runs."""
    original = getattr(owner, method)

    def careless(*arguments: Any, **options: Any) -> Any:
        with patch.object(skipped_owner, skipped, nothing):
            return original(*arguments, **options)

    with patch.object(owner, method, careless):
        yield


# Flushing


@planted
def ack_before_fsync() -> AbstractContextManager[Any]:
    """A flush ends without having made the data durable."""
    return without_during(FlushPlan, "run", SimFile, "fsync")


@planted
def no_directory_fsync() -> AbstractContextManager[Any]:
    return patch.object(SimDisk, "sync_directory", nothing)


@planted
def flush_without_directory_fsync() -> AbstractContextManager[Any]:
    """A flush does not sync the names of new segments; nothing else changes."""
    return without_during(FlushPlan, "run", SimDisk, "sync_directory")


@planted
def checkpoint_before_data() -> AbstractContextManager[Any]:
    """The recovery point is stored before the data below it is on disk."""
    original = FlushPlan.run

    def run(plan: FlushPlan) -> None:
        if plan.checkpoint is not None:
            data = encode_checkpoint(plan.checkpoint)
            write_atomic(plan.disk, plan.directory, LOG_CHECKPOINT, data)
        original(plan)

    return patch.object(FlushPlan, "run", run)


@planted
def flush_promises_later_appends() -> AbstractContextManager[Any]:
    """Records appended while the flush ran count as flushed."""
    original = LogFlusher.end_flush

    def end_flush(self: LogFlusher, plan: FlushPlan) -> None:
        plan.end_offset = self._state.end_offset
        original(self, plan)

    return patch.object(LogFlusher, "end_flush", end_flush)


@planted
def flush_forgets_later_appends() -> AbstractContextManager[Any]:
    """Files that became dirty while the flush ran count as clean."""
    original = LogFlusher.end_flush

    def end_flush(self: LogFlusher, plan: FlushPlan) -> None:
        original(self, plan)
        self._state.dirty = {}

    return patch.object(LogFlusher, "end_flush", end_flush)


@planted
def fsync_retried() -> AbstractContextManager[Any]:
    """A failed fsync is retried, and the second result is trusted."""

    def flush(self: LogFlusher, *, checkpoint: bool = False) -> None:
        plan = self.begin_flush(checkpoint=checkpoint)
        try:
            plan.run()
        except OSError:
            plan.run()
        self.end_flush(plan)

    return patch.object(LogFlusher, "flush", flush)


@planted
def page_cache_believed() -> AbstractContextManager[Any]:
    """After a failed fsync and a restart the cache shows bytes that the disk never received."""
    return patch.object(SimFile, "drop_cache", nothing)


@planted
def short_write_ignored() -> AbstractContextManager[Any]:
    return patch.object(SimFile, "pwrite", _claims_all(SimFile.pwrite))


def _claims_all(original: Callable[..., int]) -> Callable[..., int]:
    def pwrite(self: SimFile, data: bytes, position: int) -> int:
        original(self, data, position)
        return len(data)

    return pwrite


# Recovering


@planted
def index_trusted_after_a_crash() -> AbstractContextManager[Any]:
    """The existing index is used, not the one that the scan builds."""
    original = Salvage._scan_segment

    def scan_segment(self: Salvage, scanned: Segment, **options: Any) -> tuple[int, bool]:
        found = read_file(self._opening.disk, scanned.index.path)
        result = original(self, scanned, **options)
        if found:
            scanned.index.tail = decode_entries(found)
        return result

    return patch.object(Salvage, "_scan_segment", scan_segment)


@planted
def recovery_without_crc() -> AbstractContextManager[Any]:
    """A batch counts as complete because its lengths and offsets look right."""

    def careless(buffer: bytes, position: int = 0) -> BatchHeader:
        return validate(buffer, position, check_crc=False)

    return patch.object(scan, "validate", careless)


@planted
def torn_tail_kept() -> AbstractContextManager[Any]:
    """The end is found, but the bytes after it stay in the file."""

    def cut_tail(self: Salvage, torn: Segment, bad: BadBatch) -> None:
        self._opening.report.notes.append(f"left a torn tail in {torn.path} {bad}")

    return patch.object(Salvage, "_cut_tail", cut_tail)


@planted
def rot_taken_for_a_torn_tail() -> AbstractContextManager[Any]:
    """Records above the stored synced offset are cut off at the first bad batch, although the page
    cache had all of them and valid batches follow."""

    def torn(self: Salvage, _: int) -> Callable[[int, bool, bool], bool]:
        promised = self._opening.promised or 0
        return lambda expected, *_: expected >= promised

    return patch.object(Salvage, "_torn", torn)


@planted
def torn_tail_taken_for_rot() -> AbstractContextManager[Any]:
    """Valid batches after a bad position count as proof of bit rot after a power cut, too."""
    original = Recovery.open

    def trusting(self: Recovery) -> Any:
        self._opening.cache_is_intact = True
        return original(self)

    return patch.object(Recovery, "open", trusting)


@planted
def synced_offset_ignored() -> AbstractContextManager[Any]:
    """Only the log's own checkpoint says what was synced, so acknowledged records are cut off."""
    return patch.object(LogOpening, "promised", property(lambda self: self.recovery_point))


@planted
def offsets_of_another_generation_believed() -> AbstractContextManager[Any]:
    """Offsets stored for records that were truncated count for the records that replaced them."""
    return patch.object(
        LogOpening, "known", property(lambda self: self.checkpoint and self.noted_offsets)
    )


@planted
def loss_of_committed_records_not_noted() -> AbstractContextManager[Any]:
    """After a crash lost committed records, the records that replace them count as committed."""
    original = Recovery._settle

    def settle(self: Recovery, end_offset: int) -> Checkpoint:
        opening = self._opening
        noted, opening.noted_offsets = opening.noted_offsets, None
        try:
            return original(self, end_offset)
        finally:
            opening.noted_offsets = noted

    return patch.object(Recovery, "_settle", settle)


@planted
def offset_reused() -> AbstractContextManager[Any]:
    """The end offset is taken from the last index entry, not from the last batch."""
    original = Salvage.scan

    def last_indexed(self: Salvage) -> int:
        end_offset = original(self)
        segment = self._opening.segments[-1]
        last = segment.index.last()
        return end_offset if last is None else segment.base_offset + last[0] + 1

    return patch.object(Salvage, "scan", last_indexed)


@planted
def later_segments_kept_after_a_cut() -> AbstractContextManager[Any]:
    """A log with a lost middle part continues after the gap."""
    return patch.object(Salvage, "_cut_after", nothing)


@planted
@contextmanager
def snapshot_newer_than_the_log_kept() -> Iterator[None]:
    """Recovery finds no snapshot to remove, so a snapshot of lost records is loaded."""
    with (
        patch.object(interrupted_operations, "snapshots", lambda *_: []),
        patch.object(recovery, "snapshots", lambda *_: []),
    ):
        yield


@planted
def epochs_not_truncated() -> AbstractContextManager[Any]:
    """Epochs of truncated records stay known (KAFKA-10706)."""
    return patch.object(LeaderEpochs, "truncate_from_end", lambda *_: False)


@planted
def recovery_without_directory_fsync() -> AbstractContextManager[Any]:
    return without_during(Recovery, "open", SimDisk, "sync_directory")


# Cutting and swapping


@planted
def truncation_keeps_the_recovery_point() -> AbstractContextManager[Any]:
    """Offsets that were truncated count as flushed when they are assigned again."""
    original = LogTruncation.truncate_to

    def truncate_to(self: LogTruncation, offset: int) -> None:
        promised = self._state.recovery_point
        original(self, offset)
        self._state.recovery_point = promised

    return patch.object(LogTruncation, "truncate_to", truncate_to)


@planted
def truncation_without_fsync() -> AbstractContextManager[Any]:
    return without_during(LogTruncation, "_cut_from", SimFile, "fsync")


@planted
def deletion_before_the_checkpoint() -> AbstractContextManager[Any]:
    """Segments are deleted first, and the new log start offset is stored afterwards."""
    original = LogTruncation.delete_before

    def delete_before(self: LogTruncation, offset: int) -> int:
        late: list[Checkpoint] = []
        with patch.object(
            LogFiles, "write_checkpoint", lambda _, checkpoint: late.append(checkpoint)
        ):
            start = original(self, offset)
        for checkpoint in late:
            self._files.write_checkpoint(checkpoint)
        return start

    return patch.object(LogTruncation, "delete_before", delete_before)


@planted
def swap_without_directory_fsync() -> AbstractContextManager[Any]:
    return without_during(LogCompaction, "swap_in", SimDisk, "sync_directory")


@planted
def cleaned_segment_not_fsynced() -> AbstractContextManager[Any]:
    return without_during(cleaner.CleanTask, "run", SimFile, "fsync")


@planted
def swap_not_finished() -> AbstractContextManager[Any]:
    """Opening does not look for an unfinished swap."""
    return patch.object(InterruptedOperations, "_finish_swaps", nothing)


@planted
def compaction_drops_the_newest() -> AbstractContextManager[Any]:
    def compact_batch(batch: bytes, header: Any, *_: object, **__: object) -> bytes | None:
        return None if header.base_offset % 2 else batch

    return patch.object(cleaner, "compact_batch", compact_batch)


# Reading


@planted
def bad_bytes_served() -> AbstractContextManager[Any]:
    """Data that is read for the first time is not checked."""
    return patch.object(Segment, "_verify", lambda _self, data, *_: data)


# Encryption


@planted
def nonce_from_the_position() -> AbstractContextManager[Any]:
    """The nonce is where the frame is in the file: used again after a truncation."""
    return patch.object(Nonces, "next", lambda _, start: start.to_bytes(12, "big"))


@planted
def place_of_a_frame_not_checked() -> AbstractContextManager[Any]:
    """A segment of another partition is accepted in the place of this one's."""
    return patch.object(sealed_format, "associated_data", lambda *_: b"")


@planted
def missing_key_taken_for_damage() -> AbstractContextManager[Any]:
    """A log whose key cannot be had is opened with a wrong key, and its records look damaged."""
    original = Keyring.key

    def key(self: Keyring, wrapped: WrappedKey) -> DataKey:
        try:
            return original(self, wrapped)
        except KeyUnavailable:
            return DataKey(wrapped, bytes(32))

    return patch.object(Keyring, "key", key)


@planted
def lost_header_not_written_again() -> AbstractContextManager[Any]:
    """A header that a failed fsync kept off the disk is lost with the page cache."""

    def drop_cache(self: EncryptedFile) -> None:
        self._file.drop_cache()
        self._map.load()

    return patch.object(EncryptedFile, "drop_cache", drop_cache)


@planted
def torn_frame_not_cut_off() -> AbstractContextManager[Any]:
    """What a failed write has left does not count as a part of the file."""
    return patch.object(EncryptedFile, "size", lambda self: self._map.size)
