"""A restarted broker knows its high watermarks and synced offsets without contacting other
brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.handlers.test_offsets_certain import SETTINGS, ask, commit, is_coordinated
from broker.repair.test_replica_repair import rot
from broker.three_brokers import ThreeBrokers, three_brokers
from penstock.metadata.model import OFFSETS_TOPIC
from penstock.records.batch import iter_batches
from penstock.records.record import read_records
from penstock.storage.offset_checkpoint import read_offsets
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import FetchRequest, FetchResponse

OFTEN = {"replica.high.watermark.checkpoint.interval.ms": "20", "min.insync.replicas": "2"}
TIMEOUT_S = 150.0
VALUES = [b"%d" % number for number in range(20)]


def run_case(directory: Path, script: Callable[[ThreeBrokers], Awaitable[None]]) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(patient(TIMEOUT_S)),
            three_brokers(directory, SETTINGS | OFTEN) as cluster,
        ):
            await cluster.create("t", 1, 3)
            for value in VALUES:
                await cluster.produce(value)
            await cluster.all_equal()
            await script(cluster)

    asyncio.run(run())


async def consume(cluster: ThreeBrokers, broker_id: int) -> list[bytes]:
    """Returns the values that a consumer gets from the start of the partition."""
    part = FetchRequest.Partition(0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        topics=[FetchRequest.Topic("t", partitions=[part])],
    )
    answer = await cluster.nodes[broker_id].ask(request, 11, FetchResponse)
    (found,) = answer.responses[0].partitions
    assert found.error_code == ErrorCode.NONE
    records = found.records
    assert isinstance(records, bytes | bytearray | memoryview)
    return [
        bytes(held.value or b"")
        for position, header in iter_batches(records)
        for held in read_records(records[position : position + header.size])
    ]


def noted(cluster: ThreeBrokers, broker_id: int, topic: str = "t") -> int:
    """Returns the high watermark in a broker's offset file."""
    found = read_offsets(cluster.nodes[broker_id].disk, "/data/logs").get(f"{topic}-0")
    return -1 if found is None else found.high_watermark


async def leave_alone(cluster: ThreeBrokers) -> int:
    """Stops all brokers but the partition's leader. Returns the leader's id."""
    survivor = cluster.partition().leader
    for node in cluster.nodes:
        if node.broker_id != survivor:
            await node.stop()
    await cluster.until(lambda: cluster._is_led("t", 0) and cluster.partition().leader == survivor)
    return survivor


@pytest.mark.parametrize("how", ["stop", "kill", "power loss"])
def test_a_lone_survivor_restarts_and_serves_committed_records(tmp_path: Path, how: str) -> None:
    """With min.insync.replicas=2 and no other broker, nothing can be committed. Everything that was
    committed before is readable, and the coordinator returns the group's offsets.
    """

    async def script(cluster: ThreeBrokers) -> None:
        while not await is_coordinated(cluster):  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
        await commit(cluster, 5)
        await cluster.all_equal(OFFSETS_TOPIC)
        survivor = await leave_alone(cluster)
        end = cluster.hosted(survivor, OFFSETS_TOPIC).log.end_offset
        if how == "stop":
            await cluster.nodes[survivor].stop()
        else:
            await cluster.until(lambda: noted(cluster, survivor) == len(VALUES))
            await cluster.until(lambda: noted(cluster, survivor, OFFSETS_TOPIC) == end)
            await cluster.nodes[survivor].kill(power_loss=how == "power loss")
        await cluster.start(survivor)
        await cluster.until(lambda: cluster._is_led("t", 0))
        assert await consume(cluster, survivor) == VALUES
        while await ask(cluster, survivor) != (0, 5):  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
        code, _ = await cluster.try_produce(survivor, b"more")
        assert code == ErrorCode.NOT_ENOUGH_REPLICAS

    run_case(tmp_path, script)


def test_damage_above_the_stored_recovery_point_is_fetched_again(tmp_path: Path) -> None:
    """A leader is killed, and a bit in a record that it had acknowledged flips. It restarts without
    a proof, and gets the damaged range from another replica.
    """

    async def script(cluster: ThreeBrokers) -> None:
        broken = cluster.partition().leader
        log = cluster.hosted(broken).log
        assert log.noted_point < 7 < log.recovery_point, "it is not in the log's own checkpoint"
        rot(cluster, broken, 7)
        await cluster.nodes[broken].kill()
        await cluster.start(broken)
        image = cluster.broker(broken).cluster.image
        assert image.brokers[broken].lossless_since == -1
        assert cluster.broker(broken)._directory.get("t", 0) is not None
        await cluster.until(
            lambda: broken in cluster.partition().isr and not cluster.hosted(broken).log.damage
        )
        assert await cluster.all_equal() == VALUES

    run_case(tmp_path, script)


def test_damage_in_the_only_replica_is_quarantined(tmp_path: Path) -> None:
    """What follows it stays readable, and no offset is used again."""

    async def script(cluster: ThreeBrokers) -> None:
        await cluster.create("single", 1, 1)
        for value in VALUES:
            await cluster.produce(value, topic="single")
        only = cluster.partition("single").leader
        log = cluster.hosted(only, "single").log
        found = log.active.locate(7)
        assert found is not None
        position = found[0] + found[1].size - 1
        byte = log.active.file.pread(1, position)[0]
        log.active.file.pwrite(bytes([byte ^ 1]), position)
        await cluster.nodes[only].kill()
        await cluster.start(only)
        await cluster.until(lambda: cluster._is_led("single", 0))
        log = cluster.hosted(only, "single").log
        assert [(held.start_offset, held.end_offset) for held in log.damage] == [(7, 8)]
        assert await cluster.produce(b"next", topic="single") == len(VALUES)
        assert log.read(8, 1 << 20) is not None

    run_case(tmp_path, script)
