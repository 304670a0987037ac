"""The client's side of a share session with one leader: its epoch and its partitions. Pure.

Fetches and acknowledgements of a session count up one epoch. A session begins with a fetch of epoch
0, which must not acknowledge anything. A request with epoch -1 ends it.

The epoch counts when a request is sent. If its outcome is unknown, or the leader refuses its epoch,
the session begins again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from penstock.client.sharing.membership import SharePart

NEW: Final = 0
FINAL: Final = -1
_EPOCH_MAX: Final = (1 << 31) - 1


class SessionFetch(NamedTuple):
    """What a fetch says about its session."""

    epoch: int
    added: list[SharePart]
    forgotten: list[SharePart]


class ShareSession:
    def __init__(self) -> None:
        self.epoch = NEW
        """The epoch of the next request."""
        self.parts: frozenset[SharePart] = frozenset()

    @property
    def is_open(self) -> bool:
        return self.epoch != NEW

    def fetch(self, wanted: Collection[SharePart]) -> SessionFetch:
        """Returns what a fetch of these partitions says. The fetch is sent next."""
        if not self.is_open:
            self.parts = frozenset()
        parts = frozenset(wanted)
        said = SessionFetch(self.epoch, sorted(parts - self.parts), sorted(self.parts - parts))
        self.parts = parts
        self._count()
        return said

    def acknowledge(self) -> int:
        """Returns the epoch of an acknowledgement that is sent next."""
        assert self.is_open
        epoch = self.epoch
        self._count()
        return epoch

    def lost(self) -> None:
        """Begins again with the next fetch."""
        self.epoch = NEW

    def _count(self) -> None:
        self.epoch = self.epoch + 1 if self.epoch < _EPOCH_MAX else 1
