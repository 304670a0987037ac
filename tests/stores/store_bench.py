"""What the store tests share: one store, several handles, and short functions to use them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from penstock.ports import MetadataStore, Put, WatchEvent
from penstock.testing.slowness import patient

Scenario = Callable[[MetadataStore, MetadataStore], Awaitable[None]]
TIMEOUT_S = 100.0


class StoreBench(ABC):
    second_s = 1.0
    """The unit of the contract's times. It is longer if the store counts real time, so that a lease
    does not end by itself while a busy machine makes the test wait.
    """

    @abstractmethod
    async def open(self) -> MetadataStore:
        """Opens another handle on the same store."""

    @abstractmethod
    async def advance(self, seconds: float) -> None:
        """Lets this much time pass for leases."""

    @abstractmethod
    async def forget_history(self, store: MetadataStore) -> None:
        """Makes the store drop the changes before its present revision."""

    @abstractmethod
    def fresh(self) -> StoreBench:
        """Returns a bench like this one with an empty store."""

    @abstractmethod
    def close(self) -> None:
        """Releases the resources of the bench."""

    def run(self, scenario: Scenario) -> None:
        async def main() -> None:
            one, two = await self.open(), await self.open()
            try:
                async with asyncio.timeout(patient(TIMEOUT_S)):
                    await scenario(one, two)
            finally:
                await one.close()
                await two.close()

        asyncio.run(main())


async def put(store: MetadataStore, key: str, value: bytes, lease: int = 0) -> int:
    committed = await store.commit((), [Put(key, value, lease)])
    assert committed.succeeded
    return committed.revision


async def take(
    store: MetadataStore, prefix: str, from_revision: int, count: int
) -> list[WatchEvent]:
    """Returns the first events of a watch as one list."""
    events: list[WatchEvent] = []
    async for batch in store.watch(prefix, from_revision):
        events.extend(batch)
        if len(events) >= count:
            break
    return events


async def keys_of(store: MetadataStore, prefix: str = "") -> list[str]:
    return [entry.key for entry in (await store.range(prefix))[0]]


async def revision_of(store: MetadataStore) -> int:
    return (await store.range("/"))[1]
