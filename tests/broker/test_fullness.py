"""Brokers whose disks are full: others write, and they come back by themselves."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .test_replication import on_three
from .trio import Trio


@contextmanager
def full_disk(cluster: Trio, *broker_ids: int) -> Iterator[None]:
    """No byte is left on their disks but the reserve."""
    guards = [cluster.broker(broker_id)._directory.space for broker_id in broker_ids]
    for guard in guards:
        guard._reserve = 1 << 62
        guard.check()
    yield
    for guard in guards:
        guard._reserve = 0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.fullness.LOOK_S", 0.02)


@on_three()
async def test_a_full_leader_is_succeeded_and_comes_back(cluster: Trio) -> None:
    """Others lead and are written to; the full broker counts no more until it has caught up."""
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
async def test_a_full_follower_leaves_those_that_count(cluster: Trio) -> None:
    """Nobody waits for what it cannot store, nor until it counts as lagging."""
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
async def test_where_all_are_full_the_last_one_stays(cluster: Trio) -> None:
    """Partitions are not passed around between brokers that cannot write either."""
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
    cluster: Trio,
) -> None:
    """It leaves the in-sync set by itself, and the leader waits for it no more."""
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


@on_three(replica_lag_time_max_ms="100")
async def test_a_full_follower_stays_out_of_the_in_sync_set_while_it_is_full(
    cluster: Trio,
) -> None:
    """Also where it has everything: it has not fetched since it left, so it is not taken in."""
    await cluster.create(min_insync_replicas="1")
    await cluster.produce(b"before")
    await cluster.all_equal()
    leader = cluster.partition().leader
    full = next(each for each in (0, 1, 2) if each != leader)
    with full_disk(cluster, full):
        await cluster.until(lambda: full not in cluster.partition().isr)
        left = cluster.partition().partition_epoch
        for _ in range(20):
            await asyncio.sleep(0.05)
            found = cluster.partition()
            assert full not in found.isr
        assert found.partition_epoch == left
    await cluster.until(lambda: full in cluster.partition().isr)


@on_three(replica_lag_time_max_ms="600000")
async def test_a_follower_whose_writes_find_no_room_leaves_although_its_disk_shows_some(
    cluster: Trio,
) -> None:
    """As with a quota: the file system counts space that this broker cannot have. A test write
    tells when there is room again."""
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
