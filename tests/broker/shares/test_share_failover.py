"""A queue on three brokers whose leaders are killed while members work."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path

import pytest

from broker.three_brokers import ThreeBrokers, three_brokers
from penstock import aio
from penstock.errors import ClientError
from penstock.metadata.model import OFFSETS_TOPIC, SHARE_STATE_TOPIC
from penstock.testing.slowness import patient

# A killed broker does not begin the requests that it has just read.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine '_serve' was never awaited")

SETTINGS = {
    "share.coordinator.state.topic.num.partitions": "3",
    "offsets.topic.num.partitions": "3",
}
"""Locks last 30 s, which is longer than a test takes: no member waits for the end of one."""
TIMEOUT_S = 120.0
JOBS = 120


class Work:
    """What members have seen and done."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self.done: dict[bytes, float] = {}
        """Jobs for which the broker has answered that they are done, and when."""
        self.delivered_again: list[bytes] = []
        """Jobs that were delivered after they were done. There must be none."""
        self.under_way = asyncio.Event()

    async def take_part(self, queue: aio.Queue[bytes]) -> None:
        async for job in queue:
            value = bytes(job.value or b"")
            self.seen.add(value)
            # A job that was delivered before, and was done meanwhile, may still be in a buffer.
            if job._lease.acquired_at > self.done.get(value, math.inf):
                self.delivered_again.append(value)
            try:
                await job.done()
            except ClientError:
                # The lock is lost, or it is unknown whether the job is done. If it is not, it
                # comes again.
                continue
            self.done.setdefault(value, time.monotonic())
            if len(self.done) >= JOBS // 4:
                self.under_way.set()


async def until_empty(queue: aio.Queue[bytes]) -> None:
    """A job whose outcome is unknown may be done, and then it does not come again: so only the
    broker knows when everything is done."""
    while (await queue.stats()).depth:  # noqa: ASYNC110 - the broker tells nobody
        await asyncio.sleep(0.05)


def bootstrap(cluster: ThreeBrokers) -> str:
    return ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)


async def kill_while_records_are_acquired(cluster: ThreeBrokers, topic: str) -> None:
    """Kills the leader of partition 0 of a topic: of jobs, of share states or of groups."""
    await cluster.create("t", 3)
    work = Work()
    names = {b"%d" % number for number in range(JOBS)}
    async with (
        aio.Queue(bootstrap(cluster), "t", prefetch=20) as one,
        aio.Queue(bootstrap(cluster), "t", prefetch=20) as two,
        asyncio.TaskGroup() as tasks,
    ):
        await asyncio.gather(*(one.put(name, key=name) for name in names))
        held = [await one.take(), await two.take()]
        members = [tasks.create_task(work.take_part(queue)) for queue in (one, one, two, two)]
        await work.under_way.wait()
        await cluster.nodes[cluster.partition(topic, 0).leader].kill()
        # The records that were acquired and not finished come again. None is lost.
        for job in held:
            assert job is not None
            try:
                await job.retry()
            except ClientError:
                continue
        await until_empty(two)
        for member in members:
            member.cancel()
    assert work.seen == names
    assert work.delivered_again == []


def run_on_three(directory: Path, topic: str) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(patient(TIMEOUT_S)),
            three_brokers(directory, SETTINGS) as cluster,
        ):
            await kill_while_records_are_acquired(cluster, topic)

    asyncio.run(run())


def test_no_job_is_lost_when_the_leader_of_a_partition_is_killed(tmp_path: Path) -> None:
    run_on_three(tmp_path, "t")


def test_no_job_is_lost_when_a_share_coordinator_is_killed(tmp_path: Path) -> None:
    run_on_three(tmp_path, SHARE_STATE_TOPIC)


def test_no_job_is_lost_when_a_group_coordinator_is_killed(tmp_path: Path) -> None:
    run_on_three(tmp_path, OFFSETS_TOPIC)
