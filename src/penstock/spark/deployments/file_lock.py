"""A lock that processes share: a locked file, which may be removed together with what it protects.

A process that opens the file and locks it a moment later may have locked a file that another one
has removed in between. So `try_lock` looks again: the lock counts only if the path still leads to
the locked file.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path


def try_lock(path: Path) -> int | None:
    """Locks a file, and makes it if it is missing. Returns its descriptor, or None if another one
    has locked it. The lock ends when every process that has the descriptor has closed it."""
    try:
        return _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def wait_for_lock(path: Path) -> int:
    """As `try_lock`, but waits. It blocks."""
    return _locked(path, fcntl.LOCK_EX)


def _locked(path: Path, operation: int) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, operation)
        except OSError:
            os.close(descriptor)
            raise
        if _leads_to(path, descriptor):
            return descriptor
        os.close(descriptor)


def unlock(descriptor: int) -> None:
    """Ends a lock, and keeps its file."""
    os.close(descriptor)


def remove_lock(path: Path, descriptor: int) -> None:
    """Removes the file of a lock, and ends the lock."""
    path.unlink(missing_ok=True)
    os.close(descriptor)


def _leads_to(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False
