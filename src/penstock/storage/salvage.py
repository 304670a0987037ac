"""Reads a log back after an unclean stop; distinguishes sound batches, torn tails and damage.

This module works on segments as they are on disk. `recovery` decides which segments to read and
builds the log from the result.

Bad bytes have one of two causes. A crash leaves a *torn tail*: what was written there was never
promised to be on disk, so it is cut off and its offsets are used again. The disk causes *damage*:
the bytes were good once. Damage is quarantined and reported, and its offsets are never used again.
A replica with damage proves nothing about its log, and fetches the range again from another
replica.

Taking damage for a torn tail silently loses acknowledged records, and everything after them. Taking
a torn tail for damage leaves a hole in the log that no replica can fill. The two are distinguished
by which bytes are known to have been safe before the crash:

1. Everything below the promised offset was on disk, so bad bytes there are damage. The promised
   offset is the recovery point in the checkpoint, which moves when files are created or removed, or
   the synced offset that the broker stores every few seconds (`offset_checkpoint`), whichever is
   higher.
2. As long as the machine keeps running, the page cache holds every write, synced or not. A process
   that was killed leaves all its batches whole, except the one it was writing, which ends the file.
   So with an intact page cache, bad bytes are a torn tail only if they are an incomplete batch that
   nothing follows. A whole batch with a wrong CRC is damage, even at the very end. So are bad bytes
   that sound batches follow, in the same segment or a later one. `cache_is_intact` means: the same
   boot, and no failed fsync since (`broker.repair.durability_proof`).
3. After a power loss, neither rule applies above the promised offset. The disk may have written a
   later page and not an earlier one, so sound batches after bad bytes prove nothing: the bad bytes
   are a torn tail. Bit rot in the few seconds before a power loss cannot be distinguished from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.partition.epochs import UNDEFINED_EPOCH, LeaderEpochs
from penstock.partition.producers import ProducerStates
from penstock.partition.retention import RELATIVE_OFFSET_MAX
from penstock.records.batch import CONTROL, HEADER_SIZE, BatchHeader, read_header
from penstock.storage.aborted_recovery import AbortedOpening
from penstock.storage.damage import Damage
from penstock.storage.opening import LogOpening
from penstock.storage.producer_snapshots import restore_producers
from penstock.storage.scan import BadBatch, find_batch, scan_batches
from penstock.storage.segment import Segment
from penstock.storage.torn_tail import CrashEvidence, fits, is_whole_batch, skips_promised


class Salvage:
    """Reads the segments of one log back, and what is derived from their batches."""

    def __init__(self, opening: LogOpening) -> None:
        self._opening = opening
        self._scanned_epoch = -1
        self._marked: set[int] = set()
        """Base offsets of the segments in which the scan found control batches."""

    def repair_indexes(self, segment: Segment) -> None:
        """Rebuilds the indexes of a segment that is not scanned, if they are visibly wrong."""
        opening = self._opening
        index, time_index = segment.index, segment.time_index
        last = index.last() if index.spilled > 0 else None
        if segment.size > 0 and (
            index.path in opening.unusable
            or time_index.path in opening.unusable
            or not time_index.spilled
            or (last is not None and last[1] >= segment.size)
        ):
            self.rebuild_indexes(segment)

    def rebuild_indexes(self, segment: Segment) -> None:
        """Rebuilds the indexes of one segment from its batches, keeping every byte of the
        segment."""
        opening = self._opening
        opening.report.notes.append(f"rebuilt the indexes of {segment.path}")
        segment.files.hold_indexes()
        self._scan_segment(segment, torn=lambda *_: False, epochs=False)
        segment.seal_durably()
        opening.names_changed = True

    # Scanning

    def scan(self) -> int:
        """Scans the segments from the recovery point on. Returns the log end offset."""
        opening = self._opening
        recovery_point = opening.recovery_point
        first = 0
        if recovery_point is not None:
            for number, segment in enumerate(opening.segments):
                if segment.base_offset <= min(recovery_point, opening.indexed_offset):
                    first = number
        for segment in opening.segments[:first]:
            self.repair_indexes(segment)
        self.load_epochs(recovery_point if recovery_point is not None else 0)
        end_offset = opening.segments[first].base_offset
        for number in range(first, len(opening.segments)):
            segment = opening.segments[number]
            if number > first and self._is_hole(end_offset, segment.base_offset):
                opening.report.notes.append(
                    f"offset {end_offset} is missing: the log ends there, later segments are cut"
                )
                self._cut_after(number - 1)
                break
            self._report_gap(number, end_offset)
            end_offset = max(end_offset, segment.base_offset)
            end_offset, cut = self._scan_segment(segment, torn=self._torn(number), epochs=True)
            opening.scanned.append(segment)
            if cut:
                self._cut_after(number)
                break
        for segment in opening.scanned[:-1]:
            segment.seal()
        return end_offset

    def _is_hole(self, end_offset: int, next_base: int) -> bool:
        """Whether offsets that were never promised are missing between two segments.

        Below the promised offset and the log start offset, gaps come from compaction, deletion or
        damage. With an intact page cache, gaps above it are damage too.
        """
        opening = self._opening
        promised = opening.promised
        if promised is None or opening.cache_is_intact:
            return False
        reached = max(end_offset, promised, opening.start)
        return reached < next_base < reached + RELATIVE_OFFSET_MAX // 2

    def _is_lost(self, end_offset: int, next_base: int) -> bool:
        """Whether offsets missing between two segments are a loss that a crash does not explain."""
        opening = self._opening
        if opening.checkpoint is None:
            # Compaction may have left the gap, and it is unknown how far compaction has come.
            return end_offset < next_base and not opening.config.compact
        first = max(end_offset, opening.checkpoint.recovery_point, opening.start)
        return (
            first < next_base < first + RELATIVE_OFFSET_MAX // 2
            and next_base > opening.checkpoint.sparse_offset
        )

    def _report_gap(self, number: int, end_offset: int) -> None:
        """Reports damage if a segment does not begin where the one before it ended, unless
        compaction explains the gap."""
        opening = self._opening
        base = opening.segments[number].base_offset
        if number and self._is_lost(end_offset, base):
            before = opening.segments[number - 1]
            reason = "the segment ends before the next one begins"
            opening.damage.append(
                Damage(before.base_offset, before.size, before.size, end_offset, base, reason)
            )

    def _torn(self, number: int) -> Callable[[int, bool, bool], bool]:
        """Returns a function that decides whether bad bytes, found where offset `expected` should
        begin, are a torn tail rather than damage. The module docstring gives the reasons."""
        opening = self._opening
        evidence = CrashEvidence(opening.promised, opening.cache_is_intact)
        is_last = number == len(opening.segments) - 1

        def is_torn(expected: int, is_whole: bool, is_followed: bool) -> bool:
            return evidence.is_torn(
                expected, is_whole=is_whole, ends_the_log=is_last and not is_followed
            )

        return is_torn

    def _cut_after(self, number: int) -> None:
        opening = self._opening
        for segment in opening.segments[number + 1 :]:
            opening.report.cut_bytes += segment.size
            opening.remove_segment(segment.base_offset)
        del opening.segments[number + 1 :]

    def _scan_segment(
        self, segment: Segment, *, torn: Callable[[int, bool, bool], bool], epochs: bool
    ) -> tuple[int, bool]:
        """Reads a whole segment and derives everything from it. Returns its end offset and whether
        it was cut."""
        opening = self._opening
        # Damage without bytes cannot be found again by reading: the bytes are not in the file.
        opening.damage = [
            held
            for held in opening.damage
            if held.segment_base != segment.base_offset or held.start_position == held.end_position
        ]
        kept = list(opening.damage)
        liars: list[int] = []
        while True:
            segment.reset()
            segment.file.drop_cache()
            opening.damage = list(kept)
            result = self._scan_once(segment, torn, epochs, liars)
            if result is not None:
                opening.report.scanned_bytes += segment.size
                return result

    def _scan_once(
        self,
        segment: Segment,
        torn: Callable[[int, bool, bool], bool],
        epochs: bool,
        liars: list[int],
    ) -> tuple[int, bool] | None:
        """Makes one pass over a segment. Returns None if a batch has a false offset or epoch; its
        position is then added to `liars`, and the caller scans again."""
        limit = self._limit(segment)
        position, expected = 0, segment.base_offset
        epoch = self._scanned_epoch if epochs else -1
        last = (-1, expected, epoch)
        holes: list[tuple[int, int]] = []
        while position < segment.size:
            run_end = min([liar for liar in liars if liar >= position], default=segment.size)
            try:
                for position, header, _ in scan_batches(  # noqa: B020 - resumes where it stopped
                    segment.file,
                    position,
                    run_end,
                    offset_min=expected,
                    offset_end=limit,
                    epoch_min=epoch,
                ):
                    self._check_epoch(position, header, epochs)
                    self._check_jump(position, header, expected)
                    segment.note(position, header.size, header.last_offset, header.max_timestamp)
                    last = (position, expected, epoch)
                    expected, epoch = header.next_offset, header.leader_epoch
                    self._note_epoch(header, epochs)
                    if header.attributes & CONTROL:
                        self._marked.add(segment.base_offset)
                if run_end == segment.size:
                    break
                bad = BadBatch(run_end, "its offset or epoch does not fit the next batch")
            except BadBatch as error:
                bad = error
            if bad.header is not None and fits(bad.header, last[1], last[2]):
                # This batch continues from the batch before the last one, so the last one is wrong.
                liars.append(last[0])
                return None
            after = self._after(segment, bad.position, expected, limit)
            is_whole = is_whole_batch(segment.file, bad.position, segment.size)
            if torn(expected, is_whole, after is not None):
                self._cut_tail(segment, bad)
                segment.damaged, segment.verified = tuple(holes), segment.size
                return expected, True
            position = segment.size if after is None else after[0]
            holes.append((bad.position, position))
            next_offset = limit if after is None else after[1]
            expected = self._quarantine(segment, bad, position, expected, next_offset)
        segment.damaged = tuple(holes)
        # If epochs were not compared here, the first read compares them.
        segment.verified = segment.size if epochs else 0
        if epochs:
            self._scanned_epoch = epoch
        return expected, False

    def _check_epoch(self, position: int, header: BatchHeader, epochs: bool) -> None:
        """Raises `BadBatch` if another epoch wrote this offset. The CRC does not cover the epoch,
        but below the recovery point the epochs are known."""
        opening = self._opening
        if epochs and header.last_offset < (opening.recovery_point or 0):
            noted = opening.epochs.epoch_at(header.last_offset)
            if noted not in (UNDEFINED_EPOCH, header.leader_epoch):
                raise BadBatch(
                    position,
                    f"the batch has leader epoch {header.leader_epoch}, but leader epoch {noted} "
                    "wrote this offset",
                )

    def _check_jump(self, position: int, header: BatchHeader, expected: int) -> None:
        """Raises `BadBatch` if the batch jumps over a promised offset."""
        opening = self._opening
        if any(held.start_offset <= expected < held.end_offset for held in opening.damage):
            return  # the gap is already reported as damage
        if skips_promised(opening.checkpoint, opening.promised, expected, header.base_offset):
            raise BadBatch(
                position,
                f"the batch begins at offset {header.base_offset}, but offset {expected} was "
                "synced before and is missing",
            )

    def _note_epoch(self, header: BatchHeader, epochs: bool) -> None:
        opening = self._opening
        # Epochs below the recovery point are already known, and compaction may have removed the
        # batch with which an epoch began.
        if epochs and header.base_offset >= (opening.recovery_point or 0):
            opening.epochs_dirty |= opening.epochs.assign(header.leader_epoch, header.base_offset)

    def _limit(self, segment: Segment) -> int:
        """Returns an offset that is above every offset the segment can hold."""
        later = [
            held.base_offset
            for held in self._opening.segments
            if held.base_offset > segment.base_offset
        ]
        return min([*later, segment.base_offset + RELATIVE_OFFSET_MAX + 1])

    def _after(
        self, segment: Segment, position: int, expected: int, limit: int
    ) -> tuple[int, int] | None:
        """Returns the position and offset of the first sound batch after bad bytes."""
        file = segment.file
        found = find_batch(file, position + 1, segment.size, expected, limit)
        if found is None:
            return None
        data = file.pread(HEADER_SIZE, found)
        return found, int.from_bytes(data[:8], "big", signed=True)

    def _claimed_end(self, segment: Segment, position: int, expected: int) -> int:
        """Returns the offset after a bad batch at the end of the log, as far as its header is
        plausible. Skipping a few offsets is better than reusing one that a client has seen."""
        header = read_header(segment.file.pread(HEADER_SIZE, position).ljust(HEADER_SIZE, b"\0"))
        counts = (header.last_offset_delta + 1, header.record_count)
        # An uncompressed record takes at least seven bytes.
        return expected + max([1, *(each for each in counts if each <= segment.size - position)])

    def _cut_tail(self, segment: Segment, bad: BadBatch) -> None:
        opening = self._opening
        opening.report.cut_bytes += segment.size - bad.position
        opening.report.notes.append(
            f"cut {segment.size - bad.position} bytes off {segment.path} {bad}"
        )
        segment.file.truncate(bad.position)
        # Sync before anything is written over it, or the old bytes could reappear after a crash.
        segment.file.fsync()
        segment.size = bad.position

    def _quarantine(
        self, segment: Segment, bad: BadBatch, end: int, expected: int, next_offset: int
    ) -> int:
        """Records bad bytes as damage. Returns the offset after them."""
        opening = self._opening
        noted = opening.checkpoint.damage if opening.checkpoint is not None else ()
        start = (segment.base_offset, bad.position, expected)
        before = [
            held
            for held in noted
            if (held.segment_base, held.start_position, held.start_offset) == start
        ]
        if segment is opening.segments[-1] and end == segment.size and before:
            next_offset = before[0].end_offset
        elif segment is opening.segments[-1] and end == segment.size:
            claimed = self._claimed_end(segment, bad.position, expected)
            next_offset = max(claimed, opening.promised or 0)
        found = Damage(segment.base_offset, bad.position, end, expected, next_offset, bad.reason)
        # Keep the reason that was stored first: the same damage may look different later.
        same = (held for held in noted if replace(held, reason="") == replace(found, reason=""))
        opening.damage.append(next(same, found))
        return next_offset

    def restore_producers(self, end_offset: int) -> ProducerStates:
        """Restores the producer state and the aborted transactions of the segments."""
        opening = self._opening
        producers = ProducerStates()
        aborted = AbortedOpening(
            opening.disk,
            opening.directory,
            opening.segments,
            opening.scanned,
            marked=self._marked,
            noted=dict(opening.checkpoint.aborted) if opening.checkpoint else {},
        )
        doubtful = aborted.load(opening.aborted_files)
        log = (opening.disk, opening.directory, opening.segments, end_offset)
        restore_producers(producers, *log)
        if doubtful:
            # Use a separate state: a replay from further back sees fewer of the batches that
            # compaction has thinned out.
            restore_producers(ProducerStates(), *log, doubtful)
        aborted.store(doubtful)
        opening.names_changed |= aborted.names_changed
        return producers

    def load_epochs(self, end_offset: int) -> None:
        """Loads the epochs below `end_offset` from the checkpoint, or from the batches if there is
        none."""
        opening = self._opening
        if opening.checkpoint is not None:
            opening.epochs = LeaderEpochs(opening.checkpoint.epochs)
        else:
            for segment in opening.segments:
                if segment.base_offset < end_offset:
                    for _, header in segment.headers(0):
                        opening.epochs.assign(header.leader_epoch, header.base_offset)
        opening.epochs_dirty |= opening.epochs.truncate_from_end(end_offset + 1)
