"""Splits many records into several appends, because the size of a batch is limited.

This is only for records that are meaningful one by one, like tombstones of offsets, of which there
can be many. If some parts are appended and others fail, the image has the same parts as the log,
and the outcome is a failure: the caller retries with what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.groups.effects import LogRecord, Now
from penstock.records.batch import HEADER_SIZE
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.groups.core import Core, Outcome

_AROUND_RECORD_MAX: Final = 5 + 1 + 10 + 5 + 5 + 5 + 1
"""Length, attributes, timestamp, offset, lengths of key and value, number of headers."""


def record_bytes(record: LogRecord) -> int:
    """Returns how many bytes a record adds to a batch at most."""
    return _AROUND_RECORD_MAX + len(record.key) + len(record.value or b"")


def split(records: Iterable[LogRecord], batch_bytes_max: int) -> Iterator[list[LogRecord]]:
    """Yields parts that fit into a batch each; a record that fits into none is yielded alone."""
    part: list[LogRecord] = []
    size = HEADER_SIZE
    for record in records:
        grows = record_bytes(record)
        if part and size + grows > batch_bytes_max:
            yield part
            part, size = [], HEADER_SIZE
        part.append(record)
        size += grows
    if part:
        yield part


@dataclass(slots=True)
class Together:
    """One outcome for several appends, decided by the last report; one failure fails all."""

    outcome: Outcome
    left: int
    error: ErrorCode | None = None
    is_abandoned: bool = False

    def committed(self, core: Core, now: Now) -> None:
        self._one_less(core, now)

    def failed(self, core: Core, error: ErrorCode, now: Now) -> None:
        self.error = self.error or error
        self._one_less(core, now)

    def abandoned(self, core: Core, code: ErrorCode) -> None:
        if not self.is_abandoned:
            self.is_abandoned = True
            self.outcome.abandoned(core, code)

    def _one_less(self, core: Core, now: Now) -> None:
        self.left -= 1
        if self.left:
            return
        if self.error is None:
            self.outcome.committed(core, now)
        else:
            self.outcome.failed(core, self.error, now)
