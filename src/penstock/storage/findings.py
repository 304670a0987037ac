"""The findings of a verification. Each has a kind, a position, and advice what to do.

    error     records are lost, or wrong data is served, until an operator acts
    warning   something is wrong, and the next start of the broker repairs it
    info      worth knowing, but nothing is wrong

A broken file often has thousands of findings of the same kind. Only the first few of each kind and
file are kept; the rest are counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

KEPT_PER_KIND: Final = 5
RESTORE: Final = "restore this replica from another one, and check the disk"


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem, or one fact worth knowing."""

    severity: Severity
    code: str
    """A short name of the kind, for scripts."""
    path: str
    position: int | None
    """The position in the file, if there is one."""
    message: str


@dataclass(frozen=True, slots=True)
class LogReport:
    """What one log holds, and what is wrong with it."""

    directory: str
    topic: str | None
    partition: int | None
    topic_id: str | None
    segments: int
    batches: int
    records: int
    size_bytes: int
    log_start_offset: int | None
    end_offset: int | None
    """The offset that the next record would get; None if the directory has no segment."""
    recovery_point: int | None
    first_timestamp: int | None
    last_timestamp: int | None
    codecs: dict[str, int]
    """The number of batches for each codec."""
    clean_stop: bool
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        return all(finding.severity != Severity.ERROR for finding in self.findings)


class Findings:
    """Collects the findings of one log."""

    def __init__(self) -> None:
        self._kept: list[Finding] = []
        self._counts: Counter[tuple[str, str, Severity]] = Counter()

    def info(self, code: str, path: str, message: str, position: int | None = None) -> None:
        self.add(Severity.INFO, code, path, message, position)

    def warning(self, code: str, path: str, message: str, position: int | None = None) -> None:
        self.add(Severity.WARNING, code, path, message, position)

    def error(self, code: str, path: str, message: str, position: int | None = None) -> None:
        self.add(Severity.ERROR, code, path, message, position)

    def add(
        self, severity: Severity, code: str, path: str, message: str, position: int | None = None
    ) -> None:
        kind = (code, path, severity)
        self._counts[kind] += 1
        if self._counts[kind] <= KEPT_PER_KIND:
            self._kept.append(Finding(severity, code, path, position, message))

    def all(self) -> tuple[Finding, ...]:
        """Returns the kept findings, and one more for each kind of which some were only counted."""
        more = [
            Finding(severity, code, path, None, f"and {count - KEPT_PER_KIND} more of this kind")
            for (code, path, severity), count in self._counts.items()
            if count > KEPT_PER_KIND
        ]
        return (*self._kept, *more)
