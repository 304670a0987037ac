"""Reads a log again while it is in use, to find bytes that went bad after they were written.

    cursor = ScrubCursor(log)
    piece = cursor.next_piece(bytes_max)    on the loop: what to check next
    piece.run()                             on any thread: reads from the disk, checks CRCs
    damage = piece.damage(log)              on the loop: what is bad, for `Log.quarantine`

The thread opens its own file. If the log has lost data in the meantime (retention, truncation,
compaction), the piece is stale and its result is ignored. For a sealed segment the page cache is
dropped first; otherwise the bytes would not be read from the disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.partition.retention import RELATIVE_OFFSET_MAX
from penstock.ports import Disk, File
from penstock.records.batch import HEADER_SIZE, read_header
from penstock.storage.damage import Damage
from penstock.storage.errors import disk_trouble
from penstock.storage.log import Log
from penstock.storage.scan import BadBatch, find_batch, scan_batches
from penstock.storage.segment import Segment

_WINDOW_BYTES: Final = 4 << 20


class Digest(NamedTuple):
    """What must be equal for a batch on two replicas, and where it is stored here."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int
    position: int
    end_position: int


@dataclass(slots=True)
class ScrubPiece:
    """Some batches of one segment, within [start, end) of its file."""

    disk: Disk
    segment: Segment
    truncations: int
    is_sealed: bool
    start: int
    end: int
    bytes_max: int
    """The piece ends after this many bytes. At least one batch is read, however large."""
    offset_min: int
    offset_end: int
    position: int = -1
    """Where the check ended."""
    digests: list[Digest] = field(default_factory=list)
    bad: Damage | None = None

    def run(self) -> None:
        """Reads and checks the piece. Blocking. Raises `StorageError` if the disk cannot be read at
        all."""
        self.position = self.start
        with disk_trouble(f"{self.segment.path} could not be checked"):
            file = self.disk.open(self.segment.path)
            try:
                if self.is_sealed and self.start == 0:
                    file.drop_cache()
                self._read(file)
            finally:
                file.close()

    def _read(self, file: File) -> None:
        expected = self.offset_min
        try:
            for position, header, _ in scan_batches(
                file, self.start, self.end, offset_min=expected, offset_end=self.offset_end
            ):
                expected, self.position = header.next_offset, position + header.size
                self.digests.append(
                    Digest(
                        header.base_offset,
                        expected,
                        header.leader_epoch,
                        header.crc,
                        position,
                        self.position,
                    )
                )
                if self.position - self.start >= self.bytes_max:
                    return
        except BadBatch as bad:
            end, next_offset = self._after(file, bad.position, expected)
            self.bad = Damage(
                self.segment.base_offset, bad.position, end, expected, next_offset, bad.reason
            )
            self.position = end

    def _after(self, file: File, position: int, expected: int) -> tuple[int, int]:
        """Returns the position and offset of the first sound batch after bad bytes, or the end."""
        window = _WINDOW_BYTES
        while True:
            end = min(position + 1 + window, self.end)
            found = find_batch(file, position + 1, end, expected, self.offset_end)
            if found is not None:
                return found, read_header(file.pread(HEADER_SIZE, found)).base_offset
            if end == self.end:
                return end, self.offset_end
            window *= 4

    def damage(self, log: Log, found: Damage | None = None) -> Damage | None:
        """Returns the damage that was found, or `found` if given. None if the log has changed since
        it was read."""
        bad = self.bad if found is None else found
        same = log.truncations == self.truncations and self.segment in log.segments
        if bad is None or not same or log.failure is not None:
            return None
        return bad


class ScrubCursor:
    """Walks through one log once, from its first segment to its end."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._segment: Segment | None = None
        self._after_base = -1
        self._position = 0
        self._offset = 0
        self._truncations = log.truncations
        self._piece: ScrubPiece | None = None

    def next_piece(self, bytes_max: int) -> ScrubPiece | None:
        """Returns the next piece to check; None at the end of the log."""
        log = self._log
        self._advance()
        if log.failure is not None or log.truncations != self._truncations:
            return None
        while True:
            segment = self._segment
            if segment is None or segment not in log.segments or self._is_done(segment):
                if not self._enter_next():
                    return None
                continue
            end = segment.size
            for hole_start, hole_end in segment.damaged:
                if self._position >= hole_start:
                    self._position = max(self._position, hole_end)
                else:
                    end = min(end, hole_start)
                    break
            if self._position < end:
                break
        self._piece = ScrubPiece(
            log.pool.disk,
            segment,
            log.truncations,
            segment is not log.active,
            self._position,
            end,
            bytes_max,
            self._offset,
            self._offset_end(segment),
        )
        return self._piece

    def _advance(self) -> None:
        piece, self._piece = self._piece, None
        if piece is not None and piece.position >= 0:
            self._position = piece.position
            if piece.bad is not None:
                self._offset = piece.bad.end_offset
            elif piece.digests:
                self._offset = piece.digests[-1].next_offset

    def _is_done(self, segment: Segment) -> bool:
        return self._position >= segment.size

    def _enter_next(self) -> bool:
        for segment in self._log.segments:
            if segment.base_offset > self._after_base:
                self._segment, self._position = segment, 0
                self._after_base = self._offset = segment.base_offset
                return True
        return False

    def _offset_end(self, segment: Segment) -> int:
        """Returns an offset that is above every offset the segment can hold."""
        bases = [held.base_offset for held in self._log.segments]
        at = bases.index(segment.base_offset)
        end = bases[at + 1] if at + 1 < len(bases) else self._log.end_offset
        return min(end, segment.base_offset + RELATIVE_OFFSET_MAX + 1)
