"""Room on the disk, watched so that a full disk is met with an answer, not with a torn batch.

Appends are refused while less than `reserve_bytes` is free, and allowed again when a tenth more
than that is: between the two nothing flaps. Asking the file system costs a system call, so it is
asked again only after a quarter of what was left above the reserve has been written, when the
owner's timer says so, or when a write did fail.

A write can also find no room although the file system shows some: a quota, or space that is kept
for root. Appends are tried again then, as nothing else tells when there is room. But a broker must
not count as a replica meanwhile: `lacks_room` stays true until a test write (`probe`) has worked.

Others may fill the disk all the same. Deleting takes a little room itself, for the note that must
be on disk first; so a small file of ballast is kept, and given up when that note finds none.
"""

from __future__ import annotations

from contextlib import suppress

from penstock.ports import Disk
from penstock.storage.files import write_all

BALLAST_NAME = "penstock-ballast"
BALLAST_BYTES = 1 << 20
PROBE_NAME = "penstock-probe"
PROBE_BYTES = 4 << 20


class SpaceGuard:
    def __init__(self, disk: Disk, directory: str, reserve_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._reserve = reserve_bytes
        self._ballast = f"{directory}/{BALLAST_NAME}"
        self.credit = 0
        """Bytes that may be written before the file system is asked again."""
        self.free_bytes = 0
        self.refusing = False
        self._write_failed = False

    @property
    def lacks_room(self) -> bool:
        """Whether appends are refused, or one has failed for want of space and none since."""
        return self.refusing or self._write_failed

    def note_failed_write(self) -> None:
        """A write found no room."""
        self._write_failed = True
        self.refusing = True
        self.check()

    def probe(self) -> None:
        """Ask the file system, and where a write has failed, make a test write."""
        self.check()
        if self._write_failed and not self.refusing:
            self._write_failed = not self._takes(f"{self._directory}/{PROBE_NAME}")

    def _takes(self, path: str) -> bool:
        """Whether a file of `PROBE_BYTES` can be written; it is removed again."""
        try:
            file = self._disk.open(path, create=True)
        except OSError:
            return False
        try:
            write_all(file, bytes(PROBE_BYTES), 0)
        except OSError:
            return False
        finally:
            file.close()
            with suppress(OSError):
                self._disk.unlink(path)
        return True

    def allows(self, size: int) -> bool:
        """Whether `size` more bytes may be written."""
        self.credit -= size
        if self.credit < 0 or self.refusing:
            self.check(size)
        return not self.refusing

    def check(self, size: int = 0) -> None:
        """Ask the file system."""
        self.free_bytes = self._disk.free_bytes(self._directory)
        floor = self._reserve + self._reserve // 10 if self.refusing else self._reserve
        self.refusing = self.free_bytes - size < floor
        self.credit = max(0, self.free_bytes - self._reserve) // 4

    def explain(self) -> str:
        if self._write_failed and not self.refusing:
            return (
                f"a write under {self._directory} found no room ({self.free_bytes} bytes free): "
                "free space or lower retention, and look for a quota; appends resume by themselves"
            )
        return (
            f"only {self.free_bytes} bytes are free under {self._directory} and {self._reserve} "
            "are kept in reserve: free space or lower retention; appends resume by themselves"
        )

    def take_ballast(self) -> None:
        """Put the ballast in place where it is missing and there is room for it."""
        if self._disk.exists(self._ballast):
            return
        with suppress(OSError):
            file = self._disk.open(self._ballast, create=True)
            try:
                write_all(file, bytes(BALLAST_BYTES), 0)
            except OSError:
                self._disk.unlink(self._ballast)
            finally:
                file.close()

    def give_up_ballast(self) -> bool:
        """Make a little room in need; False when there is no ballast left to give up."""
        try:
            self._disk.unlink(self._ballast)
        except OSError:
            return False
        return True
