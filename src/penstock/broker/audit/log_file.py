"""The audit log: a file with one JSON object per line, rotated by size.

When the file is full, `audit.log` becomes `audit.log.1`, which becomes `audit.log.2`, and so on.
The oldest file is deleted. Only the user of the broker can read the files. Everything here blocks,
so it runs on a thread.
"""

from __future__ import annotations

from penstock.ports import Disk, File


class AuditLogFile:
    """Appends lines to the current file. Only one thread may use it at a time."""

    def __init__(self, disk: Disk, path: str, bytes_max: int, files_max: int) -> None:
        self._disk = disk
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._file: File | None = None
        self._size = 0

    def write(self, lines: bytes) -> None:
        """Appends whole lines and syncs them. Raises OSError; the lines may be in the file then."""
        try:
            if self._file is None:
                self._open()
            if self._size and self._size + len(lines) > self._bytes_max:
                self._rotate()
            self._append(lines)
        except OSError:
            # The end of the file is unknown now, so it is found again at the next write.
            self.close()
            raise

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _append(self, lines: bytes) -> None:
        file = self._file
        assert file is not None
        view = memoryview(lines)
        while view:
            written = file.pwrite(view, self._size)
            self._size += written
            view = view[written:]
        file.fsync()

    def _open(self) -> None:
        directory = self._path.rpartition("/")[0]
        if directory and not self._disk.exists(directory):
            self._disk.mkdir(directory)
        self._file = file = self._disk.open(self._path, create=True, private=True)
        self._size = file.size()
        if self._size and file.pread(1, self._size - 1) != b"\n":
            # A crash has cut the last line. The next one must not continue it.
            self._append(b"\n")

    def _rotate(self) -> None:
        self.close()
        disk, path = self._disk, self._path
        names = [path, *(f"{path}.{number}" for number in range(1, self._files_max))]
        if disk.exists(names[-1]):
            disk.unlink(names[-1])
        for number in range(len(names) - 1, 0, -1):
            if disk.exists(names[number - 1]):
                disk.rename(names[number - 1], names[number])
        self._open()
