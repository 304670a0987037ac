"""What can go wrong in storage. One tree; the broker maps it to Kafka's codes in one place.

StorageError
  OffsetOutOfRange   the caller asked below the log start or above its end
  DiskFull           no room for an append; reads go on, and appends again when there is room
  DiskTrouble        a call failed that changed nothing: a read, no file descriptors left
  LogOffline         a write or fsync failed: what is on disk is unknown until a restart
  LogDamaged         bytes that had been safe are bad; the range is quarantined
  CorruptFile        a checkpoint or snapshot does not read; whoever opens it rebuilds it
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class StorageError(Exception):
    """Base of everything storage raises on purpose."""


class OffsetOutOfRange(StorageError):
    def __init__(self, offset: int, start_offset: int, end_offset: int) -> None:
        super().__init__(
            f"offset {offset} is outside the log, which holds [{start_offset}, {end_offset}); "
            "seek to one of the two ends"
        )
        self.offset = offset
        self.start_offset = start_offset
        self.end_offset = end_offset


class DiskFull(StorageError):
    """Nothing was appended. Free space, or lower retention; appends resume by themselves."""


class DiskTrouble(StorageError):
    """The operating system refused; nothing was changed, and the call may be tried again."""


@contextmanager
def disk_trouble(what: str) -> Iterator[None]:
    """Turn what the operating system raises into our own, where nothing has been changed."""
    try:
        yield
    except OSError as error:
        raise DiskTrouble(f"{what}: {error}") from error


class LogOffline(StorageError):
    """The log takes no calls until the broker restarts and recovers it."""


class LogDamaged(StorageError):
    """The bytes asked for are bad on this disk; take them from another replica."""


class CorruptFile(StorageError):
    """A small file of ours failed its own check."""
