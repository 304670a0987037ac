"""Calls all rebalance listeners: those that were added, then the one given to `subscribe`.

When partitions are assigned, the added ones come first, so that the user's own seeks take effect.
When partitions are revoked they come first too, so that they can act while the partitions are still
owned.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.client.membership.listener import Listener
from penstock.topic_partition import TopicPartition


class Listeners:
    def __init__(self) -> None:
        self._added: list[tuple[object, Listener]] = []
        self._users = Listener()

    def set_users(self, listener: object | None) -> None:
        self._users = Listener.of(listener)

    def add(self, listener: object) -> None:
        self._added.append((listener, Listener.of(listener)))

    def remove(self, listener: object) -> None:
        self._added = [pair for pair in self._added if pair[0] is not listener]

    def as_listener(self) -> Listener:
        """Returns the listener that the group member calls."""
        return Listener(on_assigned=self.assigned, on_revoked=self.revoked, on_lost=self.lost)

    async def assigned(self, topic_partitions: Sequence[TopicPartition]) -> None:
        for each in self._all():
            await each.assigned(topic_partitions)

    async def revoked(self, topic_partitions: Sequence[TopicPartition]) -> None:
        for each in self._all():
            await each.revoked(topic_partitions)

    async def lost(self, topic_partitions: Sequence[TopicPartition]) -> None:
        for each in self._all():
            await each.lost(topic_partitions)

    async def positioned(self, topic_partitions: Sequence[TopicPartition]) -> None:
        """Tells only the added listeners about manually assigned partitions: the user knows
        already."""
        for _, each in list(self._added):
            await each.assigned(topic_partitions)

    def _all(self) -> list[Listener]:
        return [*(each for _, each in self._added), self._users]
