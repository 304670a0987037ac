"""A `DueIndex` in files: one for each hour of due times. Only those that are next are in memory.

    ROOT/penstock-due-times/TOPIC-PARTITION/BUCKET     16 bytes for each record: due time, offset

The files are scratch data. They are never synced, and a leader builds them again from its log when
its leadership begins. The entries of a file are in order of offsets, because the log is read in
this order; they are not in order of time. *Near* entries are those that are next in time, in order:
a part of the index without gaps. Reading near entries of a large bucket streams its file, and keeps
the first ones.

Due times before the index was begun, and those later than a month, are in buckets of a day and of
thirty days. So the number of files is bounded whatever producers send.

One thread at a time may use an index. Its calls block, and raise `OSError`. A call that has failed
may be repeated. `DamagedIndex` means that the index must be built again.
"""

from __future__ import annotations

import errno
import logging
from array import array
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from typing import Final

from penstock.ports import Disk, File
from penstock.schedule.cursor import TIME_MAX, DueEntry, ScheduleCursor

_log = logging.getLogger(__name__)

DIRECTORY: Final = "penstock-due-times"
NEAR_MAX: Final = 16_384
"""How many near entries are read at once. Up to twice as many are in memory."""
_ENTRY_BYTES: Final = 16
_CHUNK_ENTRIES: Final = 16_384
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_HOURS: Final = 31 * 24
_DAYS_BACK_MAX: Final = 400
_MONTHS_MAX: Final = 120
_LAST: Final = DueEntry(TIME_MAX, TIME_MAX)


class DamagedIndex(OSError):
    """A file of the index is missing or too short: something else has changed it."""


@dataclass(slots=True)
class _Bucket:
    count: int = 0
    last_offset: int = -1


