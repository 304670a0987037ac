"""Verifies logs without changing them, for `penstock log verify` and other callers.

Everything that a starting broker would trust is compared with the batches, which are the truth:
their CRCs, offsets and epochs, the indexes, the small files, and the offsets that the checkpoint
vouches for. Bad bytes are a torn tail, which the next start cuts off, or damage. Verification
decides as recovery does (`torn_tail`).

A log that is in use can be verified. Data appended after its files were listed is not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from posixpath import basename, dirname

from penstock.ports import Disk
from penstock.storage.errors import CorruptFile, StorageError
from penstock.storage.findings import Finding, Findings, LogReport
from penstock.storage.inspect import find_logs, list_files
from penstock.storage.offset_checkpoint import OFFSETS, LogOffsets, read_offsets
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


@dataclass(slots=True)
class _Root:
    """What a directory of logs says about the logs in it."""

    offsets: dict[str, LogOffsets]
    flaw: tuple[str, str] | None = None
    """The path of a bad file, and what is wrong with it."""

    @classmethod
    def read(cls, disk: Disk, root: str) -> _Root:
        try:
            return cls(read_offsets(disk, root))
        except (CorruptFile, OSError) as error:
            return cls({}, (f"{root}/{OFFSETS}", str(error)))

    def report_once(self, findings: Findings) -> None:
        if self.flaw is not None:
            path, reason = self.flaw
            findings.warning(
                "bad-offsets", path, f"{reason}; the broker ignores it, and writes it again"
            )
            self.flaw = None


def _root(directory: str) -> str:
    return dirname(directory) or "."


def verify_directory(
    disk: Disk,
    path: str,
    *,
    deep: bool = False,
    progress: Callable[[Progress], None] | None = None,
    cache_is_intact: Callable[[str], bool] = lambda _: False,
) -> Verification:
    """Verifies the log at `path`, or every log below it. With `deep`, decodes the records too.

    `cache_is_intact` gets the directory of a log, and says whether the page cache still holds
    everything that was written to it.
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
    roots = {root: _Root.read(disk, root) for root in map(_root, directories)}
    for directory, entries in listed:
        root = roots[_root(directory)]
        findings = Findings()
        root.report_once(findings)

        def advance(size: int, directory: str = directory) -> None:
            nonlocal done
            done += size
            if progress is not None:
                progress(Progress(directory, done, max(total, done)))

        noted = root.offsets.get(basename(directory))
        verifier = LogVerifier(
            disk, directory, entries, deep, advance, noted, cache_is_intact(directory), findings
        )
        reports.append(verifier.run())
    return Verification(path, deep, tuple(reports))
