"""Opens a log: trusts the checkpoint after a clean stop, reads the log back after any other stop.

What an unclean stop can leave behind, and what is done about it:

    incomplete files          `.tmp`, `.cleaned` and `.deleted` files are removed
    an unfinished swap        finished: the cleaned segment replaces those that it covers
    an unfinished truncation  finished
    or `start_at`
    a torn tail, or a tail    cut off at the first bad batch: nothing from there on was ever
    of zeros                  promised to be on disk (all segments from there are read)
    bad bytes that were       quarantined. They stay in the file as evidence, are never served, and
    good before the crash     their offsets are never used again. `salvage` explains how they differ
                              from a torn tail
    indexes, leader epochs,   not trusted above the recovery point: rebuilt from the batches
    producers, transactions
    no readable checkpoint    everything is read. Bad bytes that sound batches follow are damage;
                              only bad bytes that nothing follows are a torn tail

Opening is idempotent: a second opening changes nothing. Every batch that is read back is checked by
its CRC. It counts as not yet on disk until the next flush, because the bytes may have come from the
page cache of a killed process.
"""

from __future__ import annotations

from dataclasses import replace
from errno import EDQUOT, ENOSPC
from itertools import pairwise

from penstock.partition.producers import ProducerStates
from penstock.storage.aborted_recovery import aborted_notes
from penstock.storage.checkpoints import (
    Checkpoint,
    CleanStop,
    decode_checkpoint,
    encode_checkpoint,
    first_checkpoint,
    read_file,
    topic_id_of,
    write_atomic,
)
from penstock.storage.config import LogConfig
from penstock.storage.damage import Damage
from penstock.storage.errors import CorruptFile, LogDamaged
from penstock.storage.files import (
    CLEANED,
    DELETED,
    LOG,
    LOG_CHECKPOINT,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    SWAP,
    TEMPORARY,
    TRANSACTION_INDEX,
    finish_swap,
    offset_name,
    parse_offset_name,
    parse_partition_directory,
    parse_swap_name,
)
from penstock.storage.index import ENTRY_SIZE, TIME_ENTRY_SIZE
from penstock.storage.log import Log
from penstock.storage.log_state import LogParts
from penstock.storage.offset_checkpoint import LogOffsets
from penstock.storage.producer_state import file_crc, snapshots
from penstock.storage.salvage import LogResources, RecoveryReport, Salvage
from penstock.storage.scan import BadBatch, scan_headers
from penstock.storage.segment import Segment


def open_log(
    resources: LogResources,
    directory: str,
    config: LogConfig,
    now_ms: int,
    *,
    known: LogOffsets | None = None,
    cache_is_intact: bool = False,
) -> tuple[Log, RecoveryReport]:
    """Opens an existing log and recovers it as described in the module docstring. Blocking.

    `known` are the offsets that were stored for the log (`offset_checkpoint`). `cache_is_intact`
    means that the page cache still holds every byte ever written to the log, because the machine
    has not rebooted since.
    """
    opening = _Opening(
        resources, directory, config, now_ms, known=known, cache_is_intact=cache_is_intact
    )
    return opening.open()


