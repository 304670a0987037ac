"""Brokers with full disks: others lead meanwhile, and the full ones recover by themselves."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from broker.replication.test_replication import on_three
from broker.three_brokers import ThreeBrokers
from penstock.broker.repair.disk_full import DiskFullGuard
from penstock.runtime import SystemClock
from penstock.sim.disk.disk import SimDisk
from penstock.storage.space import SpaceGuard
from penstock.testing.slowness import patient


@contextmanager
def full_disk(cluster: ThreeBrokers, *broker_ids: int) -> Iterator[None]:
    """Makes the disks of these brokers full: only the reserve is left."""
    guards = [cluster.broker(broker_id)._directory.space for broker_id in broker_ids]
    for guard in guards:
        guard._reserve = 1 << 62
        guard.check()
    yield
    for guard in guards:
        guard._reserve = 0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.repair.disk_full.LOOK_S", 0.02)


@on_three()
async def test_a_leader_with_a_full_disk_is_replaced_and_comes_back(cluster: ThreeBrokers) -> None:
    """Another replica leads and accepts records. The full broker is out of the ISR until it has
    caught up.
    """
    await cluster.create(min_insync_replicas="2")
    await cluster.produce(b"before")
    full = cluster.partition().leader
    with full_disk(cluster, full):
        await cluster.until(lambda: full not in cluster.partition().isr)
        assert cluster.partition().leader not in (full, -1)
        await cluster.produce(b"meanwhile")
        assert cluster.values(full) == [b"before"]
    await cluster.until(lambda: full in cluster.partition().isr)
    assert await cluster.all_equal() == [b"before", b"meanwhile"]


@on_three()
async def test_a_follower_with_a_full_disk_leaves_the_isr(cluster: ThreeBrokers) -> None:
    """Producers wait neither for what it cannot store nor until it counts as lagging."""
    await cluster.create(min_insync_replicas="2")
    leader = cluster.partition().leader
    full = next(each for each in (0, 1, 2) if each != leader)
    with full_disk(cluster, full):
        await cluster.produce(b"meanwhile")
        await cluster.until(lambda: full not in cluster.partition().isr)
        assert cluster.partition().leader == leader
    await cluster.until(lambda: full in cluster.partition().isr)
    assert await cluster.all_equal() == [b"meanwhile"]


@on_three()
async def test_when_all_disks_are_full_the_last_replica_stays_in_the_isr(
    cluster: ThreeBrokers,
) -> None:
    """Leaderships are not passed around between brokers that cannot write either."""
    await cluster.create(min_insync_replicas="1")
    await cluster.produce(b"before")
    with full_disk(cluster, 0, 1, 2):
        await cluster.until(lambda: len(cluster.partition().isr) == 1)
        assert cluster.partition().leader == cluster.partition().isr[0]
    await cluster.until(lambda: len(cluster.partition().isr) == 3)
    await cluster.produce(b"after")
    assert await cluster.all_equal() == [b"before", b"after"]


@on_three(replica_lag_time_max_ms="600000")
async def test_records_are_committed_without_a_full_follower_before_it_counts_as_lagging(
    cluster: ThreeBrokers,
) -> None:
    """It leaves the ISR by itself, and the leader no longer waits for it."""
    await cluster.create(min_insync_replicas="2")
    await cluster.produce(b"before")
    await cluster.all_equal()
    leader = cluster.partition().leader
    full = next(each for each in (0, 1, 2) if each != leader)
    with full_disk(cluster, full):
        await cluster.produce(b"meanwhile")
        assert full not in cluster.partition().isr
    await cluster.until(lambda: full in cluster.partition().isr)
    assert await cluster.all_equal() == [b"before", b"meanwhile"]


LAG_S = patient(1.0)
"""Longer than the pauses of a busy machine, during which a follower counts as lagging."""


@on_three(replica_lag_time_max_ms=str(int(1_000 * LAG_S)))
async def test_a_follower_with_a_full_disk_stays_out_of_the_isr_while_it_is_full(
    cluster: ThreeBrokers,
) -> None:
    """Even if it has every record: it has not fetched since it left, so the leader does not add
    it.
    """
    await cluster.create(min_insync_replicas="1")
    await cluster.produce(b"before")
    await cluster.all_equal()
    leader = cluster.partition().leader
    full = next(each for each in (0, 1, 2) if each != leader)
    with full_disk(cluster, full):
        await cluster.until(lambda: full not in cluster.partition().isr)
        view = cluster.broker(leader).cluster
        await cluster.until(lambda: full not in view.image.topics["t"].partitions[0].isr)
        seen: list[tuple[int, ...]] = []
        view.listen(lambda _: seen.append(view.image.topics["t"].partitions[0].isr))
        for _ in range(40):
            await asyncio.sleep(LAG_S / 20)
            assert full not in cluster.partition().isr
        assert not any(full in isr for isr in seen)
    await cluster.until(lambda: full in cluster.partition().isr)


@on_three(replica_lag_time_max_ms="600000")
async def test_a_follower_over_its_disk_quota_leaves_the_isr_although_the_disk_has_space(
    cluster: ThreeBrokers,
) -> None:
    """With a quota, the file system reports space that this broker cannot use. A test write shows
    when there is space again.
    """
    await cluster.create(min_insync_replicas="2")
    await cluster.produce(b"before")
    await cluster.all_equal()
    leader = cluster.partition().leader
    full = next(each for each in (0, 1, 2) if each != leader)
    disk = cluster.nodes[full].disk
    disk.fail_next("pwrite", errno.EDQUOT, path_contains="/logs/", times=1_000_000)
    await cluster.produce(b"meanwhile")
    assert full not in cluster.partition().isr
    assert cluster.broker(full)._directory.space.lacks_room
    for _ in range(10):
        await asyncio.sleep(0.05)
        assert full not in cluster.partition().isr
    disk.heal()
    await cluster.until(lambda: full in cluster.partition().isr)
    assert await cluster.all_equal() == [b"before", b"meanwhile"]


class Looks(SystemClock):
    """A clock that lets the guard look once for every call of `look`."""

    def __init__(self) -> None:
        super().__init__()
        self._turns: asyncio.Queue[None] = asyncio.Queue()

    async def sleep(self, seconds: float) -> None:
        await self._turns.get()

    async def look(self) -> None:
        self._turns.put_nowait(None)
        for _ in range(5):
            await asyncio.sleep(0)


def test_a_shortage_that_is_over_before_the_next_look_resumes_replication() -> None:
    """A follower that could not fetch meanwhile fetches again only when it is told to."""
    clock, told = Looks(), list[object]()
    disk = SimDisk(Random(1), Random(2))
    disk.mkdir("/data")
    space = SpaceGuard(disk, "/data", 0)
    fetchers = SimpleNamespace(retry=told.append)
    env = SimpleNamespace(clock=clock)
    parts: tuple[Any, ...] = (env, ["orders-0"], None, fetchers, space)

    async def main() -> None:
        guard = asyncio.ensure_future(DiskFullGuard(*parts).run())
        await asyncio.sleep(0)
        await clock.look()
        assert told == []
        space._reserve = 1 << 62
        assert not space.allows(1)
        space._reserve = 0
        assert space.allows(1)
        assert not space.lacks_room
        await clock.look()
        assert told == ["orders-0"]
        await clock.look()
        assert told == ["orders-0"]
        guard.cancel()

    asyncio.run(main())
