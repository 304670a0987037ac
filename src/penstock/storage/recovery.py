"""Opening a log: after a clean stop by trust, after any other by reading.

What an unclean stop can leave behind, and what is done about it:

    half-made files           `.tmp`, `.cleaned`, `.deleted` are removed
    a swap begun              finished: the cleaned segment takes the place of those it replaces
    a truncation begun,       finished
    or a new beginning
    a tail that is torn,      cut off at the first bad batch: what was written there was never
    or full of zeros          promised to be on disk (all segments from there are read)
    bad bytes that were       quarantined. They stay in the file as evidence, are never served, and
    good before the crash     the offsets are never used again. `salvage` says how they are told
                              from a torn tail
    indexes, leader epochs,   not believed above the recovery point: rebuilt from the batches
    producers, transactions
    no readable checkpoint    everything is read; a bad place that sound batches follow is damage,
                              and only one that nothing follows is a torn tail

Opening twice changes nothing the second time. Everything read back is checked by CRC, and counts
as not yet on disk until the next flush: it may have come from the page cache of a killed process.
"""

from __future__ import annotations

from dataclasses import replace
from errno import EDQUOT, ENOSPC
from itertools import pairwise

from penstock.partition.epochs import LeaderEpochs
from penstock.partition.producers import ProducerStates
from penstock.storage.aborted_recovery import aborted_notes
from penstock.storage.checkpoints import (
    Checkpoint,
    CleanStop,
    decode_checkpoint,
    decode_partition_metadata,
    encode_checkpoint,
    encode_partition_metadata,
    read_file,
    write_atomic,
    write_unnamed,
)
from penstock.storage.config import LogConfig
from penstock.storage.damage import Damage
from penstock.storage.errors import CorruptFile, LogDamaged
from penstock.storage.files import (
    CLEANED,
    DELETED,
    LOG,
    LOG_CHECKPOINT,
    PARTITION_METADATA,
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
    partition_directory,
)
from penstock.storage.index import ENTRY_SIZE, TIME_ENTRY_SIZE
from penstock.storage.log import Log
from penstock.storage.log_state import LogParts
from penstock.storage.offset_checkpoint import LogOffsets
from penstock.storage.producer_state import file_crc, snapshots
from penstock.storage.salvage import LogResources, RecoveryReport, Salvage
from penstock.storage.scan import BadBatch, scan_headers
from penstock.storage.segment import Segment


def create_log(
    resources: LogResources,
    root: str,
    topic: str,
    partition: int,
    *,
    topic_id: str,
    config: LogConfig,
    now_ms: int,
    start_offset: int = 0,
    sync_root: bool = True,
) -> Log:
    """Make an empty log; it survives a crash once this returns and the root is synced, which is
    the caller's to do without `sync_root`: once for many logs."""
    disk = resources.disk
    directory = f"{root}/{partition_directory(topic, partition)}"
    disk.mkdir(directory)
    if sync_root:
        disk.sync_directory(root)
    segment = _Opening(resources, directory, config, now_ms).segment(start_offset, fresh=True)
    # The clock tells this log from another that lay here before and was removed by hand.
    checkpoint = encode_checkpoint(replace(_first_checkpoint(start_offset), generation=now_ms))
    # Nobody was told of the log as yet: whichever of these names a crash leaves, it is empty.
    write_unnamed(disk, directory, LOG_CHECKPOINT, checkpoint)
    write_unnamed(disk, directory, PARTITION_METADATA, encode_partition_metadata(topic_id))
    disk.sync_directory(directory)
    parts = LogParts(
        directory=directory,
        topic=topic,
        partition=partition,
        topic_id=topic_id,
        config=config,
        segments=[segment],
        log_start_offset=start_offset,
        end_offset=start_offset,
        recovery_point=start_offset,
        noted_point=start_offset,
        cleaned_offset=start_offset,
        sparse_offset=start_offset,
        epochs=LeaderEpochs(),
        producers=ProducerStates(),
        damage=[],
        dirty=[],
        names_dirty=False,
        epochs_dirty=False,
        unindexed_offset=None,
        generation=now_ms,
    )
    log = Log(parts, resources.pool, resources.cache, resources.space)
    log.changed = True
    return log


