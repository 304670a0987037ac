"""Delayed jobs and duplicates on three brokers whose leader is killed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from broker.shares.test_share_failover import SETTINGS, TIMEOUT_S, bootstrap
from broker.three_brokers import ThreeBrokers, three_brokers
from penstock import aio
from penstock.errors import ClientError
from penstock.testing.slowness import patient

# A killed broker does not begin the requests that it has just read.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine '_serve' was never awaited")

JOBS = 60
DELAY_S = 3.0


async def scenario(cluster: ThreeBrokers) -> None:
    await cluster.create("t", penstock_timed_records="true", penstock_dedup_window_ms="3600000")
    early: list[bytes | None] = []
    done: set[bytes | None] = set()
    async with aio.Queue(bootstrap(cluster), "t", prefetch=10) as queue:
        for number in range(JOBS):
            await queue.put(b"now %d" % number, dedup=f"{number}")
        before_s = time.time()
        await queue.put(b"later", delay=DELAY_S)
        first = await queue.take()
        assert first is not None
        await first.done()
        done.add(first.value)
        await cluster.nodes[cluster.partition("t", 0).leader].kill()
        for number in range(JOBS):
            await queue.put(b"again %d" % number, dedup=f"{number}")
        await queue.put(b"last")
        while len(done) < JOBS + 2:
            job = await queue.take(timeout_s=1.0)
            if job is None:
                continue
            if job.value == b"later" and time.time() < before_s + DELAY_S:
                early.append(job.value)
            try:
                await job.done()
            except ClientError:
                continue  # It comes again.
            done.add(job.value)
    assert not early
    assert done == {b"now %d" % number for number in range(JOBS)} | {b"later", b"last"}


def test_a_new_leader_knows_due_times_and_duplicates(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(patient(TIMEOUT_S)),
            three_brokers(tmp_path, SETTINGS) as cluster,
        ):
            await scenario(cluster)

    asyncio.run(run())
