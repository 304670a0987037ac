"""The task that follows the changes of quotas and drops idle meters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from penstock.broker.access.quotas import ClientQuotas
from penstock.metadata.image import Changed
from penstock.security.quotas import USER, Limits, QuotaEntity
from penstock.testing.slowness import patient

ALICE = QuotaEntity.of((USER, "alice"))
LIMITS: Limits = {"producer_byte_rate": 100.0}


class Cluster:
    """Quotas that a test changes."""

    def __init__(self) -> None:
        self.entities: dict[QuotaEntity, Limits] = {ALICE: LIMITS}
        self.image = SimpleNamespace(quotas=SimpleNamespace(entities=self.entities))
        self.listen_all: list[Callable[[Changed], None]] = []
        self.listen = self.listen_all.append

    def changed(self) -> None:
        for on_change in self.listen_all:
            on_change(Changed(quotas=True))


class Clock:
    """Every sleep ends when the test says so."""

    def __init__(self) -> None:
        self.sleeping: asyncio.Future[None] | None = None

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.sleeping = asyncio.get_running_loop().create_future()
        await self.sleeping

    def wake(self) -> None:
        sleeping, self.sleeping = self.sleeping, None
        assert sleeping is not None
        sleeping.set_result(None)


def is_measuring(quotas: ClientQuotas) -> bool:
    return quotas.current is not None


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(patient(30)):
        while not holds():  # noqa: ASYNC110 - what holds is no event
            await asyncio.sleep(0)


def test_the_task_survives_the_removal_of_the_last_quota() -> None:
    """The quota is removed while the task waits for its next sweep. Its error would end the broker:
    the simulator found this with seed 20001 and the focus `quotas`."""

    async def main() -> None:
        clock, cluster = Clock(), Cluster()
        env = SimpleNamespace(clock=clock, random=SimpleNamespace(bytes=bytes))
        quotas = ClientQuotas(cast(Any, env), cast(Any, cluster))
        await quotas.refresh()
        task = asyncio.create_task(quotas.run())
        await until(lambda: clock.sleeping is not None)
        cluster.entities.clear()
        cluster.changed()
        assert not is_measuring(quotas)
        clock.wake()
        cluster.entities[ALICE] = LIMITS
        await until(lambda: task.done() or not quotas._changed.is_set())
        cluster.changed()
        await until(lambda: task.done() or clock.sleeping is not None)
        assert not task.done()
        assert is_measuring(quotas)
        task.cancel()

    asyncio.run(main())
