"""What a user may hear of rebalances."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Self

from penstock.client.model import TopicPartition

Callback = Callable[[list[TopicPartition]], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Listener:
    """Called inside `poll`, and `poll` waits for it; what it raises, `poll` raises.

    `on_assigned` hears of new partitions, after every rebalance, even if there are none; it may
    seek. `on_revoked` hears of partitions that are to go; it may still commit. `on_lost` hears of
    partitions that went without asking; without it `on_revoked` is told of these as well.
    """

    on_assigned: Callback | None = None
    on_revoked: Callback | None = None
    on_lost: Callback | None = None

    @classmethod
    def of(cls, given: object | None) -> Self:
        """From any object that has some of these methods."""
        if isinstance(given, cls):
            return given
        found = {name: getattr(given, name, None) for name in cls.__slots__}
        return cls(**found)

    async def assigned(self, places: Sequence[TopicPartition]) -> None:
        await _call(self.on_assigned, places)

    async def revoked(self, places: Sequence[TopicPartition]) -> None:
        await _call(self.on_revoked, places)

    async def lost(self, places: Sequence[TopicPartition]) -> None:
        await _call(self.on_lost or self.on_revoked, places)


async def _call(callback: Callback | None, places: Sequence[TopicPartition]) -> None:
    if callback is not None:
        result = callback(list(places))
        if inspect.isawaitable(result):
            await result
