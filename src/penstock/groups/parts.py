"""Many records in several appends: a batch may be only so large, and tombstones can be many.

Only for records that mean something one by one, as tombstones of offsets do. Should the log take
some parts and refuse others, what it took is in the image as it is in the log, and the outcome has
failed: whoever asks again asks for what is left.
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
"""Length, attributes, time, offset, length of key and of value, number of headers."""


def record_bytes(record: LogRecord) -> int:
    """How much a record adds to a batch, at most."""
    return _AROUND_RECORD_MAX + len(record.key) + len(record.value or b"")


def split(records: Iterable[LogRecord], batch_bytes_max: int) -> Iterator[list[LogRecord]]:
    """Parts that fit a batch each; a record that fits none is a part of its own."""
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
    """One outcome for several appends, decided by the last of them; one failure is a failure."""

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
