"""Watches the free disk space, so that a full disk leads to a clear error and not to a torn batch.

Appends are refused while less than `reserve_bytes` is free. They are accepted again once a tenth
more than that is free; the difference prevents flapping. Asking the file system costs a system
call. It is therefore asked again only after a quarter of the space above the reserve was written,
when the owner's timer fires, or when a write has failed.

A write can also fail although the file system shows free space: because of a quota, or because
space is reserved for root. Appends are then still attempted, because nothing else shows when there
is space again. But the broker must not count as a replica in the meantime: `lacks_room` stays true
until a test write (`probe`) has succeeded.

Other programs may still fill the disk. Deleting records needs a little space itself, for the
checkpoint that must be written first. So a small ballast file is kept, and is removed when the
checkpoint finds no space.
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
    """Decides whether appends may use more disk space."""

    def __init__(self, disk: Disk, directory: str, reserve_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._reserve = reserve_bytes
        self._ballast = f"{directory}/{BALLAST_NAME}"
        self.credit = 0
        """Bytes that may be written before the file system is asked again."""
        self.free_bytes = 0
        self.refusing = False
        self.shortages = 0
        """How often space became too little. A shortage may be over before anyone asks."""
        self._write_failed = False

    @property
    def lacks_room(self) -> bool:
        """Whether appends are refused, or a write failed for lack of space and no test write
        (`probe`) has succeeded since."""
        return self.refusing or self._write_failed

    def note_failed_write(self) -> None:
        """Records that a write failed for lack of space."""
        self.shortages += 1
        self._write_failed = True
        self.refusing = True
        self.check()

    def probe(self) -> None:
        """Asks the file system for the free space. If a write has failed, also makes a test
        write."""
        self.check()
        if self._write_failed and not self.refusing:
            self._write_failed = not self._takes(f"{self._directory}/{PROBE_NAME}")

    def _takes(self, path: str) -> bool:
        """Whether a file of `PROBE_BYTES` can be written. Removes it again."""
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
        """Asks the file system for the free space."""
        self.free_bytes = self._disk.free_bytes(self._directory)
        floor = self._reserve + self._reserve // 10 if self.refusing else self._reserve
        was_refusing, self.refusing = self.refusing, self.free_bytes - size < floor
        self.shortages += self.refusing and not was_refusing
        self.credit = max(0, self.free_bytes - self._reserve) // 4

    def explain(self) -> str:
        if self._write_failed and not self.refusing:
            return (
                f"a write under {self._directory} failed for lack of disk space "
                f"({self.free_bytes} bytes free): free space or lower retention, and check for a "
                "quota; appends resume automatically"
            )
        return (
            f"only {self.free_bytes} bytes are free under {self._directory} and {self._reserve} "
            "are kept in reserve: free space or lower retention; appends resume automatically"
        )

    def take_ballast(self) -> None:
        """Creates the ballast file if it is missing and there is space for it."""
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
        """Frees a little space in an emergency. Returns False if there is no ballast left."""
        try:
            self._disk.unlink(self._ballast)
        except OSError:
            return False
        return True
