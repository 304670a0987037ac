"""All who want to hear of rebalances: those that were added, then the one the user subscribed with.

The added ones come first when partitions come, so that where the user seeks to is what counts, and
first when partitions go, so that what they still have to say about them is said while it counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.client.membership.listener import Listener
from penstock.client.model import TopicPartition


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
        """What a group's member calls."""
        return Listener(on_assigned=self.assigned, on_revoked=self.revoked, on_lost=self.lost)

    async def assigned(self, places: Sequence[TopicPartition]) -> None:
        for each in self._all():
            await each.assigned(places)

    async def revoked(self, places: Sequence[TopicPartition]) -> None:
        for each in self._all():
            await each.revoked(places)

    async def lost(self, places: Sequence[TopicPartition]) -> None:
        for each in self._all():
            await each.lost(places)

    async def positioned(self, places: Sequence[TopicPartition]) -> None:
        """Partitions assigned by hand: the user knows, only the added ones are told."""
        for _, each in list(self._added):
            await each.assigned(places)

    def _all(self) -> list[Listener]:
        return [*(each for _, each in self._added), self._users]
