"""Names of files in a partition's directory, and the bounded set of open ones.

A broker has far more files than it may hold open: 10,000 partitions have 30,000. `FilePool` opens
on demand and closes the least recently used. A file that another thread works on is pinned and
stays open; one that is forgotten while pinned is closed when the last pin goes.
"""

from __future__ import annotations

from typing import Final

from penstock.ports import Buffer, Disk, File

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TRANSACTION_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
DELETED: Final = ".deleted"
TEMPORARY: Final = ".tmp"

LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
LOG_CHECKPOINT: Final = "penstock-checkpoint"

SEGMENT_SUFFIXES: Final = (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX)


def offset_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


def parse_offset_name(name: str, suffix: str) -> int | None:
    """The offset that a file name stands for, None when it is not of that kind."""
    stem = name.removesuffix(suffix)
    if len(stem) != 20 or stem == name or not stem.isdecimal():
        return None
    return int(stem)


def swap_name(base_offset: int, end_offset: int) -> str:
    """A cleaned segment that replaces every segment based in [base_offset, end_offset).

    The range is in the name because the data cannot tell it: cleaning may have removed the last
    records of what it covers.
    """
    return f"{base_offset:020d}-{end_offset:020d}{SWAP}"


def parse_swap_name(name: str) -> tuple[int, int] | None:
    if not name.endswith(SWAP):
        return None
    base, dash, end = name.removesuffix(SWAP).partition("-")
    if not dash or not base.isdecimal() or not end.isdecimal():
        return None
    return int(base), int(end)


def finish_swap(disk: Disk, directory: str, name: str, covered: tuple[int, int]) -> None:
    """Put a cleaned segment in the place of all those it covers. Restartable at every step.

    The old indexes must be gone for good before the new data takes their segment's name: an index
    that survived would point into the wrong bytes.
    """
    base, end = covered
    for other in disk.listdir(directory):
        for suffix in SEGMENT_SUFFIXES:
            offset = parse_offset_name(other, suffix)
            if offset is None or not base <= offset < end:
                continue
            if suffix != LOG or offset != base:
                disk.unlink(f"{directory}/{other}")
    disk.sync_directory(directory)
    disk.rename(f"{directory}/{name}", f"{directory}/{offset_name(base, LOG)}")
    disk.sync_directory(directory)


def partition_directory(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_partition_directory(name: str) -> tuple[str, int] | None:
    topic, dash, partition = name.rpartition("-")
    if not dash or not topic or not partition.isdecimal():
        return None
    return topic, int(partition)


def write_all(file: File, data: Buffer, position: int) -> None:
    """Write everything, however many calls it takes; `OSError` when the disk takes no more."""
    written = file.pwrite(data, position)
    if written != len(data):
        view = memoryview(data)
        while written < len(view):
            written += file.pwrite(view[written:], position + written)


class Handle:
    """An open file of the pool. Its holder sets `used`, and asks anew once it is `forgotten`."""

    __slots__ = ("file", "forgotten", "pins", "used")

    def __init__(self, file: File) -> None:
        self.file = file
        self.pins = 0
        self.used = True
        self.forgotten = False


class FilePool:
    """At most `handles_max` open files, but for pinned ones. Used from one thread.

    What to close is chosen by second chance, not by exact age: a holder keeps its handle and only
    marks it as used, which costs an append nothing.
    """

    def __init__(self, disk: Disk, handles_max: int = 1000) -> None:
        if handles_max < 1:
            raise ValueError(f"handles_max must be at least 1, not {handles_max}")
        self._disk = disk
        self._handles_max = handles_max
        self._handles: dict[str, Handle] = {}

    def __len__(self) -> int:
        return len(self._handles)

    @property
    def disk(self) -> Disk:
        return self._disk

    def handle(self, path: str) -> Handle:
        """The open file at `path`; it may be closed at any later call, and is marked then."""
        handle = self._handles.get(path)
        if handle is None:
            return self._admit(path, self._disk.open(path))
        handle.used = True
        return handle

    def get(self, path: str) -> File:
        """The open file at `path`; good until the next call on the pool."""
        return self.handle(path).file

    def create(self, path: str) -> File:
        """Like `get`, making the file where there is none."""
        self.forget(path)
        return self._admit(path, self._disk.open(path, create=True)).file

    def pin(self, path: str) -> Handle:
        """The open file, kept open for another thread until `unpin`."""
        handle = self.handle(path)
        handle.pins += 1
        return handle

    def unpin(self, handle: Handle) -> None:
        handle.pins -= 1
        if handle.forgotten and handle.pins == 0:
            handle.file.close()
        while len(self._handles) > self._handles_max and self._make_room():
            pass

    def forget(self, path: str) -> None:
        """Close the file, since it is renamed, deleted or replaced."""
        handle = self._handles.pop(path, None)
        if handle is None:
            return
        handle.forgotten = True
        if handle.pins == 0:
            handle.file.close()

    def close(self) -> None:
        for path in list(self._handles):
            self.forget(path)

    def _admit(self, path: str, file: File) -> Handle:
        while len(self._handles) >= self._handles_max and self._make_room():
            pass
        handle = self._handles[path] = Handle(file)
        return handle

    def _make_room(self) -> bool:
        """Close one file; False if all are pinned."""
        for path in list(self._handles):
            handle = self._handles[path]
            if handle.used or handle.pins:
                # Its second chance: to the end of the row.
                handle.used = False
                del self._handles[path]
                self._handles[path] = handle
            else:
                self.forget(path)
                return True
        victim = next((path for path, held in self._handles.items() if not held.pins), None)
        if victim is None:
            return False
        self.forget(victim)
        return True
