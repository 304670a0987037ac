"""Replicas with damaged records: found, kept out of what counts, fetched again, verified."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.broker.scrubber import Scrubber
from penstock.records.record import Record, build_batch
from penstock.storage.errors import LogDamaged
from penstock.storage.log import Log

from .test_replication import on_three
from .trio import NOW_MS, Trio


@asynccontextmanager
async def scrubbing(cluster: Trio, broker_id: int) -> AsyncIterator[Scrubber]:
    """A scrubber that is in a hurry."""
    broker = cluster.broker(broker_id)
    scrubber = Scrubber(
        broker._env,
        broker_id,
        broker.cluster,
        broker.replicas,
        lambda: 64 << 20,
        rest_s=0.02,
    )
    task = asyncio.create_task(scrubber.run())
    try:
        yield scrubber
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def rot(cluster: Trio, broker_id: int, offset: int) -> None:
    """A bit of the batch at that offset turns over, on the disk of that broker."""
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


async def filled(cluster: Trio, count: int = 40, minimum: str = "2") -> list[bytes]:
    await cluster.create(segment_bytes="2000", min_insync_replicas=minimum)
    values = [b"%d" % number + b"." * 150 for number in range(count)]
    for value in values:
        await cluster.produce(value)
    assert await cluster.all_equal() == values
    return values


@on_three()
async def test_a_damaged_follower_is_mended(cluster: Trio) -> None:
    """It leaves the in-sync set, fetches again from the damage on, and joins."""
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
async def test_a_damaged_leader_hands_over_and_is_mended(cluster: Trio) -> None:
    """Another that is in sync leads; nobody is served the bad batch."""
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
async def test_damage_found_at_a_start_is_mended(cluster: Trio) -> None:
    """Recovery quarantines it, and the replica is not counted until it is whole."""
    values = await filled(cluster)
    leader = cluster.partition().leader
    follower = next(each for each in (0, 1, 2) if each != leader)
    # With a checkpoint, what lies below the end was safe on disk, and is no torn tail.
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
async def test_a_follower_that_differs_is_found_by_comparing(cluster: Trio) -> None:
    """Though every CRC of it is right."""
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
    """Another record in a batch's place, as large and as sound as the one that was there."""
    segment = next(held for held in reversed(log.segments) if held.base_offset <= offset)
    found = segment.locate(offset)
    assert found is not None
    epoch = log.epochs.epoch_at(offset)
    batch = build_batch([Record(offset, NOW_MS, b"k", value)], leader_epoch=epoch)
    assert len(batch) == found[1].size
    segment.file.pwrite(bytes(batch), found[0])


@on_three()
async def test_the_last_copy_is_kept(cluster: Trio) -> None:
    """With nobody else in sync nothing is thrown away: what is sound is served."""
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
async def test_a_read_that_meets_damage_has_the_log_checked(cluster: Trio) -> None:
    """Whoever wanted the records gets them from the next leader, and the damaged one is mended."""
    values = await filled(cluster)
    leader = cluster.partition().leader
    await cluster.nodes[leader].stop()
    await cluster.start(leader)
    await cluster.until(lambda: leader in cluster.partition().isr)
    # Of a log that was opened by trust, bytes are checked when they are first read.
    rot(cluster, leader, 7)
    log = cluster.hosted(leader).log
    with pytest.raises(LogDamaged):
        log.read(7, 1000)
    await cluster.until(lambda: log.damage != [])
    await cluster.until(lambda: log.damage == [])
    await cluster.until(lambda: leader in cluster.partition().isr)
    assert await cluster.all_equal() == values
