"""Decides which records to handle next: in order within a lane, lanes concurrently. Pure.

Records are put into lanes: one per partition, one per key of a partition, or one per record,
depending on the ordering. A lane that is taken is busy until it is given back, and none of its
records are handed out meanwhile. So the records of a lane are handled one after the other, in the
order in which they arrived, including retries. Lanes take turns in the order in which they became
ready.

A lane stays busy until its work has ended, even if its partition was revoked and assigned again in
the meantime. So dropped records can never overtake the records that follow, or run concurrently
with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from penstock.topic_partition import TopicPartition

T = TypeVar("T")
Lane = tuple[TopicPartition, Hashable]
"""The partition comes first, so that all lanes of a revoked partition can be found."""


class Lanes(Generic[T]):
    def __init__(self) -> None:
        self._queues: dict[Lane, deque[T]] = {}
        self._ready: deque[Lane] = deque()
        self._busy: set[Lane] = set()

    @property
    def ready(self) -> int:
        """The number of lanes that could be taken now."""
        return len(self._ready)

    def put(self, lane: Lane, item: T) -> None:
        queue = self._queues.get(lane)
        if queue is not None:
            queue.append(item)
            return
        self._queues[lane] = deque((item,))
        if lane not in self._busy:
            self._ready.append(lane)

    def take(self, most: int) -> tuple[Lane, list[T]] | None:
        """Takes the next items, at most `most`, of a free lane. The lane is busy until
        `give_back`."""
        if not self._ready:
            return None
        lane = self._ready.popleft()
        self._busy.add(lane)
        queue = self._queues[lane]
        if len(queue) <= most:
            del self._queues[lane]
            return lane, list(queue)
        return lane, [queue.popleft() for _ in range(most)]

    def give_back(self, lane: Lane) -> None:
        self._busy.remove(lane)
        if lane in self._queues:
            self._ready.append(lane)

    def holds(self, topic_partition: TopicPartition) -> bool:
        """Returns whether any record of the partition waits in a lane."""
        return any(lane[0] == topic_partition for lane in self._queues)

    def drop(
        self, topic_partition: TopicPartition, keep: Callable[[T], bool] = lambda _: False
    ) -> None:
        """Drops the waiting items of a partition, except those for which `keep` returns True."""
        emptied: set[Lane] = set()
        for lane in [lane for lane in self._queues if lane[0] == topic_partition]:
            kept = deque(item for item in self._queues[lane] if keep(item))
            if kept:
                self._queues[lane] = kept
            else:
                del self._queues[lane]
                emptied.add(lane)
        if emptied:
            self._ready = deque(lane for lane in self._ready if lane not in emptied)
