"""Limits the response bytes that all connections hold in memory together.

A response that its peer accepts at once costs nothing. Bytes that the peer does not accept stay in
memory until it does. Only these are counted, while the connection is paused. Bytes in files are not
counted, because they are read as the peer accepts them (`outbox`).

When the limit is exceeded, the connections that have made no progress for the longest time are
dropped until it holds again. They use memory for nothing, whereas a peer that reads moves to the
end of the queue with each byte it accepts. Connections of other brokers are never dropped for this,
and neither is the connection that was counted last, so a single large response can always be sent.
"""

from __future__ import annotations

from typing import Final, Protocol

MEMORY_SHORT: Final = (
    "has read no response for the longest time, and the memory for responses is used up"
)
"""Why a connection is dropped."""


class Holder(Protocol):
    """A connection, as the response budget sees it."""

    is_replica: bool
    """Whether the peer is a broker of the cluster that replicates a partition."""

    def drop_for_memory(self) -> None:
        """Closes the connection because its memory is needed."""


class ResponseBudget:
    """The budget of response bytes, and the connections that hold them."""

    __slots__ = ("_held", "bytes_max", "used")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._held: dict[Holder, int] = {}
        """Ordered by the time of their last progress, the oldest first."""

    @property
    def room(self) -> int:
        """How many more bytes may be held."""
        return max(0, self.bytes_max - self.used)

    @property
    def holders(self) -> int:
        return len(self._held)

    def hold(self, holder: Holder, size: int) -> None:
        """Records how much a connection holds now. It counts as progress if that is less than
        before, or if it is the first time."""
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
