"""Hands out producer ids, from blocks that the cluster reserves a thousand at a time."""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.broker.control.controller import ControllerRuntime
from penstock.metadata.producer_ids import allocate_producer_ids
from penstock.metadata.topic_ids import new_id
from penstock.ports import Random


class ProducerIds:
    def __init__(self, controller: ControllerRuntime, random: Random) -> None:
        self._controller = controller
        self._allocate = partial(allocate_producer_ids, taker_id=new_id(random.bytes))
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    def take(self) -> int | None:
        """Returns the next id, or None if a new block must be reserved first."""
        if self._next == self._end:
            return None
        self._next += 1
        return self._next - 1

    async def next(self) -> int:
        async with self._lock:
            while (taken := self.take()) is None:
                block = await self._controller.commit_own(self._allocate)
                self._next, self._end = block.first, block.first + block.count
            return taken
