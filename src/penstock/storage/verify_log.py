"""Verifies one log: its segments, and whether its small files agree with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.partition.retention import RELATIVE_OFFSET_MAX
from penstock.ports import Disk
from penstock.storage.checkpoints import Checkpoint, CleanStop
from penstock.storage.errors import CorruptFile
from penstock.storage.files import (
    INDEX,
    LOG,
    LOG_CHECKPOINT,
    PARTITION_METADATA,
    SWAP,
    TIME_INDEX,
    offset_name,
    parse_partition_directory,
)
from penstock.storage.findings import RESTORE, Findings, LogReport
from penstock.storage.inspect import (
    OFFSET_END,
    BadRange,
    Content,
    FileEntry,
    read_checkpoint,
    read_topic_id,
    segment_end,
)
from penstock.storage.offset_checkpoint import LogOffsets
from penstock.storage.producer_snapshots import file_crc
from penstock.storage.torn_tail import CrashEvidence, promised_offset, skips_promised
from penstock.storage.verify_epochs import EpochsVerifier
from penstock.storage.verify_producers import TransactionsVerifier, check_snapshots
from penstock.storage.verify_segment import SegmentScan, SegmentVerifier


def is_segment_data(entry: FileEntry) -> bool:
    return entry.kind.content == Content.BATCHES and entry.kind.leftover is None


@dataclass(slots=True)
class LogVerifier:
    """Verifies one log; `run` returns the report."""

    disk: Disk
    directory: str
    entries: list[FileEntry]
    deep: bool
    advance: Callable[[int], None]
    noted: LogOffsets | None = None
    """The offsets that the broker stored for this log, in `penstock-offsets`."""
    cache_is_intact: bool = False
    """Whether the page cache still holds everything that was written to the log."""
    findings: Findings = field(default_factory=Findings)
    checkpoint: Checkpoint | None = None
    scans: list[SegmentScan] = field(default_factory=list)
    transactions: TransactionsVerifier | None = None
    cut_offset: int = OFFSET_END
    """Where recovery will cut off a torn tail."""
    gone: bool = False
    """A segment was deleted in the meantime, so the log starts at a higher offset than the
    checkpoint has."""

    def run(self) -> LogReport:
        bases = [entry.kind.base_offset for entry in self.entries if is_segment_data(entry)]
        topic_id = self._topic_id()
        self.checkpoint = self._read_checkpoint()
        if self.noted is not None and self.noted.topic_id != topic_id:
            self.noted = None
        stop = self._clean_stop(bases)
        noted = dict(self.checkpoint.aborted) if self.checkpoint else {}
        self.transactions = TransactionsVerifier(self.disk, self.findings, noted)
        for number in range(len(bases)):
            self._segment(bases, number, clean=stop is not None)
        end_offset = self._end_offset()
        self._check_damage()
        self._check_gaps()
        epochs = EpochsVerifier(
            self.disk, self.directory, self.findings, self.checkpoint, self.scans, self.cut_offset
        )
        epochs.check_order()
        if end_offset is not None:
            epochs.check_files(end_offset, clean=stop is not None)
        if end_offset is None:
            self.findings.error(
                "no-segment", self.directory, f"the directory has no .log file; {RESTORE}"
            )
        else:
            self._check_promises(end_offset, stop)
            check_snapshots(
                self.disk,
                self.directory,
                self.entries,
                self.findings,
                end_offset=end_offset,
                recovery_point=self.checkpoint.recovery_point if self.checkpoint else 0,
            )
        self._check_names(bases)
        return self._report(topic_id, end_offset, stop is not None)

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    # The small files

    def _topic_id(self) -> str | None:
        path = self._path(PARTITION_METADATA)
        try:
            topic_id = read_topic_id(self.disk, path)
        except CorruptFile as error:
            self.findings.error(
                "bad-metadata", path, f"{error}; the broker will not open this log: {RESTORE}"
            )
            return None
        if topic_id is None:
            self.findings.error(
                "no-metadata",
                path,
                "it is missing, and the broker does not open a log without its topic id: if the "
                "log's creation was interrupted, remove the directory; otherwise restore the file",
            )
        return topic_id

    def _read_checkpoint(self) -> Checkpoint | None:
        path = self._path(LOG_CHECKPOINT)
        try:
            checkpoint = read_checkpoint(self.disk, path)
        except CorruptFile as error:
            self.findings.error(
                "bad-checkpoint",
                path,
                f"{error}; the next start reads the whole log, and the log then starts at its "
                "first segment, even if records there had been deleted",
            )
            return None
        if checkpoint is None:
            self.findings.warning(
                "no-checkpoint",
                path,
                "it is missing, as in a log that Kafka wrote: the next start reads the whole log, "
                "and treats bad bytes at the end of the log as a torn tail, others as damage",
            )
        return checkpoint

    def _clean_stop(self, bases: list[int]) -> CleanStop | None:
        """Returns the clean stop in the checkpoint, if it still matches the log."""
        stop = self.checkpoint.clean_stop if self.checkpoint else None
        if stop is None or not bases or stop.base_offset != bases[-1]:
            return None
        size = self.disk.stat(self._path(offset_name(stop.base_offset, LOG))).size
        return stop if size == stop.size else None

    # Segments

    def _segment(self, bases: list[int], number: int, *, clean: bool) -> None:
        base = bases[number]
        last = number == len(bases) - 1
        noted = self.checkpoint
        # Without a clean stop, the next start trusts the indexes of segments below both the
        # recovery point and the indexed offset, and rebuilds all others.
        on_disk = min(noted.recovery_point, noted.indexed_offset) if noted else -1
        trusted = clean or (not last and bases[number + 1] <= on_disk)
        if last and noted is not None and noted.clean_stop is not None:
            trusted = clean and not self._changed_indexes(noted.clean_stop)
        verifier = SegmentVerifier(
            self.disk,
            self.directory,
            base,
            self.findings,
            offset_end=segment_end(base, None if last else bases[number + 1]),
            deep=self.deep,
            indexes_trusted=trusted,
            advance=self.advance,
            skips_synced=self._skips_synced,
            transactions=self.transactions,
            transactions_believed=clean or (not last and bases[number + 1] <= on_disk),
        )
        path = self._path(offset_name(base, LOG))
        try:
            scan = verifier.run()
        except FileNotFoundError as error:
            self.findings.info(
                "gone", path, f"{error.filename or path} was deleted while it was being read"
            )
            self.gone = True
            return
        except OSError as error:
            self.findings.error(
                "unreadable",
                path,
                f"the segment could not be read ({error.strerror or error}): check its "
                "permissions and the disk",
            )
            scan = SegmentScan(base, path, end_offset=base if last else bases[number + 1])
        self._judge(scan, last=last)
        self.scans.append(scan)

    @property
    def _promised(self) -> int | None:
        return promised_offset(self.checkpoint, self.noted)

    def _judge(self, scan: SegmentScan, *, last: bool) -> None:
        """Reports bad bytes as a torn tail or as damage, as recovery will decide."""
        evidence = CrashEvidence(self._promised, self.cache_is_intact)
        for bad in scan.bad:
            if self._is_quarantined(scan, bad):
                continue
            ends_the_log = last and bad.end == scan.size
            expected = bad.expected
            if scan.skipped is not None and scan.skipped[0] < bad.position:
                expected = scan.skipped[1]
            if evidence.is_torn(expected, is_whole=bad.is_whole, ends_the_log=ends_the_log):
                further = "" if last else ", with all segments after it"
                self.findings.warning(
                    "torn-tail",
                    scan.path,
                    f"torn tail, {scan.size - bad.position} bytes: recovery will cut it "
                    f"off{further}. It begins at offset {bad.expected}, which was never "
                    f"acknowledged as synced ({bad.reason})",
                    bad.position,
                )
                self.cut_offset = min(self.cut_offset, bad.expected)
                return
            self.findings.error(
                "damage",
                scan.path,
                f"{bad.end - bad.position} bytes from offset {bad.expected} on are damaged "
                f"({bad.reason}), although they had been written completely; {RESTORE}",
                bad.position,
            )

    def _skips_synced(self, expected: int, base_offset: int) -> bool:
        return not self._explained(expected, expected + 1) and skips_promised(
            self.checkpoint, self._promised, expected, base_offset
        )

    def _is_quarantined(self, scan: SegmentScan, bad: BadRange) -> bool:
        return any(
            held.segment_base == scan.base_offset
            and held.start_position <= bad.position
            and bad.end <= held.end_position
            for held in (self.checkpoint.damage if self.checkpoint else ())
        )

    def _end_offset(self) -> int | None:
        return max((scan.end_offset for scan in self.scans), default=None)

    # What the log says about itself

    def _check_damage(self) -> None:
        for held in self.checkpoint.damage if self.checkpoint else ():
            self.findings.error(
                "quarantined",
                self._path(offset_name(held.segment_base, LOG)),
                f"offsets {held.start_offset} to {held.end_offset - 1} were found damaged earlier "
                f"({held.reason}) and are not served; {RESTORE}",
                held.start_position,
            )

    def _explained(self, start: int, end: int) -> bool:
        """Whether quarantined ranges explain missing offsets."""
        damage = self.checkpoint.damage if self.checkpoint else ()
        return any(held.start_offset < end and start < held.end_offset for held in damage)

    def _check_gaps(self) -> None:
        missing = sum(scan.gap_offsets for scan in self.scans)
        log_start = self.checkpoint.log_start_offset if self.checkpoint else 0
        for before, after in zip(self.scans, self.scans[1:], strict=False):
            torn = bool(before.bad) and before.bad[-1].end == before.size
            start, end = max(before.end_offset, log_start), after.base_offset
            if start >= end or torn:
                continue
            if self._cleaned(start, end):
                missing += end - start
            elif not self._explained(start, end):
                self._lost(start, after)
        if missing:
            self.findings.info(
                "gaps",
                self.directory,
                f"{missing} offsets are in no batch: compaction leaves such gaps",
            )

    def _cleaned(self, start: int, end: int) -> bool:
        """Whether compaction explains a gap between two segments: compaction of this log, or of the
        leader's log, after which the leader sent an offset too far ahead for one segment."""
        sparse = self.checkpoint.sparse_offset if self.checkpoint else 0
        return end <= sparse or end - start >= RELATIVE_OFFSET_MAX // 2

    def _lost(self, start: int, after: SegmentScan) -> None:
        what = f"offsets {start} to {after.base_offset - 1} are in no segment"
        if self.checkpoint is None:
            self.findings.warning(
                "segment-gap",
                after.path,
                f"{what}: compaction leaves such gaps; if this topic is not compacted, a file is "
                f"missing: {RESTORE}",
            )
        elif start >= (self._promised or 0) and not self.cache_is_intact:
            self.findings.warning(
                "segment-gap",
                after.path,
                f"{what}: they were never acknowledged as synced, and the next start cuts the log "
                "off there",
            )
        else:
            self.findings.error("segment-gap", after.path, f"{what}: a file is missing; {RESTORE}")

    def _check_promises(self, end_offset: int, stop: CleanStop | None) -> None:
        checkpoint = self.checkpoint
        if checkpoint is None:
            return
        path = self._path(LOG_CHECKPOINT)
        if checkpoint.restarting_at >= 0:
            self.findings.warning(
                "restarting",
                path,
                "the log was being emptied, to start again at offset "
                f"{checkpoint.restarting_at}; the next start finishes it",
            )
            return
        first = self.scans[0].base_offset
        start, point = checkpoint.log_start_offset, self._promised or 0
        # Deleted records need not exist: compaction may have removed them first.
        reached = max(start, end_offset)
        if point > reached and not self._explained(reached, point):
            self.findings.error(
                "short",
                self.scans[-1].path,
                f"the log ends at {reached}, although everything below {point} had been synced; "
                f"{RESTORE}",
                self.scans[-1].size,
            )
        if start < first and not self.gone and not self._explained(start, first):
            self.findings.error(
                "segment-gap",
                self.directory,
                f"the log starts at {start}, but its first segment at {first}: a file is missing; "
                f"{RESTORE}",
            )
        if start > max(end_offset, point):
            self.findings.warning(
                "late-start",
                path,
                f"records below {start} were deleted, and those from {end_offset} on were lost "
                f"before they were synced; the next start creates an empty log at {start}",
            )
        if checkpoint.truncating_to >= 0:
            self.findings.warning(
                "truncating",
                path,
                f"a truncation to offset {checkpoint.truncating_to} was interrupted; the next "
                "start finishes it",
            )
        if stop is None:
            self.findings.info(
                "not-stopped",
                path,
                "the log is in use or was not stopped cleanly: the next start reads it from "
                f"offset {checkpoint.recovery_point} on",
            )
        else:
            self._check_clean_stop(stop, reached)

    def _check_clean_stop(self, stop: CleanStop, end_offset: int) -> None:
        path = self._path(LOG_CHECKPOINT)
        if stop.end_offset != end_offset and not self._explained(end_offset, stop.end_offset):
            self.findings.error(
                "wrong-end",
                path,
                f"at the last clean stop the log ended at {stop.end_offset}, but its batches end "
                f"at {end_offset}; {RESTORE}",
            )
        for path in self._changed_indexes(stop):
            self.findings.warning(
                "index-changed",
                path,
                "it has changed since the last clean stop; the next start rebuilds it",
            )

    def _changed_indexes(self, stop: CleanStop) -> list[str]:
        noted = ((INDEX, stop.index_crc), (TIME_INDEX, stop.time_index_crc))
        paths = [(self._path(offset_name(stop.base_offset, suffix)), crc) for suffix, crc in noted]
        return [path for path, crc in paths if file_crc(self.disk, path) != crc]

    def _check_names(self, bases: list[int]) -> None:
        for entry in self.entries:
            kind, path = entry.kind, self._path(entry.name)
            if kind.leftover is not None:
                does = "finishes it" if kind.leftover == SWAP else "removes it"
                self.findings.info(
                    "leftover", path, f"left by an interrupted operation; the next start {does}"
                )
            elif kind.content is None:
                self.findings.info("unknown", path, "not a file of a log; the broker ignores it")
            elif (
                kind.content in (Content.OFFSET_INDEX, Content.TIME_INDEX, Content.TRANSACTIONS)
                and kind.base_offset not in bases
            ):
                self.findings.warning(
                    "orphan", path, "an index without its .log file; the next start removes it"
                )

    def _report(self, topic_id: str | None, end_offset: int | None, clean: bool) -> LogReport:
        scans = self.scans
        name = parse_partition_directory(self.directory.rstrip("/").rpartition("/")[2])
        times = [scan.first_timestamp for scan in scans if scan.first_timestamp is not None]
        latest = max((scan.max_timestamp for scan in scans), default=-1)
        start = self.checkpoint.log_start_offset if self.checkpoint else None
        if start is None and scans:
            start = scans[0].base_offset
        codecs: Counter[str] = Counter()
        for scan in scans:
            codecs += scan.codecs
        return LogReport(
            directory=self.directory,
            topic=name[0] if name else None,
            partition=name[1] if name else None,
            topic_id=topic_id,
            segments=len(scans),
            batches=sum(scan.batches for scan in scans),
            records=sum(scan.records for scan in scans),
            size_bytes=sum(scan.size for scan in scans),
            log_start_offset=start,
            end_offset=end_offset,
            recovery_point=self.checkpoint.recovery_point if self.checkpoint else None,
            first_timestamp=min(times, default=None),
            last_timestamp=latest if latest >= 0 else None,
            codecs=dict(codecs),
            clean_stop=clean,
            findings=self.findings.all(),
        )
