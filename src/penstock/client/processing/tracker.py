"""Tracks which records of each partition are in progress, and which offset is safe to commit. Pure.

A committed offset promises that every record below it has been processed. Records that are handled
concurrently finish in any order. So the offset to commit is not that of the last record to finish,
but the end of the unbroken run of finished records from the start: the *safe* offset. One slow
record holds it back, however many later ones have finished. After a crash those are returned again,
as at-least-once allows, but none is lost.

A `Window` covers one partition from its assignment to its revocation. A worker holds the window of
its record. So a record that finishes after its partition was revoked, and perhaps assigned again,
finishes in a window that is no longer used.

A partition that is revoked normally is closed: records that were not begun are not begun any more,
except where that would waste work. Records that finished above a gap would be returned and handled
again, so the gaps below the last record that was begun are filled first, if there is time.

Invariants: `safe` never passes an offset that was started and not finished, and never decreases.
`held` (started records above `safe`) is what bounds memory, not the number of records still being
handled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping

from penstock.topic_partition import TopicPartition


class Window:
    """The records of one partition that were started, in offset order."""

    __slots__ = ("_finished", "_started", "_until", "committed", "safe", "topic_partition")

    def __init__(self, topic_partition: TopicPartition, first: int) -> None:
        self.topic_partition = topic_partition
        self.safe = first
        """All records below this offset are done, so this is the offset to commit."""
        self.committed = first
        """The last committed offset; initially the offset of the first record."""
        self._until: int | None = None
        self._started: deque[int] = deque()
        self._finished: set[int] = set()

    @property
    def held(self) -> int:
        return len(self._started)

    @property
    def last(self) -> int:
        """The newest started offset, or the one before `safe` if none is held."""
        return self._started[-1] if self._started else self.safe - 1

    def start(self, offset: int) -> None:
        if offset <= self.last:
            raise ValueError(
                f"{self.topic_partition}: offset {offset} was started after {self.last}"
            )
        self._started.append(offset)

    @property
    def is_closed(self) -> bool:
        return self._until is not None

    def wants(self, offset: int) -> bool:
        """Returns whether this record still has to be handled."""
        return self._until is None or offset < self._until

    def close(self) -> None:
        """Closes the window because the partition was revoked, or will be: no more records are
        handled."""
        self._until = self.safe

    def close_gently(self, in_hand: Iterable[int]) -> None:
        """Closes the window, but still fills the gaps below records that have finished or are in
        hand."""
        if self._until is None:
            self._until = max((*self._finished, *in_hand), default=self.safe)

    def finish(self, offset: int) -> None:
        started, finished = self._started, self._finished
        if not started or offset != started[0]:
            finished.add(offset)
            return
        started.popleft()
        self.safe = offset + 1
        while started and started[0] in finished:
            self.safe = started.popleft()
            finished.remove(self.safe)
            self.safe += 1


class Tracker:
    """The windows of all assigned partitions."""

    def __init__(self) -> None:
        self._windows: dict[TopicPartition, Window] = {}

    @property
    def held(self) -> int:
        return sum(window.held for window in self._windows.values())

    def window(self, topic_partition: TopicPartition) -> Window | None:
        return self._windows.get(topic_partition)

    def windows(self, topic_partitions: Collection[TopicPartition] | None = None) -> list[Window]:
        """Returns the windows of these partitions, or of all partitions."""
        if topic_partitions is None:
            return list(self._windows.values())
        return [
            window
            for topic_partition in topic_partitions
            if (window := self._windows.get(topic_partition)) is not None
        ]

    def start(self, topic_partition: TopicPartition, offset: int) -> Window:
        """Notes that a record was received, and returns its window.

        An offset that is not above the earlier ones means that a seek or a reset moved the position
        back. Then the records in progress are obsolete, and a new window begins.
        """
        window = self._windows.get(topic_partition)
        if window is None or offset <= window.last:
            if window is not None:
                window.close()
            window = self._windows[topic_partition] = Window(topic_partition, offset)
        window.start(offset)
        return window

    def close(self, topic_partitions: Collection[TopicPartition]) -> list[Window]:
        """Closes the windows of revoked partitions. Records that finish from now on are ignored."""
        closed = self.windows(topic_partitions)
        for window in closed:
            window.close()
            del self._windows[window.topic_partition]
        return closed

    def committable(
        self, topic_partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """Returns the safe offsets that have changed since the last commit."""
        return {
            window.topic_partition: window.safe
            for window in self.windows(topic_partitions)
            if window.safe != window.committed
        }

    def mark_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        for topic_partition, offset in offsets.items():
            if (window := self._windows.get(topic_partition)) is not None:
                window.committed = offset
