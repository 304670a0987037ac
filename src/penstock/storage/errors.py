"""The errors that storage raises. The broker maps this tree to Kafka's error codes in one place.

StorageError
  OffsetOutOfRange   the caller asked for an offset below the log start or above the log end
  DiskFull           no space for an append; reads continue, appends resume once there is space
  DiskTrouble        a call failed that changed nothing: a read, no file descriptors left
  LogOffline         a write or fsync failed: what is on disk is unknown until recovery
  LogDamaged         bytes that were safe on disk are bad; the range is quarantined
  CorruptFile        a checkpoint or snapshot cannot be read; opening the log rebuilds it
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class StorageError(Exception):
    """The base of all errors that storage raises deliberately."""


class OffsetOutOfRange(StorageError):
    def __init__(self, offset: int, start_offset: int, end_offset: int) -> None:
        super().__init__(
            f"offset {offset} is outside the log, which holds [{start_offset}, {end_offset}); "
            "seek to its beginning or its end"
        )
        self.offset = offset
        self.start_offset = start_offset
        self.end_offset = end_offset


class DiskFull(StorageError):
    """Nothing was appended. Free space, or lower retention; appends resume automatically."""


class DiskTrouble(StorageError):
    """The operating system returned an error. Nothing was changed, and the call may be retried."""


@contextmanager
def disk_trouble(what: str) -> Iterator[None]:
    """Converts `OSError` to `DiskTrouble`, for calls that have changed nothing."""
    try:
        yield
    except OSError as error:
        raise DiskTrouble(f"{what}: {error}") from error


class LogOffline(StorageError):
    """The log refuses all calls until it is recovered."""


class LogDamaged(StorageError):
    """The requested bytes are bad on this disk. Read them from another replica."""


class CorruptFile(StorageError):
    """A checkpoint or snapshot failed its own check."""
