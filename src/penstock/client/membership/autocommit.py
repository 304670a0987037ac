"""When to commit without being asked, and what. Pure.

Only what was handed out by earlier polls is committed, and only inside a later poll: by asking for
more the user says to be done with what came before. Offsets that have not moved since they were
last committed are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.client.model import OffsetAndMetadata, TopicPartition

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class AutoCommit:
    """One commit under way at a time; times are seconds of a monotonic clock."""

    def __init__(self, interval_ms: int, retry_ms: int, now: float) -> None:
        self._interval_s = interval_ms / 1000
        self._retry_s = retry_ms / 1000
        self._next_at = now + self._interval_s
        self._under_way = False
        self._committed: dict[TopicPartition, int] = {}

    def is_due(self, now: float) -> bool:
        return now >= self._next_at and not self._under_way

    def moved(self, consumed: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            place: position
            for place, position in consumed.items()
            if self._committed.get(place) != position.offset
        }

    def begin(self, consumed: Offsets, now: float) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit now; report how it went, unless it is nothing."""
        self._next_at = now + self._interval_s
        moved = self.moved(consumed)
        self._under_way = bool(moved)
        return moved

    def on_end(self, *, retriable: bool, now: float) -> None:
        """The commit that was begun has succeeded, or failed for good, or is worth another try."""
        self._under_way = False
        if retriable:
            self._next_at = min(self._next_at, now + self._retry_s)

    def on_committed(self, offsets: Offsets) -> None:
        """By anyone: the user's own commits count as much."""
        for place, position in offsets.items():
            self._committed[place] = position.offset

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """Others may commit these from now on."""
        for place in places:
            self._committed.pop(place, None)
