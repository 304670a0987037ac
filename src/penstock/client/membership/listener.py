"""Callbacks for rebalances."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Self

from penstock.topic_partition import TopicPartition

Callback = Callable[[list[TopicPartition]], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Listener:
    """Callbacks that are called inside `poll`. `poll` waits for them and raises their errors.

    `on_assigned` receives the new partitions after every rebalance, even if there are none; it may
    seek. `on_revoked` receives partitions that are about to be revoked; it may still commit.
    `on_lost` receives partitions that were lost without notice; if it is not defined, `on_revoked`
    is called instead.
    """

    on_assigned: Callback | None = None
    on_revoked: Callback | None = None
    on_lost: Callback | None = None

    @classmethod
    def of(cls, given: object | None) -> Self:
        """Returns a listener for any object that has some of these methods."""
        if isinstance(given, cls):
            return given
        found = {name: getattr(given, name, None) for name in cls.__slots__}
        return cls(**found)

    async def assigned(self, topic_partitions: Sequence[TopicPartition]) -> None:
        await _call(self.on_assigned, topic_partitions)

    async def revoked(self, topic_partitions: Sequence[TopicPartition]) -> None:
        await _call(self.on_revoked, topic_partitions)

    async def lost(self, topic_partitions: Sequence[TopicPartition]) -> None:
        await _call(self.on_lost or self.on_revoked, topic_partitions)


async def _call(callback: Callback | None, topic_partitions: Sequence[TopicPartition]) -> None:
    if callback is not None:
        result = callback(list(topic_partitions))
        if inspect.isawaitable(result):
            await result
