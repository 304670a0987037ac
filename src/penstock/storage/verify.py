"""Verifies logs without changing them, for `penstock log verify` and other callers.

Everything that a starting broker would trust is compared with the batches, which are the truth:
their CRCs, offsets and epochs, the indexes, the small files, and the offsets that the checkpoint
vouches for. Offsets at or above the recovery point were never promised to be on disk, so bad bytes
there are a torn tail that the next start cuts off. Bad bytes below it are damage.

A log that is in use can be verified. Data appended after its files were listed is not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.ports import Disk
from penstock.storage.errors import StorageError
from penstock.storage.findings import Finding, LogReport
from penstock.storage.inspect import find_logs, list_files
from penstock.storage.verify_log import LogVerifier, is_segment_data


class NotALog(StorageError):
    """There is no log at the given path."""


@dataclass(frozen=True, slots=True)
class Progress:
    directory: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Verification:
    path: str
    deep: bool
    logs: tuple[LogReport, ...]

    @property
    def sound(self) -> bool:
        return all(log.sound for log in self.logs)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for log in self.logs for finding in log.findings)


def verify_directory(
    disk: Disk,
    path: str,
    *,
    deep: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Verification:
    """Verifies the log at `path`, or every log below it. With `deep`, decodes the records too.

    Blocking, and reads everything, which may take long. Never writes.
    """
    directories = find_logs(disk, path)
    if not directories:
        raise NotALog(
            f"{path} holds no log: give the directory of a partition (TOPIC-PARTITION, with .log "
            "files in it) or a data directory with such directories below it"
        )
    listed = [(directory, list_files(disk, directory)) for directory in directories]
    total = sum(entry.size for _, entries in listed for entry in entries if is_segment_data(entry))
    done = 0
    reports = []
    for directory, entries in listed:

        def advance(size: int, directory: str = directory) -> None:
            nonlocal done
            done += size
            if progress is not None:
                progress(Progress(directory, done, max(total, done)))

        reports.append(LogVerifier(disk, directory, entries, deep, advance).run())
    return Verification(path, deep, tuple(reports))
