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
from penstock.storage.encrypted_disk import load_keys, protect
from penstock.storage.errors import CorruptFile, LogDamaged
from penstock.storage.files import (
    LOG,
    LOG_CHECKPOINT,
    SNAPSHOT,
    offset_name,
    parse_partition_directory,
)
from penstock.storage.index import ENTRY_SIZE, TIME_ENTRY_SIZE
from penstock.storage.interrupted_operations import InterruptedOperations
from penstock.storage.log import Log
from penstock.storage.log_state import LogParts
from penstock.storage.offset_checkpoint import LogOffsets
from penstock.storage.opening import LogOpening, LogResources, RecoveryReport
from penstock.storage.producer_snapshots import file_crc, snapshots
from penstock.storage.salvage import Salvage
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
    opening = LogOpening(
        resources, directory, config, now_ms, known=known, cache_is_intact=cache_is_intact
    )
    return Recovery(opening).open()


class Recovery:
    """Opens one log: its directory, its segments, and what is derived from them."""

    def __init__(self, opening: LogOpening) -> None:
        self._opening = opening
        self._salvage = Salvage(opening)
        self._unnoted = False
        """The new checkpoint could not be written, because the disk is full."""

    def open(self) -> tuple[Log, RecoveryReport]:
        opening = self._opening
        parsed = parse_partition_directory(opening.directory.rpartition("/")[2])
        if parsed is None:
            raise CorruptFile(f"{opening.directory} is not named TOPIC-PARTITION")
        topic_id = topic_id_of(opening.disk, opening.directory)
        protect(opening.disk, opening.directory, topic_id, parsed[1], opening.config.encryption)
        load_keys(opening.disk, opening.directory)
        if opening.noted_offsets is not None and opening.noted_offsets.topic_id != topic_id:
            opening.noted_offsets = None
        self._read_checkpoint()
        opening.segments = [self._segment(base) for base in InterruptedOperations(opening).finish()]
        end_offset = self._trust() if self._is_clean() else self._salvage.scan()
        self._report_lost_segments()
        end_offset = self._keep_promised_offsets(end_offset)
        end_offset = self._reach_start(end_offset)
        self._finish_epochs(end_offset)
        producers = self._producers(end_offset)
        committed = 0 if opening.known is None else min(opening.known.high_watermark, end_offset)
        settled = self._settle(end_offset)
        start = max(opening.start, min(opening.segments[0].base_offset, end_offset))
        clean = opening.report.clean
        parts = LogParts(
            directory=opening.directory,
            topic=parsed[0],
            partition=parsed[1],
            topic_id=topic_id,
            config=opening.config,
            segments=opening.segments,
            log_start_offset=start,
            end_offset=end_offset,
            recovery_point=end_offset,
            noted_point=(opening.recovery_point or 0) if clean or self._unnoted else end_offset,
            cleaned_offset=opening.checkpoint.cleaned_offset if opening.checkpoint else start,
            sparse_offset=opening.checkpoint.sparse_offset if opening.checkpoint else end_offset,
            epochs=opening.epochs,
            producers=producers,
            damage=opening.damage,
            dirty=[path for segment in opening.scanned for path in segment.files.written_paths()],
            names_dirty=self._unnoted,
            epochs_dirty=opening.epochs_dirty,
            unindexed_offset=opening.scanned[0].base_offset if opening.scanned else None,
            generation=settled.generation,
            cut_since=settled.cut_since,
            cut_offset=settled.cut_offset,
            restored_high_watermark=committed,
        )
        opening.report.damage = list(opening.damage)
        resources = opening.resources
        log = Log(parts, resources.pool, resources.cache, resources.space)
        log.state.changed = not clean
        return log, opening.report

    def _read_checkpoint(self) -> None:
        opening = self._opening
        data = read_file(opening.disk, f"{opening.directory}/{LOG_CHECKPOINT}")
        try:
            opening.checkpoint = decode_checkpoint(data or b"")
        except CorruptFile as error:
            opening.report.notes.append(f"{error}; the whole log is read")
        else:
            opening.damage = list(opening.checkpoint.damage)

    # Segments

    def _segment(self, base: int, *, fresh: bool = False) -> Segment:
        opening = self._opening
        segment = Segment(
            opening.directory,
            base,
            opening.resources.pool,
            opening.resources.cache,
            created_ms=opening.now_ms,
            index_interval_bytes=opening.config.index_interval_bytes,
        )
        if fresh:
            opening.write_file(offset_name(base, LOG))
            return segment
        stat = opening.disk.stat(segment.path)
        segment.size, segment.created_ms = stat.size, stat.modified_ms
        segment.index.spilled = self._entries(segment.index.path, ENTRY_SIZE)
        segment.time_index.spilled = self._entries(segment.time_index.path, TIME_ENTRY_SIZE)
        segment.damaged = tuple(
            (held.start_position, held.end_position)
            for held in opening.damage
            if held.segment_base == base
        )
        return segment

    def _entries(self, path: str, entry_size: int) -> int:
        opening = self._opening
        try:
            size = opening.disk.stat(path).size
        except FileNotFoundError:
            size = -1
        if size % entry_size:
            opening.unusable.append(path)
            return 0
        return size // entry_size

    def _is_clean(self) -> bool:
        """Whether the last segment still is as the clean stop in the checkpoint left it."""
        opening = self._opening
        stop = opening.checkpoint.clean_stop if opening.checkpoint else None
        last = opening.segments[-1]
        if stop is None:
            return self._never_used()
        return stop.base_offset == last.base_offset and stop.size == last.size

    def _never_used(self) -> bool:
        """Whether the log is empty and nothing in it was ever promised: there is nothing to read
        back."""
        opening = self._opening
        last = opening.segments[-1]
        return (
            opening.checkpoint is not None
            and opening.checkpoint.truncating_to < 0
            and len(opening.segments) == 1
            and last.size == 0
            and last.base_offset
            == opening.checkpoint.recovery_point
            == opening.promised
            == opening.start
        )

    def _trust(self) -> int:
        """Opens the log after a clean stop. Only the shape of the indexes is checked."""
        opening = self._opening
        checkpoint, last = opening.checkpoint, opening.segments[-1]
        if checkpoint is None:
            raise RuntimeError("there is no checkpoint with a clean stop: scan the log")
        base = last.base_offset
        stop = checkpoint.clean_stop or CleanStop(base, 0, base, 0, 0)
        for segment in opening.segments[:-1]:
            self._salvage.repair_indexes(segment)
        try:
            if (
                file_crc(opening.disk, last.index.path) != stop.index_crc
                or file_crc(opening.disk, last.time_index.path) != stop.time_index_crc
            ):
                self._salvage.rebuild_indexes(last)
            else:
                last.resume()
        except LogDamaged as error:
            opening.report.notes.append(f"{error}; recovering the log as after an unclean stop")
            return self._salvage.scan()
        opening.report.clean = True
        self._salvage.load_epochs(stop.end_offset)
        return stop.end_offset

    def _report_lost_segments(self) -> None:
        """Reports as damage the segments that the checkpoint lists and that are missing without a
        reason."""
        opening = self._opening
        if opening.checkpoint is None:
            return
        bases = opening.checkpoint.segment_bases
        first = max(opening.start, opening.checkpoint.sparse_offset)
        target = opening.checkpoint.truncating_to
        present = {segment.base_offset: segment for segment in opening.segments}
        known = {held.start_offset for held in opening.damage}
        before = None
        for base, following in pairwise(bases):
            before = present.get(base, before)
            promised = following <= opening.checkpoint.recovery_point
            cut = 0 <= target <= base
            if base in present or base in known or following <= first or cut or not promised:
                continue
            at = (before.base_offset, before.size) if before is not None else (base, 0)
            opening.damage.append(
                Damage(at[0], at[1], at[1], base, following, "the segment's file is missing")
            )

    # What follows from the segments

    def _keep_promised_offsets(self, end_offset: int) -> int:
        """Raises the log end offset to the promised offset: promised offsets are never used again,
        even if their bytes are gone."""
        opening = self._opening
        promised = opening.promised or 0
        last = opening.segments[-1]
        if end_offset < promised <= opening.start:
            # The batch that contained the log start offset was truncated.
            return promised
        if end_offset < promised:
            reason = "the file ends before the last synced offset"
            opening.damage.append(
                Damage(last.base_offset, last.size, last.size, end_offset, promised, reason)
            )
            end_offset = promised
        ragged = bool(last.damaged) and last.damaged[-1][1] >= last.size
        if ragged or (
            opening.damage and opening.damage[-1].end_offset == end_offset > last.base_offset
        ):
            last.seal()
            # The directory no longer looks as the last clean stop left it.
            opening.report.clean = False
            opening.segments.append(self._segment(end_offset, fresh=True))
            opening.scanned.append(opening.segments[-1])
        return end_offset

    def _reach_start(self, end_offset: int) -> int:
        """Begins an empty log at the log start offset if, after a loss, the log no longer reaches
        it."""
        opening = self._opening
        if end_offset >= opening.start:
            return end_offset
        for segment in opening.segments:
            opening.remove_segment(segment.base_offset)
        opening.segments = [self._segment(opening.start, fresh=True)]
        opening.scanned = list(opening.segments)
        opening.damage = []
        return opening.start

    def _finish_epochs(self, end_offset: int) -> None:
        opening = self._opening
        # An epoch may begin at the log end offset: its leader recorded it and has written nothing
        # yet.
        opening.epochs_dirty |= opening.epochs.truncate_from_end(end_offset + 1)
        opening.epochs_dirty |= opening.epochs.truncate_from_start(opening.start)

    def _producers(self, end_offset: int) -> ProducerStates:
        opening = self._opening
        bases = [segment.base_offset for segment in opening.segments]
        for offset in snapshots(opening.disk, opening.directory):
            # Keep one snapshot at each segment's base offset and one at the end. Others are left
            # over from earlier stops.
            if offset > end_offset or (offset != end_offset and offset not in bases):
                opening.unlink(offset_name(offset, SNAPSHOT))
        return self._salvage.restore_producers(end_offset)

    def _settle(self, end_offset: int) -> Checkpoint:
        """Syncs what was read, cut and found, so that the next start can rely on it. Returns the
        log's checkpoint.

        After a process was killed, its bytes, truncations and file names may all exist in memory
        only.
        """
        opening = self._opening
        if not opening.report.clean:
            for segment in opening.scanned:
                segment.file.fsync()
        if opening.names_changed or not opening.report.clean:
            opening.disk.sync_directory(opening.directory)
        old = opening.checkpoint
        start = opening.segments[0].base_offset
        new = replace(
            # Without a checkpoint it is unknown how far compaction has come.
            old
            or replace(
                first_checkpoint(start), sparse_offset=end_offset, generation=opening.now_ms
            ),
            truncating_to=-1,
            restarting_at=-1,
            damage=tuple(opening.damage),
            epochs=opening.epochs.entries,
            aborted=aborted_notes(opening.segments),
        )
        if not opening.report.clean:
            new = replace(
                new,
                recovery_point=end_offset,
                segment_bases=tuple(segment.base_offset for segment in opening.segments),
                indexed_offset=opening.scanned[0].base_offset,
                clean_stop=None,
            )
        if opening.known is not None and end_offset < opening.known.high_watermark:
            # Committed records are gone. Other records may get their offsets, and the stored high
            # watermark must not make those look committed.
            new = replace(new, generation=new.generation + 1, cut_since=-1, cut_offset=-1)
        if new != old:
            self._note(new, old)
        return new

    def _note(self, new: Checkpoint, old: Checkpoint | None) -> None:
        opening = self._opening
        data = encode_checkpoint(new)
        try:
            try:
                write_atomic(opening.disk, opening.directory, LOG_CHECKPOINT, data)
            except OSError as error:
                space = opening.resources.space
                if error.errno not in (ENOSPC, EDQUOT) or not space.give_up_ballast():
                    raise
                write_atomic(opening.disk, opening.directory, LOG_CHECKPOINT, data)
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
            self._unnoted = True
