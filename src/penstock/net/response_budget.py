"""A bound on the response bytes that all connections hold in memory together.

A response that its peer takes at once costs nothing. What the peer does not take stays in memory
until it does: only then is it counted, while the connection is paused. Bytes in files are not
counted, because they are read as the peer takes them (`outbox`).

When the bound is passed, the connections that have made no progress for the longest time are
dropped until it holds again. They are the ones that cost memory for nothing: a peer that reads
moves to the end of the line with each byte it takes. Other brokers are never dropped for this, and
neither is the connection that was counted last, so a single large response can always be sent.
"""

from __future__ import annotations

from typing import Protocol


class Holder(Protocol):
    is_replica: bool
    """Whether the peer is a broker of the cluster that copies a partition."""

    def drop_for_memory(self) -> None:
        """The memory is needed: end the connection."""


class ResponseBudget:
    __slots__ = ("_held", "bytes_max", "used")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._held: dict[Holder, int] = {}
        """By the time of their last progress, the oldest first."""

    @property
    def room(self) -> int:
        """How much more may be held."""
        return max(0, self.bytes_max - self.used)

    @property
    def holders(self) -> int:
        return len(self._held)

    def hold(self, holder: Holder, size: int) -> None:
        """A connection holds this much now. It counts as progress if that is less than before, or
        the first time."""
        before = self._held.get(holder)
        if before is not None and size < before:
            del self._held[holder]
        self._held[holder] = size
        self.used += size - (before or 0)
        if self.used > self.bytes_max:
            self._make_room(holder)

    def release(self, holder: Holder) -> None:
        self.used -= self._held.pop(holder, 0)

    def _make_room(self, last: Holder) -> None:
        for holder in tuple(self._held):
            if self.used <= self.bytes_max:
                return
            if holder is not last and not holder.is_replica:
                self.release(holder)
                holder.drop_for_memory()