def _first_checkpoint(offset: int) -> Checkpoint:
    return Checkpoint(
        recovery_point=offset,
        indexed_offset=offset,
        log_start_offset=offset,
        cleaned_offset=offset,
        sparse_offset=offset,
    )


def open_log(
    resources: LogResources,
    directory: str,
    config: LogConfig,
    now_ms: int,
    *,
    known: LogOffsets | None = None,
    cache_is_intact: bool = False,
) -> tuple[Log, RecoveryReport]:
    """Open what is there, recovering as the module's docstring says. Blocking.

    `known` are the offsets that were noted of the log (`offset_checkpoint`). With `cache_is_intact`
    the machine holds every byte that was ever written to the log: it has not been booted since.
    """
    opening = _Opening(
        resources, directory, config, now_ms, known=known, cache_is_intact=cache_is_intact
    )
    return opening.open()


class _Opening(Salvage):
    def open(self) -> tuple[Log, RecoveryReport]:
        parsed = parse_partition_directory(self.directory.rpartition("/")[2])
        if parsed is None:
            raise CorruptFile(f"{self.directory} is not named TOPIC-PARTITION")
        topic_id = self._topic_id()
        if self._noted_offsets is not None and self._noted_offsets.topic_id != topic_id:
            self._noted_offsets = None
        self._read_checkpoint()
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
        self.segments = [self.segment(base) for base in bases]
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
            dirty=[path for segment in self.scanned for path in segment.written_paths()],
            names_dirty=self.unnoted,
            epochs_dirty=self.epochs_dirty,
            unindexed_offset=self.scanned[0].base_offset if self.scanned else None,
            generation=generation,
            restored_high_watermark=committed,
        )
        self.report.damage = list(self.damage)
        resources = self.resources
        log = Log(parts, resources.pool, resources.cache, resources.space)
        log.changed = not clean
        return log, self.report

    # The directory

    def _topic_id(self) -> str:
        data = read_file(self.disk, f"{self.directory}/{PARTITION_METADATA}")
        if data is None:
            raise CorruptFile(
                f"{self.directory} has no {PARTITION_METADATA}: its creation did not finish"
            )
        return decode_partition_metadata(data)

    def _read_checkpoint(self) -> None:
        data = read_file(self.disk, f"{self.directory}/{LOG_CHECKPOINT}")
        try:
            self.checkpoint = decode_checkpoint(data or b"")
        except CorruptFile as error:
            self.report.notes.append(f"{error}: the whole log is read instead")
        else:
            self.damage = list(self.checkpoint.damage)

    def _sweep(self) -> None:
        for name in self.disk.listdir(self.directory):
            if name.endswith((TEMPORARY, CLEANED, DELETED)):
                self._unlink(name)

    def _finish_restart(self) -> None:
        """Everything was to go; what has not, goes now."""
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
        self.report.notes.append(f"the log was to begin anew at {start}, and does")

    def _finish_swaps(self) -> None:
        for name in self.disk.listdir(self.directory):
            swap = parse_swap_name(name)
            if swap is not None:
                finish_swap(self.disk, self.directory, name, swap)
                self.report.notes.append(f"finished the cleaning of [{swap[0]}, {swap[1]})")

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
        """A deletion may have been interrupted: what it had not reached is deleted now."""
        kept = list(bases)
        while len(kept) > 1 and kept[1] <= self._start:
            self._remove_segment(kept.pop(0))
        return kept

    def _drop_beyond_hole(self, bases: list[int]) -> list[int]:
        """The first segments are lost and were never promised: so is what comes after them."""
        if self.checkpoint is None or not bases:
            return bases
        if bases[0] <= max(self._promised or 0, self._start):
            return bases
        for base in bases:
            self._remove_segment(base)
        return []

    def _finish_truncation(self, bases: list[int]) -> list[int]:
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
        self.report.notes.append(f"finished the truncation to {target}")
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
                # What is behind a quarantined range may have to go, too.
                for position, header in scan_headers(file, start, min(hole_start, end)):
                    if header.last_offset >= offset:
                        file.truncate(position)
                        end = position
                        break
                start = hole_end
                if start >= end:
                    break
            # Even if there was nothing to cut: whoever began may have been killed before this.
            file.fsync()
        except BadBatch:
            # Not sound up to there: the scan that follows decides what to make of it.
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
        stop = self.checkpoint.clean_stop if self.checkpoint else None
        last = self.segments[-1]
        if stop is None:
            return self._never_used()
        return stop.base_offset == last.base_offset and stop.size == last.size

    def _never_used(self) -> bool:
        """An empty log of which nothing was ever promised: there is nothing to read back."""
        last = self.segments[-1]
        return (
            self.checkpoint is not None
            and self.checkpoint.truncating_to < 0
            and len(self.segments) == 1
            and last.size == 0
            and last.base_offset == self.checkpoint.recovery_point == self._promised == self._start
        )

    def _trust(self) -> int:
        """After a clean stop only the shape of the indexes is looked at."""
        checkpoint, last = self.checkpoint, self.segments[-1]
        if checkpoint is None:
            raise RuntimeError("only a clean stop can be trusted")
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
            self.report.notes.append(f"{error}: the log is read as after an unclean stop")
            return self._scan()
        self.report.clean = True
        self._load_epochs(stop.end_offset)
        return stop.end_offset

    def _report_lost_segments(self) -> None:
        """Files that were noted and are not there, though nobody had a reason to remove them."""
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
                Damage(at[0], at[1], at[1], base, following, "the segment's file is gone")
            )

    # What follows from the segments

    def _keep_promised_offsets(self, end_offset: int) -> int:
        """Offsets that were promised are never used again, even if their bytes are gone."""
        promised = self._promised or 0
        last = self.segments[-1]
        if end_offset < promised <= self._start:
            # The batch that held the log start was truncated.
            return promised
        if end_offset < promised:
            reason = "the file ends before what was synced"
            self.damage.append(
                Damage(last.base_offset, last.size, last.size, end_offset, promised, reason)
            )
            end_offset = promised
        ragged = bool(last.damaged) and last.damaged[-1][1] >= last.size
        if ragged or (self.damage and self.damage[-1].end_offset == end_offset > last.base_offset):
            last.seal()
            # What the next start finds is not what the last stop left.
            self.report.clean = False
            self.segments.append(self.segment(end_offset, fresh=True))
            self.scanned.append(self.segments[-1])
        return end_offset

    def _reach_start(self, end_offset: int) -> int:
        """Records were deleted up to an offset that, after a loss, the log no longer reaches."""
        if end_offset >= self._start:
            return end_offset
        for segment in self.segments:
            self._remove_segment(segment.base_offset)
        self.segments = [self.segment(self._start, fresh=True)]
        self.scanned = list(self.segments)
        self.damage = []
        return self._start

    def _finish_epochs(self, end_offset: int) -> None:
        # An epoch may begin at the end: its leader noted it and has written nothing yet.
        self.epochs_dirty |= self.epochs.truncate_from_end(end_offset + 1)
        self.epochs_dirty |= self.epochs.truncate_from_start(self._start)

    def _producers(self, end_offset: int) -> ProducerStates:
        bases = [segment.base_offset for segment in self.segments]
        for offset in snapshots(self.disk, self.directory):
            # One at each segment's base and one at the end: others are left from earlier stops.
            if offset > end_offset or (offset != end_offset and offset not in bases):
                self._unlink(offset_name(offset, SNAPSHOT))
        return self._restore_producers(end_offset)

    def _settle(self, end_offset: int) -> int:
        """Put on disk what was read, cut and found, so that the next start can rely on it. Returns
        the log's generation.

        After a kill, bytes, cuts and names alike may be in memory only, whoever made them.
        """
        if not self.report.clean:
            for segment in self.scanned:
                segment.file.fsync()
        if self.names_changed or not self.report.clean:
            self.disk.sync_directory(self.directory)
        old = self.checkpoint
        start = self.segments[0].base_offset
        new = replace(
            # Without notes nobody knows how far compaction has come.
            old
            or replace(_first_checkpoint(start), sparse_offset=end_offset, generation=self.now_ms),
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
            # Records that had been committed are gone. Others may get their offsets, and must not
            # be taken for committed by what was noted before.
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
            # A log on a full disk can be read; what is noted there is true still, if out of date.
            # Only a cut begun must be taken back before anything is appended, and a cut noted.
            unfinished = (
                old is None
                or max(old.truncating_to, old.restarting_at) >= 0
                or old.generation != new.generation
            )
            if error.errno not in (ENOSPC, EDQUOT) or unfinished:
                raise
            self.unnoted = True
