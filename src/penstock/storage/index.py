"""A segment's two sparse indexes, in Kafka's format.

Offset index: 8 bytes per entry, big endian: the last offset of a batch relative to the segment's
base offset, and the position where that batch starts. Time index: 12 bytes per entry: the highest
timestamp so far, and the relative last offset of the batch that has it.

Indexes are derived data. Entries are collected in memory and spilled to the file in blocks. After
an unclean stop nothing in the file is trusted; recovery rebuilds it. Spilled entries are read back
through `IndexCache`, which limits the memory for all segments together.

In memory an offset entry is one 64-bit number, with the offset in the high half and the position in
the low half. Both halves increase together, so a bisection by either one works on the whole array.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from contextlib import suppress
from itertools import pairwise
from struct import Struct
from typing import Final

from penstock.ports import File
from penstock.storage.files import FilePool, write_all

ENTRY_SIZE: Final = 8
TIME_ENTRY_SIZE: Final = 12
SPILL_ENTRIES: Final = 512
_LOW: Final = 0xFFFFFFFF
_TIME_ENTRY: Final = Struct(">qi")


def _swapped(entries: array[int]) -> array[int]:
    if sys.byteorder == "little":
        entries.byteswap()
    return entries


def encode_entries(entries: array[int]) -> bytes:
    return _swapped(array("Q", entries)).tobytes()


def decode_entries(data: bytes) -> array[int]:
    entries: array[int] = array("Q")
    entries.frombytes(data[: len(data) // ENTRY_SIZE * ENTRY_SIZE])
    return _swapped(entries)


def spill_if_possible(index: OffsetIndex | TimeIndex) -> None:
    """Spills the entries if the disk has space. Spilling only saves memory: on a full disk the
    entries stay in memory until the next attempt."""
    with suppress(OSError):
        index.spill()


def begin_file(pool: FilePool, path: str) -> File:
    """Creates a new, empty index file.

    The active segment has no index file before its first spill. If there is one, another program
    created it, as Kafka's tools do when the file is missing. It may contain anything and belong to
    another user.
    """
    try:
        file = pool.create(path)
    except PermissionError:
        pool.disk.unlink(path)
        return pool.create(path)
    if file.size():
        file.truncate(0)
    return file


class IndexCache:
    """An LRU cache of spilled index entries."""

    def __init__(self, bytes_max: int = 32 << 20) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._held: OrderedDict[str, array[int]] = OrderedDict()

    @property
    def bytes_held(self) -> int:
        return self._bytes

    def get(self, path: str) -> array[int] | None:
        held = self._held.get(path)
        if held is not None:
            self._held.move_to_end(path)
        return held

    def put(self, path: str, entries: array[int]) -> None:
        self.forget(path)
        self._held[path] = entries
        self._bytes += len(entries) * ENTRY_SIZE
        self._evict()

    def _evict(self) -> None:
        while self._bytes > self._bytes_max and len(self._held) > 1:
            _, evicted = self._held.popitem(last=False)
            self._bytes -= len(evicted) * ENTRY_SIZE

    def extend(self, path: str, entries: array[int]) -> None:
        """Adds entries that were appended to a file, if the file is cached."""
        held = self._held.get(path)
        if held is not None:
            held.extend(entries)
            self._bytes += len(entries) * ENTRY_SIZE
            self._evict()

    def forget(self, path: str) -> None:
        held = self._held.pop(path, None)
        if held is not None:
            self._bytes -= len(held) * ENTRY_SIZE


class OffsetIndex:
    """The offset index of one segment. Spilled entries are read through the cache."""

    __slots__ = ("_cache", "_pool", "path", "spill_at", "spilled", "tail")

    def __init__(self, path: str, pool: FilePool, cache: IndexCache) -> None:
        self.path = path
        self.spill_at = SPILL_ENTRIES
        self.spilled = 0
        """The number of entries in the file."""
        self.tail: array[int] = array("Q")
        """The entries after those, not yet in the file."""
        self._pool = pool
        self._cache = cache

    def __len__(self) -> int:
        return self.spilled + len(self.tail)

    def append(self, relative_offset: int, position: int) -> None:
        self.tail.append(relative_offset << 32 | position)
        if len(self.tail) >= self.spill_at:
            spill_if_possible(self)

    def lookup(self, relative_offset: int) -> tuple[int, int] | None:
        """Returns the last entry at or before the offset, as (relative last offset, position) of a
        batch."""
        bound = relative_offset << 32 | _LOW
        entries = self._entries_from(bound)
        at = bisect_right(entries, bound) - 1
        return (entries[at] >> 32, entries[at] & _LOW) if at >= 0 else None

    def boundary_at_or_below(self, position: int, above: int) -> tuple[int, int] | None:
        """Returns the last entry whose batch starts in (above, position], if there is one."""
        entries = self._load() if not self.tail or self.tail[0] & _LOW > position else self.tail
        at = bisect_right(entries, position, key=lambda entry: entry & _LOW) - 1
        if at < 0 or entries[at] & _LOW <= above:
            return None
        return entries[at] >> 32, entries[at] & _LOW

    def last(self) -> tuple[int, int] | None:
        """Returns the last entry as (relative offset, position)."""
        if self.tail:
            entry = self.tail[-1]
        elif self.spilled:
            data = self._pool.get(self.path).pread(ENTRY_SIZE, (self.spilled - 1) * ENTRY_SIZE)
            if len(data) < ENTRY_SIZE:
                return None
            entry = int.from_bytes(data, "big")
        else:
            return None
        return entry >> 32, entry & _LOW

    def truncate(self, size: int) -> None:
        """Drops the entries of batches that start at or after position `size`."""
        if self.spilled:
            entries = self._load()
            kept = bisect_left(entries, size, key=lambda entry: entry & _LOW)
            if kept < self.spilled:
                self._cache.forget(self.path)
                self.spilled = kept
                self.tail = array("Q")
                self._pool.get(self.path).truncate(kept * ENTRY_SIZE)
                return
        del self.tail[bisect_left(self.tail, size, key=lambda entry: entry & _LOW) :]

    def clear(self) -> None:
        """Drops every entry, after the file was removed."""
        self._cache.forget(self.path)
        self.spilled = 0
        self.tail = array("Q")

    def spill(self) -> None:
        if not self.tail:
            return
        file = begin_file(self._pool, self.path) if not self.spilled else self._pool.get(self.path)
        write_all(file, encode_entries(self.tail), self.spilled * ENTRY_SIZE)
        self._cache.extend(self.path, self.tail)
        self.mark_spilled()

    def encode(self) -> bytes:
        """Returns the entries in memory, as they would be stored in the file."""
        return encode_entries(self.tail)

    def mark_spilled(self) -> None:
        self.spilled += len(self.tail)
        self.tail = array("Q")

    def _entries_from(self, bound: int) -> array[int]:
        if self.spilled == 0 or (self.tail and self.tail[0] <= bound):
            return self.tail
        return self._load()

    def _load(self) -> array[int]:
        if self.spilled == 0:
            return array("Q")
        entries = self._cache.get(self.path)
        if entries is None:
            data = self._pool.get(self.path).pread(self.spilled * ENTRY_SIZE, 0)
            entries = decode_entries(data)
            self._cache.put(self.path, entries)
        return entries


class TimeIndex:
    """The time index. It is used rarely (offsets by time, retention), so spilled entries are not
    cached."""

    __slots__ = ("_last", "_pool", "path", "spill_at", "spilled", "tail")

    def __init__(self, path: str, pool: FilePool) -> None:
        self.path = path
        self.spill_at = SPILL_ENTRIES
        self.spilled = 0
        self.tail: list[tuple[int, int]] = []
        self._pool = pool
        self._last: tuple[int, int] | None = None

    def __len__(self) -> int:
        return self.spilled + len(self.tail)

    def maybe_append(self, timestamp: int, relative_offset: int) -> None:
        """Adds the entry if its timestamp and offset are above those of the last one, as the format
        requires."""
        last = self.last()
        if last is not None and (timestamp <= last[0] or relative_offset <= last[1]):
            return
        self.tail.append((timestamp, relative_offset))
        self._last = (timestamp, relative_offset)
        if len(self.tail) >= self.spill_at:
            spill_if_possible(self)

    def last(self) -> tuple[int, int] | None:
        """Returns the last entry as (timestamp, relative offset)."""
        if self._last is None and self.spilled:
            position = (self.spilled - 1) * TIME_ENTRY_SIZE
            data = self._pool.get(self.path).pread(TIME_ENTRY_SIZE, position)
            if len(data) == TIME_ENTRY_SIZE:
                self._last = _TIME_ENTRY.unpack(data)
        return self._last

    def lookup(self, timestamp: int) -> tuple[int, int] | None:
        """Returns the last entry at or before the timestamp."""
        entries = self.entries()
        at = bisect_right(entries, timestamp, key=lambda entry: entry[0]) - 1
        return entries[at] if at >= 0 else None

    def clear(self) -> None:
        """Drops every entry, after the file was removed."""
        self.spilled = 0
        self.tail = []
        self._last = None

    def rises(self) -> bool:
        """Whether both timestamps and offsets increase from each entry to the next."""
        return all(
            before[0] < after[0] and before[1] < after[1]
            for before, after in pairwise(self.entries())
        )

    def entries(self) -> list[tuple[int, int]]:
        spilled: list[tuple[int, int]] = []
        if self.spilled:
            data = self._pool.get(self.path).pread(self.spilled * TIME_ENTRY_SIZE, 0)
            whole = len(data) // TIME_ENTRY_SIZE * TIME_ENTRY_SIZE
            spilled = list(_TIME_ENTRY.iter_unpack(data[:whole]))
        return spilled + self.tail

    def truncate(self, relative_offset: int) -> None:
        """Drops the entries at or after the offset."""
        entries = self.entries()
        kept = bisect_left(entries, relative_offset, key=lambda entry: entry[1])
        if kept < self.spilled:
            self._pool.get(self.path).truncate(kept * TIME_ENTRY_SIZE)
            self.spilled = kept
        self.tail = entries[self.spilled : kept]
        self._last = entries[kept - 1] if kept else None

    def spill(self) -> None:
        if not self.tail:
            return
        file = begin_file(self._pool, self.path) if not self.spilled else self._pool.get(self.path)
        write_all(file, self.encode(), self.spilled * TIME_ENTRY_SIZE)
        self.mark_spilled()

    def encode(self) -> bytes:
        return b"".join(_TIME_ENTRY.pack(*entry) for entry in self.tail)

    def mark_spilled(self) -> None:
        self.spilled += len(self.tail)
        self.tail = []
