"""Tells the parts of the broker when a partition on it changes its role.

A leadership is pending until its leader epoch is durable. `all_begun` waits until none is pending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.partition.follower import Follower
from penstock.partition.leadership import Leadership

Listener = Callable[[HostedPartition], None]


class RoleChanges:
    """The listeners of this broker, and the partitions with a pending leadership."""

    def __init__(self) -> None:
        self._leading: list[Listener] = []
        self._resigned: list[Listener] = []
        self._any: list[Listener] = []
        self._temporary: dict[int, Listener] = {}
        self._beginning: dict[HostedPartition, None] = {}
        self._all_begun = asyncio.Event()
        self._all_begun.set()

    def on_leading(self, listener: Listener) -> None:
        """Registers a listener that is called when this broker begins to lead a partition."""
        self._leading.append(listener)

    def on_resigned(self, listener: Listener) -> None:
        """Registers a listener that is called when a leadership has ended. This broker may already
        lead the partition in a later leader epoch."""
        self._resigned.append(listener)

    def on_any(self, listener: Listener) -> None:
        """Registers a listener that is called when a partition changes its role or leader epoch."""
        self._any.append(listener)

    def listen(self, key: int, listener: Listener) -> None:
        """Like `on_any`, until `unlisten`."""
        self._temporary[key] = listener

    def unlisten(self, key: int) -> None:
        self._temporary.pop(key, None)

    async def all_begun(self) -> None:
        """Waits until no leadership is pending."""
        await self._all_begun.wait()

    def tell(
        self, hosted: HostedPartition, led: Leadership | None, followed: Follower | None
    ) -> None:
        """Calls the listeners if the role of the partition is no longer what it was before."""
        if hosted.machine.is_beginning:
            self._beginning[hosted] = None
            self._all_begun.clear()
        elif self._beginning:
            self._beginning.pop(hosted, None)
            if not self._beginning:
                self._all_begun.set()
        if hosted.leadership is led and hosted.follower is followed:
            return
        if led is not None:
            for listener in self._resigned:
                listener(hosted)
        if hosted.leadership is not None:
            for listener in self._leading:
                listener(hosted)
        for listener in (*self._any, *self._temporary.values()):
            listener(hosted)
