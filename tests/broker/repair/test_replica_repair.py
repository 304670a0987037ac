"""Damaged replicas are found, leave the ISR, fetch the damaged records again and rejoin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from broker.replication.test_replication import on_three
from broker.three_brokers import NOW_MS, ThreeBrokers
from penstock.broker.repair.scrubber import Scrubber
from penstock.records.record import Record, build_batch
from penstock.storage.errors import LogDamaged
from penstock.storage.log import Log


@asynccontextmanager
async def scrubbing(cluster: ThreeBrokers, broker_id: int) -> AsyncIterator[Scrubber]:
    """Runs a scrubber with short pauses."""
    broker = cluster.broker(broker_id)
    scrubber = Scrubber(
        broker._env,
        broker_id,
        broker.cluster,
        broker.replicas,
        lambda: 64 << 20,
        broker._connector,
        rest_s=0.02,
    )
    task = asyncio.create_task(scrubber.run())
    try:
        yield scrubber
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def rot(cluster: ThreeBrokers, broker_id: int, offset: int) -> None:
    """Flips a bit in the batch at that offset, on the disk of that broker."""
    log = cluster.hosted(broker_id).log
    for segment in reversed(log.segments):
        if segment.base_offset <= offset:
            found = segment.locate(offset)
            assert found is not None
            position = found[0] + found[1].size - 1
            byte = segment.file.pread(1, position)[0]
            segment.file.pwrite(bytes([byte ^ 1]), position)
            return
    raise AssertionError(f"offset {offset} is not in {log}")


async def filled(cluster: ThreeBrokers, count: int = 40, minimum: str = "2") -> list[bytes]:
    await cluster.create(segment_bytes="2000", min_insync_replicas=minimum)
    values = [b"%d" % number + b"." * 150 for number in range(count)]
    for value in values:
        await cluster.produce(value)
    assert await cluster.all_equal() == values
    return values


@on_three()
async def test_a_damaged_follower_is_repaired(cluster: ThreeBrokers) -> None:
    """It leaves the ISR, fetches again from the damage on, and rejoins."""
    values = await filled(cluster)
    leader = cluster.partition().leader
    follower = next(each for each in (0, 1, 2) if each != leader)
    rot(cluster, follower, 17)
    async with scrubbing(cluster, follower):
        await cluster.until(lambda: bool(cluster.hosted(follower).log.damage))
        await cluster.until(lambda: follower not in cluster.partition().isr)
        await cluster.until(lambda: not cluster.hosted(follower).log.damage)
    await cluster.produce(b"after")
    assert await cluster.all_equal() == [*values, b"after"]
    await cluster.until(lambda: follower in cluster.partition().isr)


@on_three()
async def test_a_damaged_leader_hands_over_leadership_and_is_repaired(
    cluster: ThreeBrokers,
) -> None:
    """Another in-sync replica becomes the leader."""
    values = await filled(cluster)
    leader = cluster.partition().leader
    rot(cluster, leader, 3)
    async with scrubbing(cluster, leader):
        await cluster.until(lambda: cluster.partition().leader not in (-1, leader))
        await cluster.until(lambda: leader in cluster.partition().isr)
    assert cluster.hosted(leader).log.damage == []
    await cluster.produce(b"after")
    assert await cluster.all_equal() == [*values, b"after"]


@on_three()
async def test_damage_found_at_startup_is_repaired(cluster: ThreeBrokers) -> None:
    """Recovery quarantines it, and the replica is not in the ISR until it is repaired."""
    values = await filled(cluster)
    leader = cluster.partition().leader
    follower = next(each for each in (0, 1, 2) if each != leader)
    # The checkpoint says that everything below the end was synced, so the damage is no torn tail.
    cluster.hosted(follower).log.flush(checkpoint=True)
    rot(cluster, follower, 37)
    await cluster.nodes[follower].kill()
    await cluster.start(follower)
    damage = cluster.hosted(follower).log.damage
    assert [(held.start_offset, held.end_offset) for held in damage] == [(37, 38)]
    await cluster.produce(b"after")
    await cluster.until(lambda: follower in cluster.partition().isr)
    assert await cluster.all_equal() == [*values, b"after"]
    assert cluster.hosted(follower).log.damage == []


@on_three()
async def test_a_follower_that_differs_from_the_leader_is_found_by_comparison(
    cluster: ThreeBrokers,
) -> None:
    """Even if all its CRCs are correct."""
    values = await filled(cluster, 10)
    leader = cluster.partition().leader
    follower = next(each for each in (0, 1, 2) if each != leader)
    log = cluster.hosted(follower).log
    replace_batch(log, 4, b"%d" % 4 + b"!" * 150)
    async with scrubbing(cluster, follower) as scrubber:
        await cluster.until(lambda: cluster.hosted(follower).log.damage != [])
        assert scrubber.compared_batches >= 4
        await cluster.until(lambda: not cluster.hosted(follower).log.damage)
    await cluster.produce(b"after")
    assert await cluster.all_equal() == [*values, b"after"]


def replace_batch(log: Log, offset: int, value: bytes) -> None:
    """Replaces a batch by another valid one of the same size."""
    segment = next(held for held in reversed(log.segments) if held.base_offset <= offset)
    found = segment.locate(offset)
    assert found is not None
    epoch = log.epochs.epoch_at(offset)
    batch = build_batch([Record(offset, NOW_MS, b"k", value)], leader_epoch=epoch)
    assert len(batch) == found[1].size
    segment.file.pwrite(bytes(batch), found[0])


@on_three()
async def test_the_last_in_sync_replica_keeps_its_log_despite_damage(cluster: ThreeBrokers) -> None:
    """Without another in-sync replica nothing is discarded. What is not damaged is served."""
    values = await filled(cluster, minimum="1")
    leader = cluster.partition().leader
    for other in (0, 1, 2):
        if other != leader:
            await cluster.nodes[other].kill()
    await cluster.until(lambda: cluster.partition().isr == (leader,))
    rot(cluster, leader, 5)
    async with scrubbing(cluster, leader):
        await cluster.until(lambda: bool(cluster.hosted(leader).log.damage))
    await asyncio.sleep(1.5)
    log = cluster.hosted(leader).log
    assert [(held.start_offset, held.end_offset) for held in log.damage] == [(5, 6)]
    assert log.end_offset == len(values)
    await cluster.produce(b"after")


@on_three()
async def test_a_read_that_finds_damage_triggers_a_repair(cluster: ThreeBrokers) -> None:
    """Readers get the records from the next leader."""
    values = await filled(cluster)
    leader = cluster.partition().leader
    await cluster.nodes[leader].stop()
    await cluster.start(leader)
    await cluster.until(lambda: leader in cluster.partition().isr)
    # After a clean stop the log is opened without reading it. Bytes are checked when first read.
    rot(cluster, leader, 7)
    log = cluster.hosted(leader).log
    with pytest.raises(LogDamaged):
        log.read(7, 1000)
    await cluster.until(lambda: log.damage != [])
    await cluster.until(lambda: log.damage == [])
    await cluster.until(lambda: leader in cluster.partition().isr)
    assert await cluster.all_equal() == values
