"""What checks the log of coordinators while the invariants follow it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from penstock.records.record import Record
from penstock.sim.checkers.metadata_invariants import InvariantBroken


class CoordinatorLog(Protocol):
    """Checks the log of coordinators, batch by batch."""

    topic: str
    """The topic that the log belongs to."""
    names: dict[bytes, str]
    """By topic id: the names of all topics that there ever were."""
    broken: InvariantBroken | None
    """What a client saw that it may not see. The next check raises it."""

    def on_committed(self, partition_name: str, offset: int, records: Iterable[Record]) -> None: ...
