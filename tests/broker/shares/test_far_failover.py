"""Jobs with far due times on three brokers, one of which is killed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from broker.shares.test_share_failover import SETTINGS, TIMEOUT_S, bootstrap
from broker.three_brokers import ThreeBrokers, three_brokers
from penstock import aio
from penstock.errors import ClientError
from penstock.metadata.model import SHARE_STATE_TOPIC
from penstock.shares import record_marks
from penstock.testing.slowness import patient

# A killed broker does not begin the requests that it has just read.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine '_serve' was never awaited")

JOBS = 40
FIRST_S = 3.0
"""After this the first of the far jobs is due. All are put before, even if the machine is busy."""
STEP_S = 0.1


class Work:
    def __init__(self) -> None:
        self.due_s: dict[bytes, float] = {}
        self.early: list[bytes] = []
        self.again: list[bytes] = []
        self.done: set[bytes] = set()
        self.unknown: set[bytes] = set()
        """Jobs that may be done."""

    async def take(self, queue: aio.Queue[bytes], count: int) -> None:
        """Takes jobs until this many are done, or may be."""
        while len(self.done | self.unknown) < count:
            await self.take_one(queue)

    async def take_one(self, queue: aio.Queue[bytes]) -> None:
        job = await queue.take(timeout_s=1.0)
        if job is None:
            return
        value = bytes(job.value or b"")
        if time.time() < self.due_s.get(value, 0.0):
            self.early.append(value)
        try:
            await job.done()
        except ClientError:
            # It comes again, or it is done and the answer was lost.
            self.unknown.add(value)
            return
        if value in self.done:
            self.again.append(value)
        self.done.add(value)


async def scenario(cluster: ThreeBrokers, killed: str) -> None:
    await cluster.create("t", penstock_timed_records="true")
    work = Work()
    async with aio.Queue(bootstrap(cluster), "t", prefetch=5) as queue:
        await queue.put(b"now")
        await work.take(queue, 1)
        puts, first_s = [], min(20.0, patient(FIRST_S))
        for number in range(JOBS):
            delay_s = first_s + STEP_S * (number * 7 % JOBS)
            work.due_s[b"%d" % number] = time.time() + delay_s
            puts.append(queue.put(b"%d" % number, delay=delay_s))
        await asyncio.gather(*puts)
        await work.take(queue, JOBS // 4)
        await cluster.nodes[cluster.partition(killed, 0).leader].kill()
        await queue.put(b"last")
        await work.take(queue, JOBS + 2)
        while (await queue.stats()).depth:
            await work.take_one(queue)
        brokers = [node.broker for node in cluster.nodes if node.broker is not None]
        assert sum(broker.shares.far.promoted for broker in brokers) > 0
    assert work.early == []
    assert work.again == []


@pytest.mark.parametrize("killed", ["t", SHARE_STATE_TOPIC])
def test_each_far_job_comes_when_it_is_due_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    """The leader of the partition is killed, or a share coordinator. All jobs are far here."""
    monkeypatch.setattr(record_marks, "FAR_MS", 200)

    async def run() -> None:
        async with (
            asyncio.timeout(patient(TIMEOUT_S)),
            three_brokers(tmp_path, SETTINGS) as cluster,
        ):
            await scenario(cluster, killed)

    asyncio.run(run())
