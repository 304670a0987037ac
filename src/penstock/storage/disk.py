"""The real disk: the `Disk` port, mapped directly to system calls.

`fsync` is fdatasync. It writes the file's bytes and the metadata needed to read them back,
including a changed size, so an append or a truncation is as safe as with fsync. It leaves out the
modification time. That saves a journal commit for each flush of a file whose size did not change.

A file is always opened for reading and writing. Falling back to read-only on a read-only file
system would only move the error to the first append, far from its cause.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable
from errno import EBADF
from functools import partial
from stat import S_ISDIR
from typing import Final

from penstock.ports import Buffer, FileStat

_flush = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync
_OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC
_DISCARDED_BYTES: Final = 4 << 20
"""The file system frees this much in a few milliseconds."""


class OsFile:
    """An open file. Using it after `close` raises EBADF. Closing it twice is harmless."""

    __slots__ = ("_fd", "pwrite")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # Bound here instead of defined as a method: the extra call would cost a tenth of an append.
        self.pwrite: Callable[[Buffer, int], int] = partial(os.pwrite, fd)

    def pread(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        return self._pread_on(data, size, position)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def fsync(self) -> None:
        if self._fd < 0:  # of these calls, only os.fdatasync would raise ValueError
            raise OSError(EBADF, "this file is closed; open it again")
        _flush(self._fd)

    def drop_cache(self) -> None:
        if hasattr(os, "posix_fadvise"):  # macOS has none
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def fileno(self) -> int:
        """Returns the file descriptor, for calls that the port does not have (sendfile)."""
        return self._fd

    def close(self) -> None:
        # Clear the number first: once released it may belong to another file, even if close fails.
        fd, self._fd = self._fd, -1
        self.pwrite = partial(os.pwrite, -1)
        if fd >= 0:
            os.close(fd)

    def _pread_on(self, data: bytes, size: int, position: int) -> bytes:
        """Continues a short read. The kernel may return less at any time (for more than 2 GiB it
        always does); only an empty read means the end of the file."""
        parts = [data]
        done = len(data)
        while done < size and (data := os.pread(self._fd, size - done, position + done)):
            parts.append(data)
            done += len(data)
        return b"".join(parts)


class OsDisk:
    """The file system of this machine."""

    __slots__ = ()

    def open(self, path: str, *, create: bool = False, private: bool = False) -> OsFile:
        flags = _OPEN_FLAGS | os.O_CREAT if create else _OPEN_FLAGS
        number = os.open(path, flags, 0o600 if private else 0o644)
        if private:
            try:
                os.fchmod(number, 0o600)
            except OSError:
                os.close(number)
                raise
        return OsFile(number)

    def stat(self, path: str) -> FileStat:
        status = os.stat(path)
        return FileStat(status.st_size, status.st_mtime_ns // 1_000_000, S_ISDIR(status.st_mode))

    def exists(self, path: str) -> bool:
        # os.path.exists treats any error as absence, but an unreadable log must not look absent.
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def mkdir(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def discard(self, path: str) -> bool:
        fd = os.open(path, _OPEN_FLAGS)
        try:
            left = os.fstat(fd).st_size - _DISCARDED_BYTES
            if left > 0 and _is_only_opened_here(fd):
                os.ftruncate(fd, left)
                return False
        finally:
            os.close(fd)
        os.unlink(path)
        return True

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize


def _is_only_opened_here(fd: int) -> bool:
    """Whether no other descriptor, in any process, has the file open. False if that cannot be
    known.

    The kernel grants a write lease under exactly this condition. If another process opens the file
    during the lease, the kernel sends the holder a signal. That signal must not be SIGIO, which
    would end the process.
    """
    if not hasattr(fcntl, "F_SETLEASE"):  # only Linux has it
        return False
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    return True
