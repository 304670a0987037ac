"""One segment of a log: a `.log` file and its indexes.

A segment knows where its batches are and which bytes it has verified. Bytes that this process
appended or scanned are verified. All others are checked the first time they are read, so bad bytes
on the disk are never served, and each byte is checked once.

A consumer usually continues where its last read ended, so a segment remembers that position. The
next read then needs neither the index nor a walk over headers. A read is one `pread`: the bytes
that were read show where the last whole batch ends, and whether the index was right about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.partition.epochs import UNDEFINED_EPOCH
from penstock.partition.producers import CompletedTransaction
from penstock.ports import Buffer, File
from penstock.records.batch import (
    HEADER_SIZE,
    NO_TIMESTAMP,
    BatchHeader,
    read_header,
)
from penstock.storage.aborted import AbortedIndex
from penstock.storage.errors import LogDamaged
from penstock.storage.files import FilePool, Handle, write_all
from penstock.storage.index import IndexCache
from penstock.storage.scan import batches_outside, headers_outside, read_fitting, sound_prefix
from penstock.storage.segment_files import SegmentFiles


class Segment:
    """A segment that can be appended to, read and truncated."""

    __slots__ = (
        "_appended_from",
        "_handle",
        "_next_header",
        "_next_position",
        "_since_indexed",
        "aborted",
        "base_offset",
        "created_ms",
        "cuts",
        "damaged",
        "files",
        "first_timestamp",
        "index",
        "index_interval_bytes",
        "max_timestamp",
        "max_timestamp_offset",
        "path",
        "pool",
        "size",
        "time_index",
        "verified",
    )

    def __init__(
        self,
        directory: str,
        base_offset: int,
        pool: FilePool,
        cache: IndexCache,
        *,
        created_ms: int,
        index_interval_bytes: int = 4096,
    ) -> None:
        self.base_offset = base_offset
        self.files = files = SegmentFiles(directory, base_offset, pool, cache)
        self.path = files.log_path
        self.index = files.index
        self.time_index = files.time_index
        self.pool = pool
        self._handle: Handle | None = None
        self._next_position = 0
        """Where the last read ended, a batch boundary. 0 if it may no longer be one."""
        self._next_header: BatchHeader | None = None
        """The header of the batch at that position, if the read saw it."""
        self.size = 0
        self.cuts = 0
        """Grows whenever existing bytes may be gone: after a truncation, a quarantine, or the
        removal of the segment from its log."""
        self.verified = 0
        """Bytes from the start of the file whose CRCs this process has checked."""
        self._appended_from = -1
        """Where this process began to append after bytes that it had not verified; -1 if it did
        not."""
        self.damaged: tuple[tuple[int, int], ...] = ()
        """Quarantined ranges of the file, as [start, end) positions. They are never read."""
        self.aborted: AbortedIndex | None = None
        """The transactions aborted by markers in this segment; None if there never were any."""
        self.index_interval_bytes = index_interval_bytes
        self.created_ms = created_ms
        self.first_timestamp: int | None = None
        """The highest timestamp of the first batch. The age of the segment is counted from it."""
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self._since_indexed = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path}, {self.size} bytes)"

    # Writing

    def append(self, data: Buffer, size: int, last_offset: int, max_timestamp: int) -> None:
        """Writes one batch at the end and indexes it. Kept flat on purpose: this is the hot
        path."""
        handle = self._handle
        if handle is None or handle.forgotten:
            handle = self._open()
        handle.used = True
        position = self.size
        if handle.file.pwrite(data, position) != size:
            write_all(handle.file, data, position)
        if self.verified == position:
            self.verified = position + size
        elif self._appended_from < 0:
            self._appended_from = position
        self.size = position + size
        if max_timestamp > self.max_timestamp or self._since_indexed > self.index_interval_bytes:
            self.note(position, size, last_offset, max_timestamp)
        else:
            self._since_indexed += size

    def _open(self) -> Handle:
        handle = self._handle = self.pool.handle(self.path)
        return handle

    @property
    def file(self) -> File:
        """The `.log` file. Valid until the next call on the pool."""
        handle = self._handle
        if handle is None or handle.forgotten:
            handle = self._open()
        handle.used = True
        return handle.file

    def note(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Adds the batch at `position` to the indexes if an entry is due. Recovery rebuilds indexes
        with it too."""
        if self.first_timestamp is None:
            self.first_timestamp = max_timestamp
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self._since_indexed > self.index_interval_bytes:
            self.index.append(last_offset - self.base_offset, position)
            self.time_index.maybe_append(
                self.max_timestamp, self.max_timestamp_offset - self.base_offset
            )
            self._since_indexed = 0
        self._since_indexed += size

    def discard_beyond_end(self) -> None:
        """Cuts off, durably, what a failed append may have left behind.

        Another batch will get the same offsets. If a power loss could bring the old bytes back in
        its place (a zero at the end is enough to complete them), this log would hold one batch
        where replicas and readers have seen another, under the same epoch.
        """
        file = self.file
        if file.size() != self.size:
            file.truncate(self.size)
            file.fsync()

    def note_aborted(self, ended: CompletedTransaction) -> None:
        """Records a transaction that was aborted by a marker in this segment."""
        if self.aborted is None:
            self.aborted = AbortedIndex(self.files.aborted_path)
        self.aborted.add(ended)

    def seal(self) -> None:
        """Writes all index entries, including the last timestamp, to files. Called when appends
        end."""
        self._index_last_timestamp()
        self.files.seal_indexes(has_batches=self.size > 0)
        if self.aborted is not None:
            self.aborted.write(self.pool)

    def seal_durably(self) -> None:
        """Writes the held indexes atomically. The index files of a sealed segment are trusted when
        the log is opened."""
        self._index_last_timestamp()
        self.files.write_held_indexes()

    def take_indexes(self) -> list[tuple[str, bytes]]:
        """Returns the held indexes, including the last timestamp, as path and content. From now on
        they count as written to files."""
        self._index_last_timestamp()
        return self.files.take_indexes()

    def _index_last_timestamp(self) -> None:
        if self.max_timestamp > NO_TIMESTAMP:
            self.time_index.maybe_append(
                self.max_timestamp, self.max_timestamp_offset - self.base_offset
            )

    def reset(self) -> None:
        """Discards everything derived from the data, before the data is scanned again."""
        self.cuts += 1
        self.files.remove_indexes()
        self.first_timestamp = None
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset
        self._since_indexed = 0
        self._next_position = 0
        self.verified = 0
        self._appended_from = -1

    def truncate(self, size: int, end_offset: int) -> None:
        """Cuts the file to `size`, the batch boundary before `end_offset`, and adjusts the
        indexes."""
        self.cuts += 1
        self.file.truncate(size)
        self.size = size
        self._next_position = 0
        self.verified = min(self.verified, size)
        if self._appended_from >= size:
            self._appended_from = -1
        self.index.truncate(size)
        self.time_index.truncate(end_offset - self.base_offset)
        if self.aborted is not None:
            self.aborted.truncate(end_offset)
        self.damaged = tuple(hole for hole in self.damaged if hole[0] < size)
        _, indexed = self.index.last() or (0, 0)
        self._since_indexed = size - indexed
        self._scan_timestamps()

    def quarantine(self, start: int, end: int) -> None:
        """Excludes [start, end) from reads. Everything from `start` on must be verified again."""
        self.cuts += 1
        self.damaged = tuple(sorted((*self.damaged, (start, end))))
        self.verified = min(self.verified, start)
        self._appended_from = -1
        self._next_position = 0

    # Reading

    def locate(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Returns the first batch that ends at or after `offset`: the one that contains it, if
        there is one."""
        if 0 < self._next_position < self.size and not self.damaged:
            follows = self._follows_last_read(offset)
            if follows is not None:
                return follows
        start, indexed = self._indexed_start(offset)
        beyond, last = start, -1
        if indexed is not None:
            beyond, last = start + indexed.size, indexed.last_offset
            if last == offset:
                return start, indexed
        for position, header in self.headers(beyond):
            first = header.base_offset
            if first <= last:
                raise LogDamaged(
                    f"{self.path}: offset {first} follows offset {last} at byte {position}; "
                    "read from another replica, or restore the file"
                )
            last = first + header.last_offset_delta
            if last >= offset:
                if first > offset:
                    self._prove(start, position)
                return position, header
        self._prove(start, self.size)
        return None

    def _follows_last_read(self, offset: int) -> tuple[int, BatchHeader] | None:
        position, header = self._next_position, self._next_header
        if header is None:
            # The last read went to the end of the segment, which has grown since.
            header = self._header_at(position)
            if header is None or not HEADER_SIZE <= header.size <= self.size - position:
                return None
            self._next_header = header
        if header.base_offset == offset and header.last_offset_delta >= 0:
            return position, header
        return None

    def offset_at(self, position: int) -> int | None:
        """Returns the base offset of the batch at a batch boundary. None if there is no batch, or
        its bytes were not verified."""
        if position == self._next_position and self._next_header is not None:
            return self._next_header.base_offset
        if not self.has_verified(position, position + HEADER_SIZE) or position >= self.size:
            return None
        if any(start <= position < end for start, end in self.damaged):
            return None
        header = self._header_at(position)
        return None if header is None else header.base_offset

    def _header_at(self, position: int) -> BatchHeader | None:
        data = self.file.pread(HEADER_SIZE, position)
        return read_header(data) if len(data) == HEADER_SIZE else None

    def _prove(self, start: int, end: int) -> None:
        """Verifies [start, end). That no batch contains an offset is trusted only if the batches
        that were skipped are sound."""
        if not self.has_verified(start, end):
            for position, _ in self._checked(start):
                if position >= end:
                    break

    def end_below(self, offset: int) -> int | None:
        """Returns the offset after the last batch that ends below `offset`; None if there is
        none."""
        end = None
        for _, header in self.headers(self._indexed_start(offset - 1)[0]):
            if header.last_offset >= offset:
                break
            end = header.next_offset
        return end

    def _indexed_start(self, offset: int) -> tuple[int, BatchHeader | None]:
        """Returns the position at which to begin searching for an offset, and the header there if
        it was read. Checks the index entry against that header first."""
        relative = max(0, offset - self.base_offset)
        entry = self.index.lookup(relative)
        if entry is None:
            return 0, None
        relative_last, position = entry
        header = self._header_at(position)
        if header is not None and header.last_offset == self.base_offset + relative_last:
            whole = HEADER_SIZE <= header.size <= self.size - position
            return position, header if whole else None
        self.reindex()
        _, position = self.index.lookup(relative) or (0, 0)
        return position, None

    def reindex(self) -> None:
        """Rebuilds both indexes from the data, after they turned out to be wrong."""
        holes, verified, appended_from = self.damaged, self.verified, self._appended_from
        self.reset()
        self.files.hold_indexes()
        self.damaged = holes
        for position, header in self._checked():
            self.note(position, header.size, header.last_offset, header.max_timestamp)
        self.verified, self._appended_from = verified, appended_from
        self.seal_durably()

    def headers(self, start: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yields the batches from position `start`, a batch boundary, skipping quarantined
        ranges."""
        return headers_outside(self.damaged, self.file, self.path, start, self.size)

    def _checked(self, start: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Yields the batches from `start` on, outside quarantined ranges, and verifies each one."""
        return batches_outside(
            self.damaged, self.file, self.path, start, self.size, base_offset=self.base_offset
        )

    def read(
        self,
        start: int,
        bytes_max: int,
        limit: int,
        first_size: int,
        *,
        end_offset: int = 2**63 - 1,
        epoch_at: Callable[[int], int] = lambda _: UNDEFINED_EPOCH,
    ) -> memoryview:
        """Returns whole batches from `start`: as many as fit, and at least the first (`first_size`
        bytes).

        Bytes that were not verified yet are checked, also against what the log knows: where the
        segment's offsets end, and which epoch wrote which offsets. Sound batches before a bad one
        are still returned.
        """
        end = min(start + bytes_max, limit)
        first_end = start + first_size
        following = None
        if first_end < end < limit:
            entry = self.index.boundary_at_or_below(end, first_end)
            guess = None if entry is None else (self.base_offset + entry[0], entry[1])
            data, following = read_fitting(self.file, start, end, limit, first_end, guess)
            if data is None:
                self.reindex()
                data, following = read_fitting(self.file, start, end, limit, first_end, None)
                assert data is not None
        else:
            end = max(end, first_end)
            data = memoryview(self.file.pread(end - start, start))
        end = start + len(data)
        if not self.has_verified(start, end):
            data = self._verify(data, start, end, end_offset, epoch_at)
        if len(data) == end - start:
            self.note_read(end, following)
        return data

    def has_verified(self, start: int, end: int) -> bool:
        """Whether this process has verified these bytes, or has written them."""
        return end <= self.verified or 0 <= self._appended_from <= start

    def note_read(self, end: int, following: BatchHeader | None) -> None:
        """Remembers that batches up to `end` were returned, and the header of the next one if it
        was read."""
        self._next_position, self._next_header = end, following

    def _verify(
        self,
        data: memoryview,
        start: int,
        end: int,
        end_offset: int,
        epoch_at: Callable[[int], int],
    ) -> memoryview:
        """Returns the sound batches at the start of `data`, and marks them as verified. Raises
        `LogDamaged` if there are none.

        The CRC covers neither the offset of a batch nor its epoch. The offset is right if it is
        above the offset before it and below the next one. The epoch is compared with the log's
        leader epochs.
        """
        good, last, last_position, reason = sound_prefix(data, end_offset, epoch_at)
        if good == end - start and not self._precedes_next(last, end):
            good, reason = last_position, f"offset {last} is not below the next batch's offset"
        if start <= self.verified < start + good:
            self.verified = start + good
            if 0 <= self._appended_from <= self.verified:
                self.verified, self._appended_from = self.size, -1
        if good == 0:
            raise LogDamaged(
                f"{self.path} is damaged at byte {start}: {reason}; "
                "read from another replica, or restore the file"
            )
        return data[:good]

    def _precedes_next(self, last_offset: int, position: int) -> bool:
        following = self.file.pread(HEADER_SIZE, position) if position < self.size else b""
        return len(following) < HEADER_SIZE or read_header(following).base_offset > last_offset

    def largest_timestamp(self) -> int:
        """Returns the highest timestamp of the segment, loading it from the time index if
        necessary."""
        if self.max_timestamp == NO_TIMESTAMP:
            self.load_timestamps()
        return self.max_timestamp

    def load_timestamps(self) -> None:
        """Loads the timestamps from the time index. The last entry of a sealed segment is its
        highest timestamp."""
        last = self.time_index.last()
        if last is not None and not self.time_entry_is_right(last):
            self.reindex()
            return
        if last is not None:
            self.max_timestamp, relative = last
            self.max_timestamp_offset = self.base_offset + relative
        self._load_first_timestamp()

    def time_entry_is_right(self, entry: tuple[int, int]) -> bool:
        """Whether a time index entry matches an existing batch and its timestamp."""
        timestamp, relative = entry
        found = self.locate(self.base_offset + relative)
        if found is None:
            return False
        _, header = found
        return (
            header.last_offset == self.base_offset + relative and header.max_timestamp == timestamp
        )

    def resume(self) -> None:
        """Continues appending to a segment that a clean stop sealed."""
        _, indexed = self.index.last() or (0, 0)
        self._since_indexed = self.size - indexed
        self.load_timestamps()

    def _load_first_timestamp(self) -> None:
        self.first_timestamp = None
        for _, header in self.headers(0):
            self.first_timestamp = header.max_timestamp
            break

    def _scan_timestamps(self) -> None:
        """Finds the highest timestamp in the time index and in the batches after its last entry."""
        last = self.time_index.last()
        self.max_timestamp, relative = last if last is not None else (NO_TIMESTAMP, 0)
        self.max_timestamp_offset = self.base_offset + relative
        for _, header in self.headers(self._indexed_start(self.base_offset + relative)[0]):
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_offset = header.last_offset
        self._load_first_timestamp()
