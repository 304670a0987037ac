"""File names in a partition's directory, and the pool of open files.

A broker has far more files than it may hold open: 10,000 partitions have 30,000 files. `FilePool`
opens files on demand and closes the least recently used ones. A file that another thread uses is
pinned and stays open. If it is dropped from the pool while pinned, it is closed when the last pin
is released.
"""

from __future__ import annotations

from typing import Final

from penstock.ports import Buffer, Disk, File
from penstock.topic_partition import TopicPartition

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
    """Returns the offset in a file name; None if the file is not of that kind."""
    stem = name.removesuffix(suffix)
    if len(stem) != 20 or stem == name or not stem.isdecimal():
        return None
    return int(stem)


def swap_name(base_offset: int, end_offset: int) -> str:
    """Returns the name of a cleaned segment that replaces every segment based in [base_offset,
    end_offset).

    The range is in the name because the data cannot show it: compaction may have removed the last
    records of the range.
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
    """Replaces all covered segments with a cleaned one. Can be repeated after an interruption at
    any step.

    The old indexes must be durably gone before the new data gets the segment's name. An index that
    survived would point into the wrong bytes.
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


def parse_partition_directory(name: str) -> TopicPartition | None:
    topic, dash, partition = name.rpartition("-")
    if not dash or not topic or not partition.isdecimal():
        return None
    return TopicPartition(topic, int(partition))


def write_all(file: File, data: Buffer, position: int) -> None:
    """Writes everything, in as many calls as necessary. Raises `OSError` if the disk accepts no
    more."""
    written = file.pwrite(data, position)
    if written != len(data):
        view = memoryview(data)
        while written < len(view):
            written += file.pwrite(view[written:], position + written)


class Handle:
    """An open file of the pool. The holder sets `used`, and asks the pool again once it is
    `forgotten`."""

    __slots__ = ("file", "forgotten", "pins", "used")

    def __init__(self, file: File) -> None:
        self.file = file
        self.pins = 0
        self.used = True
        self.forgotten = False


class FilePool:
    """At most `handles_max` open files, not counting pinned ones. Used from one thread.

    Evicts by second chance instead of exact age: a holder keeps its handle and only sets a flag,
    which costs an append nothing.
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
        """Returns the open file at `path`. Any later call may close it; it is then marked as
        `forgotten`."""
        handle = self._handles.get(path)
        if handle is None:
            return self._admit(path, self._disk.open(path))
        handle.used = True
        return handle

    def get(self, path: str) -> File:
        """Returns the open file at `path`. Valid until the next call on the pool."""
        return self.handle(path).file

    def create(self, path: str) -> File:
        """Does the same as `get`, and creates the file if it does not exist."""
        self.forget(path)
        return self._admit(path, self._disk.open(path, create=True)).file

    def pin(self, path: str) -> Handle:
        """Returns the open file, and keeps it open for another thread until `unpin`."""
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
        """Closes a file that was renamed, deleted or replaced."""
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
        """Closes one file. Returns False if all are pinned."""
        for path in list(self._handles):
            handle = self._handles[path]
            if handle.used or handle.pins:
                # Give it a second chance: move it to the end of the queue.
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
