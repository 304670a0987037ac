"""The real disk for read-only tools. Files are opened for reading, so the kernel refuses writes.

It can also read what `OsDisk` may not open: a backup, a read-only mount, another user's files.
"""

from __future__ import annotations

import os
from errno import EROFS
from typing import NoReturn

from penstock.storage.disk import OsDisk, OsFile

_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC


class ReadOnlyDisk(OsDisk):
    """The file system of this machine, without write access."""

    __slots__ = ()

    def open(self, path: str, *, create: bool = False, private: bool = False) -> OsFile:
        if create:
            _refuse(path)
        return OsFile(os.open(path, _OPEN_FLAGS))

    def mkdir(self, path: str) -> None:
        _refuse(path)

    def rename(self, source: str, target: str) -> None:
        _refuse(source)

    def unlink(self, path: str) -> None:
        _refuse(path)

    def discard(self, path: str) -> bool:
        _refuse(path)

    def rmdir(self, path: str) -> None:
        _refuse(path)


def _refuse(path: str) -> NoReturn:
    raise OSError(EROFS, "this tool does not write", path)