class _Opening(Salvage):
    """Opens one log: its directory, its segments, and what is derived from them."""

    def open(self) -> tuple[Log, RecoveryReport]:
        parsed = parse_partition_directory(self.directory.rpartition("/")[2])
        if parsed is None:
            raise CorruptFile(f"{self.directory} is not named TOPIC-PARTITION")
        topic_id = topic_id_of(self.disk, self.directory)
        if self._noted_offsets is not None and self._noted_offsets.topic_id != topic_id:
            self._noted_offsets = None
        self._read_checkpoint()
        self.segments = [self.segment(base) for base in self._finish_operations()]
        end_offset = self._trust() if self._is_clean() else self._scan()
        self._report_lost_segments()
        end_offset = self._keep_promised_offsets(end_offset)
        end_offset = self._reach_start(end_offset)
        self._finish_epochs(end_offset)
        producers = self._producers(end_offset)
        committed = 0 if self.known is None else min(self.known.high_watermark, end_offset)
        generation = self._settle(end_offset)
        start = max(self._start, min(self.segments[0].base_offset, end_offset))
        clean = self.report.clean
        parts = LogParts(
            directory=self.directory,
            topic=parsed[0],
            partition=parsed[1],
            topic_id=topic_id,
            config=self.config,
            segments=self.segments,
            log_start_offset=start,
            end_offset=end_offset,
            recovery_point=end_offset,
            noted_point=(self._recovery_point or 0) if clean or self.unnoted else end_offset,
            cleaned_offset=self.checkpoint.cleaned_offset if self.checkpoint else start,
            sparse_offset=self.checkpoint.sparse_offset if self.checkpoint else end_offset,
            epochs=self.epochs,
            producers=producers,
            damage=self.damage,
            dirty=[path for segment in self.scanned for path in segment.files.written_paths()],
            names_dirty=self.unnoted,
            epochs_dirty=self.epochs_dirty,
            unindexed_offset=self.scanned[0].base_offset if self.scanned else None,
            generation=generation,
            restored_high_watermark=committed,
        )
        self.report.damage = list(self.damage)
        resources = self.resources
        log = Log(parts, resources.pool, resources.cache, resources.space)
        log.state.changed = not clean
        return log, self.report

    # The directory

    def _finish_operations(self) -> list[int]:
        """Finishes the operations that a crash interrupted. Returns the base offsets of the
        segments that are left, at least one."""
        self._sweep()
        self._finish_restart()
        self._finish_swaps()
        bases = self._bases()
        bases = self._drop_below_start(bases)
        bases = self._finish_truncation(bases)
        self.damage = [
            held
            for held in self.damage
            if held.segment_base in bases or held.end_offset > self._start
        ]
        bases = self._drop_beyond_hole(bases)
        if not bases:
            base = max(self._promised or 0, self._start)
            self._write_file(offset_name(base, LOG))
            bases = [base]
        return bases

    def _read_checkpoint(self) -> None:
        data = read_file(self.disk, f"{self.directory}/{LOG_CHECKPOINT}")
        try:
            self.checkpoint = decode_checkpoint(data or b"")
        except CorruptFile as error:
            self.report.notes.append(f"{error}; the whole log is read")
        else:
            self.damage = list(self.checkpoint.damage)

    def _sweep(self) -> None:
        for name in self.disk.listdir(self.directory):
            if name.endswith((TEMPORARY, CLEANED, DELETED)):
                self._unlink(name)

    def _finish_restart(self) -> None:
        """Finishes `Log.start_at`: removes the files that are still there."""
        if self.checkpoint is None or self.checkpoint.restarting_at < 0:
            return
        start = self.checkpoint.restarting_at
        for name in self.disk.listdir(self.directory):
            kinds = (*SEGMENT_SUFFIXES, SNAPSHOT)
            if name.endswith(SWAP) or any(
                parse_offset_name(name, kind) is not None for kind in kinds
            ):
                self._unlink(name)
        self._write_file(offset_name(start, LOG))
        self.report.notes.append(f"finished emptying the log: it starts at offset {start}")

    def _finish_swaps(self) -> None:
        for name in self.disk.listdir(self.directory):
            swap = parse_swap_name(name)
            if swap is not None:
                finish_swap(self.disk, self.directory, name, swap)
                self.report.notes.append(
                    f"finished the compaction of offsets [{swap[0]}, {swap[1]})"
                )

    def _bases(self) -> list[int]:
        names = self.disk.listdir(self.directory)
        bases = [base for name in names if (base := parse_offset_name(name, LOG)) is not None]
        for name in names:
            for suffix in SEGMENT_SUFFIXES[1:]:
                offset = parse_offset_name(name, suffix)
                if offset is None:
                    continue
                if offset not in bases:
                    self._unlink(name)
                elif suffix == TRANSACTION_INDEX:
                    self.aborted_files.add(offset)
        return bases

    def _drop_below_start(self, bases: list[int]) -> list[int]:
        """Finishes an interrupted deletion: removes segments below the log start offset."""
        kept = list(bases)
        while len(kept) > 1 and kept[1] <= self._start:
            self._remove_segment(kept.pop(0))
        return kept

    def _drop_beyond_hole(self, bases: list[int]) -> list[int]:
        """Removes all segments if the first ones are missing and were never promised to be on
        disk."""
        if self.checkpoint is None or not bases:
            return bases
        if bases[0] <= max(self._promised or 0, self._start):
            return bases
        for base in bases:
            self._remove_segment(base)
        return []

    def _finish_truncation(self, bases: list[int]) -> list[int]:
        """Finishes an interrupted truncation."""
        if self.checkpoint is None or self.checkpoint.truncating_to < 0:
            return bases
        target = self.checkpoint.truncating_to
        kept = [base for base in bases if base <= target or base == bases[0]]
        for base in bases[len(kept) :]:
            self._remove_segment(base)
        if kept:
            self._cut_file(kept[-1], target)
        for offset in snapshots(self.disk, self.directory):
            if offset > target:
                self._unlink(offset_name(offset, SNAPSHOT))
        self.report.notes.append(f"finished the truncation to offset {target}")
        return kept

    def _cut_file(self, base: int, offset: int) -> None:
        file = self.disk.open(f"{self.directory}/{offset_name(base, LOG)}")
        try:
            file.drop_cache()
            start, end = 0, file.size()
            holes = [
                (held.start_position, held.end_position)
                for held in self.damage
                if held.segment_base == base
            ]
            for hole_start, hole_end in (*sorted(holes), (end, end)):
                # Batches after a quarantined range may have to be removed too.
                for position, header in scan_headers(file, start, min(hole_start, end)):
                    if header.last_offset >= offset:
                        file.truncate(position)
                        end = position
                        break
                start = hole_end
                if start >= end:
                    break
            # Sync even if there was nothing to cut: the process that began the truncation may have
            # been killed before its fsync.
            file.fsync()
        except BadBatch:
            # The file is not sound up to the offset. The scan that follows decides what to do.
            pass
        finally:
            file.close()

    # Segments

    def segment(self, base: int, *, fresh: bool = False) -> Segment:
        segment = Segment(
            self.directory,
            base,
            self.resources.pool,
            self.resources.cache,
            created_ms=self.now_ms,
            index_interval_bytes=self.config.index_interval_bytes,
        )
        if fresh:
            self._write_file(offset_name(base, LOG))
            return segment
        stat = self.disk.stat(segment.path)
        segment.size, segment.created_ms = stat.size, stat.modified_ms
        segment.index.spilled = self._entries(segment.index.path, ENTRY_SIZE)
        segment.time_index.spilled = self._entries(segment.time_index.path, TIME_ENTRY_SIZE)
        segment.damaged = tuple(
            (held.start_position, held.end_position)
            for held in self.damage
            if held.segment_base == base
        )
        return segment

    def _entries(self, path: str, entry_size: int) -> int:
        try:
            size = self.disk.stat(path).size
        except FileNotFoundError:
            size = -1
        if size % entry_size:
            self.unusable.append(path)
            return 0
        return size // entry_size

    def _is_clean(self) -> bool:
        """Whether the last segment still is as the clean stop in the checkpoint left it."""
        stop = self.checkpoint.clean_stop if self.checkpoint else None
        last = self.segments[-1]
        if stop is None:
            return self._never_used()
        return stop.base_offset == last.base_offset and stop.size == last.size

    def _never_used(self) -> bool:
        """Whether the log is empty and nothing in it was ever promised: there is nothing to read
        back."""
        last = self.segments[-1]
        return (
            self.checkpoint is not None
            and self.checkpoint.truncating_to < 0
            and len(self.segments) == 1
            and last.size == 0
            and last.base_offset == self.checkpoint.recovery_point == self._promised == self._start
        )

    def _trust(self) -> int:
        """Opens the log after a clean stop. Only the shape of the indexes is checked."""
        checkpoint, last = self.checkpoint, self.segments[-1]
        if checkpoint is None:
            raise RuntimeError("there is no checkpoint with a clean stop: scan the log")
        base = last.base_offset
        stop = checkpoint.clean_stop or CleanStop(base, 0, base, 0, 0)
        for segment in self.segments[:-1]:
            self._mend_indexes(segment)
        try:
            if (
                file_crc(self.disk, last.index.path) != stop.index_crc
                or file_crc(self.disk, last.time_index.path) != stop.time_index_crc
            ):
                self._rebuild(last)
            else:
                last.resume()
        except LogDamaged as error:
            self.report.notes.append(f"{error}; the log is recovered as after an unclean stop")
            return self._scan()
        self.report.clean = True
        self._load_epochs(stop.end_offset)
        return stop.end_offset

    def _report_lost_segments(self) -> None:
        """Reports as damage the segments that the checkpoint lists and that are missing without a
        reason."""
        if self.checkpoint is None:
            return
        bases = self.checkpoint.segment_bases
        first = max(self._start, self.checkpoint.sparse_offset)
        target = self.checkpoint.truncating_to
        present = {segment.base_offset: segment for segment in self.segments}
        known = {held.start_offset for held in self.damage}
        before = None
        for base, following in pairwise(bases):
            before = present.get(base, before)
            promised = following <= self.checkpoint.recovery_point
            cut = 0 <= target <= base
            if base in present or base in known or following <= first or cut or not promised:
                continue
            at = (before.base_offset, before.size) if before is not None else (base, 0)
            self.damage.append(
                Damage(at[0], at[1], at[1], base, following, "the segment's file is missing")
            )

    # What follows from the segments

    def _keep_promised_offsets(self, end_offset: int) -> int:
        """Raises the log end offset to the promised offset: promised offsets are never used again,
        even if their bytes are gone."""
        promised = self._promised or 0
        last = self.segments[-1]
        if end_offset < promised <= self._start:
            # The batch that contained the log start offset was truncated.
            return promised
        if end_offset < promised:
            reason = "the file ends before the last synced offset"
            self.damage.append(
                Damage(last.base_offset, last.size, last.size, end_offset, promised, reason)
            )
            end_offset = promised
        ragged = bool(last.damaged) and last.damaged[-1][1] >= last.size
        if ragged or (self.damage and self.damage[-1].end_offset == end_offset > last.base_offset):
            last.seal()
            # The directory no longer looks as the last clean stop left it.
            self.report.clean = False
            self.segments.append(self.segment(end_offset, fresh=True))
            self.scanned.append(self.segments[-1])
        return end_offset

    def _reach_start(self, end_offset: int) -> int:
        """Begins an empty log at the log start offset if, after a loss, the log no longer reaches
        it."""
        if end_offset >= self._start:
            return end_offset
        for segment in self.segments:
            self._remove_segment(segment.base_offset)
        self.segments = [self.segment(self._start, fresh=True)]
        self.scanned = list(self.segments)
        self.damage = []
        return self._start

    def _finish_epochs(self, end_offset: int) -> None:
        # An epoch may begin at the log end offset: its leader recorded it and has written nothing
        # yet.
        self.epochs_dirty |= self.epochs.truncate_from_end(end_offset + 1)
        self.epochs_dirty |= self.epochs.truncate_from_start(self._start)

    def _producers(self, end_offset: int) -> ProducerStates:
        bases = [segment.base_offset for segment in self.segments]
        for offset in snapshots(self.disk, self.directory):
            # Keep one snapshot at each segment's base offset and one at the end. Others are left
            # over from earlier stops.
            if offset > end_offset or (offset != end_offset and offset not in bases):
                self._unlink(offset_name(offset, SNAPSHOT))
        return self._restore_producers(end_offset)

    def _settle(self, end_offset: int) -> int:
        """Syncs what was read, cut and found, so that the next start can rely on it. Returns the
        log's generation.

        After a process was killed, its bytes, truncations and file names may all exist in memory
        only.
        """
        if not self.report.clean:
            for segment in self.scanned:
                segment.file.fsync()
        if self.names_changed or not self.report.clean:
            self.disk.sync_directory(self.directory)
        old = self.checkpoint
        start = self.segments[0].base_offset
        new = replace(
            # Without a checkpoint it is unknown how far compaction has come.
            old
            or replace(first_checkpoint(start), sparse_offset=end_offset, generation=self.now_ms),
            truncating_to=-1,
            restarting_at=-1,
            damage=tuple(self.damage),
            epochs=self.epochs.entries,
            aborted=aborted_notes(self.segments),
        )
        if not self.report.clean:
            new = replace(
                new,
                recovery_point=end_offset,
                segment_bases=tuple(segment.base_offset for segment in self.segments),
                indexed_offset=self.scanned[0].base_offset,
                clean_stop=None,
            )
        if self.known is not None and end_offset < self.known.high_watermark:
            # Committed records are gone. Other records may get their offsets, and the stored high
            # watermark must not make those look committed.
            new = replace(new, generation=new.generation + 1)
        if new != old:
            self._note(new, old)
        return new.generation

    def _note(self, new: Checkpoint, old: Checkpoint | None) -> None:
        data = encode_checkpoint(new)
        try:
            try:
                write_atomic(self.disk, self.directory, LOG_CHECKPOINT, data)
            except OSError as error:
                space = self.resources.space
                if error.errno not in (ENOSPC, EDQUOT) or not space.give_up_ballast():
                    raise
                write_atomic(self.disk, self.directory, LOG_CHECKPOINT, data)
        except OSError as error:
            # A log on a full disk can still be read: the old checkpoint is out of date, but true.
            # The write must succeed only if it ends an unfinished truncation, which must be cleared
            # before the next append, or stores a new generation.
            unfinished = (
                old is None
                or max(old.truncating_to, old.restarting_at) >= 0
                or old.generation != new.generation
            )
            if error.errno not in (ENOSPC, EDQUOT) or unfinished:
                raise
            self.unnoted = True