class BucketDueIndex:
    """See the module's docstring."""

    def __init__(
        self, disk: Disk, directory: str, now_ms: int, first_offset: int, near_max: int = NEAR_MAX
    ) -> None:
        """Begins an empty index. What is in the directory is removed.

        `now_ms` is about the current time. `first_offset` is where the index begins.
        """
        self._disk = disk
        self._directory = directory
        self._base_ms = now_ms
        self._near_max = near_max
        self.first_offset = first_offset
        self.end = first_offset
        """The records below it, from `first_offset` on, are in the index."""
        self.count = 0
        """The number of entries. Other threads may read it."""
        self._forgotten = DueEntry(0, -1)
        self._forgotten_end = first_offset
        """An entry up to `_forgotten` in time may have been removed if its offset is below this."""
        self._buckets: dict[int, _Bucket] = {}
        self._near: list[DueEntry] = []
        self._near_from = self._near_to = _LAST
        """The near entries are all entries after the first of these, up to the second."""
        clear(disk, directory)
        disk.mkdir(directory)

    def __len__(self) -> int:
        return self.count

    @property
    def in_memory(self) -> int:
        return len(self._near)

    @property
    def size(self) -> int:
        """The size of the files."""
        return self.count * _ENTRY_BYTES

    def add(self, entries: Iterable[DueEntry], end: int) -> None:
        """Adds the entries of the records from the end of the index up to a new end, in order of
        offsets."""
        found: dict[int, list[DueEntry]] = {}
        for entry in entries:
            found.setdefault(self._bucket_of(entry.due_ms), []).append(entry)
        for number, of_bucket in found.items():
            self._append(number, of_bucket)
        # Nothing has changed so far if a write has failed: it is repeated at the same positions.
        for number, of_bucket in found.items():
            bucket = self._buckets.setdefault(number, _Bucket())
            bucket.count += len(of_bucket)
            self.count += len(of_bucket)
            bucket.last_offset = of_bucket[-1].offset
            for entry in of_bucket:
                if self._near_from < entry <= self._near_to:
                    insort(self._near, entry)
        self.end = end
        if len(self._near) > 2 * self._near_max:
            del self._near[self._near_max :]
            self._near_to = self._near[-1]

    def late(self, due: DueEntry, first: int, end: int, limit: int) -> Sequence[DueEntry]:
        last = self._bucket_of(due.due_ms)
        found: list[DueEntry] = []
        for number, bucket in self._buckets.items():
            if number <= last and bucket.last_offset >= first:
                of_bucket = self._since(number, first, end)
                found += islice((each for each in of_bucket if each <= due), limit)
                found = nsmallest(limit, found, key=lambda each: each.offset)
        return found

    def after(self, due: DueEntry, first: int, end: int, limit: int) -> Sequence[DueEntry]:
        found: list[DueEntry] = []
        while len(found) < limit:
            if not self._near_from <= due <= self._near_to or due == self._near_to:
                self._read_near(due)
            at = bisect_right(self._near, due)
            matching = (each for each in islice(self._near, at, None) if first <= each.offset < end)
            found += islice(matching, limit - len(found))
            if self._near_to == _LAST:
                break
            due = self._near_to
        return found

    def has_any(self, first: int, end: int) -> bool:
        """Returns whether there are entries with `first <= offset < end`."""
        numbers = [key for key, each in self._buckets.items() if each.last_offset >= first]
        if first < end and any(self._buckets[each].last_offset < end for each in numbers):
            return True
        return first < end and any(True for each in numbers for _ in self._since(each, first, end))

    def remaining(self, due: DueEntry) -> int:
        """Returns about how many entries there are after this one. It reads no file.

        It is exact if the rest of the hour is in memory.
        """
        number = self._bucket_of(due.due_ms)
        count = sum(each.count for key, each in self._buckets.items() if key > number)
        if number not in self._buckets:
            return count
        is_near = self._near_from <= due and (
            self._near_to == _LAST or self._bucket_of(self._near_to.due_ms) > number
        )
        if not is_near:
            return count + self._buckets[number].count
        rest = islice(self._near, bisect_right(self._near, due), None)
        return count + sum(self._bucket_of(each.due_ms) == number for each in rest)

    def forget(self, due: DueEntry, end: int) -> None:
        """Removes buckets that are not needed: no cursor is before `due`, or ends before `end`."""
        for number in self._unneeded(due, end):
            self._forgotten = max(self._forgotten, due)
            self._forgotten_end = max(self._forgotten_end, self._buckets[number].last_offset + 1)
            _remove(self._disk, self._path(number))
            self.count -= self._buckets.pop(number).count

    def may_forget(self, due: DueEntry, end: int) -> bool:
        """Whether `forget` would remove something. It reads no file."""
        return bool(self._unneeded(due, end))

    def _unneeded(self, due: DueEntry, end: int) -> list[int]:
        last = self._bucket_of(due.due_ms)
        return [
            number
            for number, bucket in self._buckets.items()
            if number < last and bucket.last_offset < end
        ]

    def serves(self, cursor: ScheduleCursor) -> bool:
        """Returns whether everything that a cursor needs is still in the index.

        A cursor needs the entries that are due after it, and every entry from its end on, even one
        that was due long ago. `forget` did not know the cursors of groups that are loaded later.
        """
        return cursor.due >= self._forgotten and cursor.end >= self._forgotten_end

    def close(self) -> None:
        """Removes the files. The index is not used any more."""
        self.count = 0
        self._buckets.clear()
        self._near.clear()
        clear(self._disk, self._directory)

    # Files

    def _bucket_of(self, due_ms: int) -> int:
        """Returns the number of a bucket. It never decreases with the due time."""
        since_ms = due_ms - self._base_ms
        if since_ms < 0:
            return max(since_ms // _DAY_MS, -_DAYS_BACK_MAX)
        hour = since_ms // _HOUR_MS
        if hour < _HOURS:
            return hour
        return _HOURS + min((hour - _HOURS) // (30 * 24), _MONTHS_MAX)

    def _path(self, number: int) -> str:
        return f"{self._directory}/{number}"

    def _append(self, number: int, entries: Sequence[DueEntry]) -> None:
        known = self._buckets.get(number)
        data = memoryview(array("q", [part for each in entries for part in each]).tobytes())
        position = known.count * _ENTRY_BYTES if known is not None else 0
        try:
            file = self._disk.open(self._path(number), create=known is None)
        except FileNotFoundError as error:
            raise DamagedIndex(errno.ENOENT, f"{self._path(number)} is missing") from error
        try:
            while data:
                written = file.pwrite(data, position)
                if not written:
                    raise OSError(errno.ENOSPC, f"{self._path(number)} could not be extended")
                position += written
                data = data[written:]
        finally:
            file.close()

    def _read_near(self, due: DueEntry) -> None:
        """Reads the entries that follow one in time, until there are enough."""
        self._near, self._near_from, self._near_to = [], _LAST, _LAST
        near: list[DueEntry] = []
        reached = _LAST
        for number in sorted(self._buckets):
            if number < self._bucket_of(due.due_ms):
                continue
            later = (each for each in self._entries(number, 0) if each > due)
            limit = self._near_max - len(near) + 1
            near += nsmallest(limit, later)
            if len(near) > self._near_max:
                near.pop()
                reached = near[-1]
                break
        self._near, self._near_from, self._near_to = near, due, reached

    def _since(self, number: int, first: int, end: int) -> Iterator[DueEntry]:
        """Yields the entries of a bucket from an offset on, in order of offsets."""
        low, high = 0, self._buckets[number].count
        with _Reading(self._disk, self._path(number)) as file:
            while low < high:
                middle = (low + high) // 2
                if file.entries(middle, 1)[0].offset < first:
                    low = middle + 1
                else:
                    high = middle
        for entry in self._entries(number, low):
            if entry.offset >= end:
                return
            yield entry

    def _entries(self, number: int, position: int) -> Iterator[DueEntry]:
        """Yields the entries of a bucket, from a position on."""
        count = self._buckets[number].count
        with _Reading(self._disk, self._path(number)) as file:
            while position < count:
                some = file.entries(position, min(_CHUNK_ENTRIES, count - position))
                yield from some
                position += len(some)


class _Reading:
    """A file of an index, while it is read."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._file: File | None = None

    def __enter__(self) -> _Reading:
        try:
            self._file = self._disk.open(self._path)
        except FileNotFoundError as error:
            raise DamagedIndex(errno.ENOENT, f"{self._path} is missing") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def entries(self, position: int, count: int) -> list[DueEntry]:
        assert self._file is not None
        data = self._file.pread(count * _ENTRY_BYTES, position * _ENTRY_BYTES)
        if len(data) != count * _ENTRY_BYTES:
            raise DamagedIndex(errno.EIO, f"{self._path} is too short")
        numbers = array("q")
        numbers.frombytes(data)
        return list(map(DueEntry, numbers[::2], numbers[1::2]))


def clear_leftovers(disk: Disk, root: str) -> None:
    """Removes the files that an earlier run of the broker has left in a data directory."""
    try:
        clear(disk, f"{root}/{DIRECTORY}")
    except OSError as error:
        _log.warning("%s/%s could not be removed: %s; it is no longer used", root, DIRECTORY, error)


def clear(disk: Disk, directory: str) -> None:
    """Removes a directory with its files, if it exists."""
    if not disk.exists(directory):
        return
    for name in disk.listdir(directory):
        path = f"{directory}/{name}"
        if disk.stat(path).is_directory:
            clear(disk, path)
        else:
            _remove(disk, path)
    disk.rmdir(directory)


def _remove(disk: Disk, path: str) -> None:
    while not disk.discard(path):
        pass
