"""Decides when to auto-commit, and which offsets. Pure.

Only records that earlier polls returned are committed, and only inside a later poll: by polling
again the user signals that the earlier records are processed. Offsets that have not changed since
their last commit are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.client.model import OffsetAndMetadata
from penstock.topic_partition import TopicPartition

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class AutoCommit:
    """At most one commit is in progress. Times are seconds of a monotonic clock."""

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
            topic_partition: position
            for topic_partition, position in consumed.items()
            if self._committed.get(topic_partition) != position.offset
        }

    def begin(self, consumed: Offsets, now: float) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns what to commit now. Unless it is empty, report the outcome with `on_end`."""
        self._next_at = now + self._interval_s
        moved = self.moved(consumed)
        self._under_way = bool(moved)
        return moved

    def on_end(self, *, retriable: bool, now: float) -> None:
        """Notes the outcome of the commit: success or final failure, or a failure worth a
        retry."""
        self._under_way = False
        if retriable:
            self._next_at = min(self._next_at, now + self._retry_s)

    def on_committed(self, offsets: Offsets) -> None:
        """Notes committed offsets. The user's own commits count as well."""
        for topic_partition, position in offsets.items():
            self._committed[topic_partition] = position.offset

    def forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Forgets these partitions: other members may commit them from now on."""
        for topic_partition in topic_partitions:
            self._committed.pop(topic_partition, None)
