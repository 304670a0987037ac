"""The simulator's store keeps the contract of metadata stores."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

import pytest

from penstock.ports import MetadataStore
from penstock.sim.loop import SimLoop
from penstock.sim.store import SimStore, StoreConfig, StoreModel
from penstock.testing.slowness import patient

from .contract import StoreContract
from .store_bench import TIMEOUT_S, Scenario, StoreBench


class SimBench(StoreBench):
    """Uses virtual time: nothing waits for real time."""

    def __init__(self, seed: int = 1) -> None:
        self.seed = seed
        self.loop = SimLoop(Random(seed))
        self.model = StoreModel(self.loop, StoreConfig(), Random(seed))

    async def open(self) -> MetadataStore:
        return SimStore(self.model, "node")

    async def advance(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def forget_history(self, store: MetadataStore) -> None:
        self.model.compact()

    def fresh(self) -> SimBench:
        return SimBench(self.seed + 1)

    def close(self) -> None:
        self.loop.close()
        assert self.loop.unexpected == []

    def run(self, scenario: Scenario) -> None:
        async def main() -> None:
            one, two = await self.open(), await self.open()
            try:
                async with asyncio.timeout(patient(TIMEOUT_S)):
                    await scenario(one, two)
            finally:
                await one.close()
                await two.close()

        self.loop.run(main())


@pytest.fixture
def bench() -> Iterator[SimBench]:
    bench = SimBench()
    yield bench
    bench.close()


class TestSimStore(StoreContract):
    """Without faults it is a store like any other."""
