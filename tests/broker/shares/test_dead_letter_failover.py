"""Dead letters on three brokers: the leader of a queue is killed between archiving and archived."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from broker.three_brokers import ThreeBrokers, three_brokers
from penstock import aio
from penstock.records.batch import iter_batches
from penstock.records.record import read_records
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode

pytestmark = pytest.mark.filterwarnings("ignore:coroutine '_serve' was never awaited")

SETTINGS = {
    "share.coordinator.state.topic.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
}
TIMEOUT_S = 120.0
JOBS = 7


def bootstrap(cluster: ThreeBrokers) -> str:
    return ",".join(f"127.0.0.1:{node.port}" for node in cluster.running)


async def set_up(cluster: ThreeBrokers) -> str:
    """Creates a queue and its dead-letter topic, whose leaders differ. Returns the latter."""
    await cluster.create("t", 1)
    number = 0
    while True:
        name = f"dlq.{number}"
        await cluster.create(name, 1, errors_deadletterqueue_group_enable="true")
        if cluster.partition(name).leader != cluster.partition("t").leader:
            break
        number += 1
    async with aio.Admin(bootstrap(cluster)) as admin:
        values = {"errors.deadletterqueue.topic.name": name}
        await admin.alter_configs(group="t", set_values=values)
    await cluster.until(
        lambda: all(
            "t" in cluster.broker(node.broker_id).cluster.image.group_configs
            for node in cluster.running
        )
    )
    return name


async def reject_all(cluster: ThreeBrokers) -> None:
    async with aio.Queue(bootstrap(cluster), "t") as queue:
        for number in range(JOBS):
            await queue.put(b"%d" % number)
        for _ in range(JOBS):
            job = await queue.take()
            assert job is not None
            await job.reject()


def letters(cluster: ThreeBrokers, topic: str) -> list[int]:
    """Returns the offsets that the dead letters name, in the order of the dead-letter topic."""
    leader = cluster.partition(topic).leader
    if leader < 0 or not cluster.nodes[leader].is_running:
        return []
    log = cluster.hosted(leader, topic).log
    found: list[int] = []
    offset = 0
    while (piece := log.read(offset, 1 << 20)) is not None:
        for position, header in iter_batches(piece.data):
            for record in read_records(piece.data[position : position + header.size]):
                found.append(int(dict(record.headers)["__dlq.errors.offset"] or b"-1"))
            offset = header.next_offset
    return found


async def kill_the_leader(cluster: ThreeBrokers, *, is_written: bool) -> None:
    topic = await set_up(cluster)
    leader = cluster.partition("t").leader
    sender = cluster.broker(leader).shares.letter_sender
    assert sender is not None
    append = sender.append
    at_the_letter = asyncio.Event()

    async def append_and_stop(
        where: TopicPartition,
        batches: Sequence[bytes | bytearray],
        topic_id: bytes | None = None,
    ) -> list[ErrorCode]:
        if is_written:
            assert await append(where, batches) == [ErrorCode.NONE] * len(batches)
        at_the_letter.set()
        return await asyncio.Future()

    sender.append = append_and_stop  # type: ignore[method-assign]
    await reject_all(cluster)
    await at_the_letter.wait()
    before = letters(cluster, topic)
    assert bool(before) == is_written
    await cluster.nodes[leader].kill()
    await cluster.until(lambda: len(set(letters(cluster, topic))) == JOBS)
    # What follows the last letter is that the records are archived.
    await cluster.until(lambda: is_empty(cluster))
    assert sorted(letters(cluster, topic)) == [*range(JOBS)]


def is_empty(cluster: ThreeBrokers) -> bool:
    """Whether no record of the queue is left on its leader."""
    leader = cluster.partition("t").leader
    if leader < 0 or not cluster.nodes[leader].is_running:
        return False
    leds = [*cluster.broker(leader).shares]
    return all(not led.groups or led.partition("t").start_offset == JOBS for led in leds)


@pytest.mark.parametrize("is_written", [False, True])
def test_each_letter_is_written_once_when_the_leader_is_killed(
    is_written: bool, tmp_path: Path
) -> None:
    """The letters go to another broker. With `is_written`, the first of them are there already. No
    member comes to the new leader: it finds by itself what is left to write."""

    async def run() -> None:
        async with (
            asyncio.timeout(patient(TIMEOUT_S)),
            three_brokers(tmp_path, SETTINGS) as cluster,
        ):
            await kill_the_leader(cluster, is_written=is_written)

    asyncio.run(run())
