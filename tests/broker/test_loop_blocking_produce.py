"""A large produce request does not block the event loop for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.records.batch import Codec
from penstock.records.record import Record, build_batch
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ProduceRequest, ProduceResponse

from .harness import NOW_MS, BrokerHarness, open_harness, with_harness
from .loop_blocking import at_best, check, counted_executor, occupation, piece_of_work_s

BIG = "big"
VERSION = 9
DEADLINE_S = 300.0
MANY = 20_000
BATCH_BYTES = 1 << 20


@asynccontextmanager
async def leading(directory: Path, partitions: int) -> AsyncIterator[BrokerHarness]:
    """Runs a broker that leads many partitions. They share one log, because creating thousands
    takes minutes.
    """
    with counted_executor():
        async with asyncio.timeout(patient(DEADLINE_S)), open_harness(directory) as harness:
            # Small segments, because the simulated disk copies a file whenever it grows.
            configs = {"durability": "replicated", "segment.bytes": str(8 << 20)}
            topic_id = await harness.create("one", configs=configs)
            replicas, image, like = (
                harness.broker.replicas,
                harness.services.image,
                harness.hosted("one"),
            )
            state = image.topics["one"].partitions[0]
            epoch, now_ms = replicas.broker_epoch, replicas.monotonic_ms()
            for index in range(partitions):
                hosted = HostedPartition(
                    BIG, topic_id, index, like.log, like.settings, replicas.flusher
                )
                hosted.lead(0, epoch, state, image.living, now_ms, 30_000)
                replicas._hosted[BIG, index] = hosted
            try:
                yield harness
            finally:
                for index in range(partitions):
                    del replicas._hosted[BIG, index]


def batch(size: int, codec: Codec = Codec.NONE) -> bytes:
    """Returns a batch of records of a kilobyte each, which compress well."""
    count = max(1, size // 1000)
    values = [f"{number:08d}".encode() * 120 for number in range(count)]
    records = [Record(at, NOW_MS + at, None, value) for at, value in enumerate(values)]
    return bytes(build_batch(records, codec=codec))


def request(batches: list[bytes], acks: int = -1) -> ProduceRequest:
    data = [ProduceRequest.Partition(index, each) for index, each in enumerate(batches)]
    return ProduceRequest(None, acks, 30_000, [ProduceRequest.Topic(BIG, partition_data=data)])


LARGE: dict[str, list[bytes]] = {
    "100 MB in 95 partitions": [batch(BATCH_BYTES)] * 95,
    "95 compressed batches of 1 MB": [batch(BATCH_BYTES, Codec.LZ4)] * 95,
    "20,000 partitions": [batch(1)] * MANY,
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_produce_request_does_not_block_the_event_loop(tmp_path: Path, name: str) -> None:
    batches = LARGE[name]

    async def run_case(folder: Path) -> None:
        async with leading(folder, len(batches)) as harness:
            await harness.ask(request(batches[:1]), VERSION, ProduceResponse)
            before_s = piece_of_work_s()
            answer, meter = await occupation(harness, request(batches), VERSION, ProduceResponse)
            check(meter, before_s)
            codes = [part.error_code for part in answer.responses[0].partition_responses]
            assert codes == [ErrorCode.NONE] * len(batches)

    at_best(run_case, tmp_path)


@with_harness
async def test_a_batch_that_was_truncated_during_its_request_is_not_acknowledged(
    harness: BrokerHarness,
) -> None:
    """One batch is in the log, and the next one is being checked on a thread. Meanwhile the broker
    loses the first partition, truncates the batch and leads the partition again. Another batch
    gets the same offset and is committed. The first batch must not be acknowledged in its place.
    """
    await harness.create("two", 2, {"max.message.bytes": "10000000"})
    checked, large_batches = asyncio.Event(), harness.services.large_batches
    run = large_batches.run

    def run_later(work: object, timeout_s: float) -> asyncio.Future[object]:
        async def wait() -> object:
            await checked.wait()
            return await run(work, timeout_s)  # type: ignore[arg-type]

        return asyncio.ensure_future(wait())

    large_batches.run = run_later  # type: ignore[method-assign, assignment]
    asked = request([batch(1), batch(BATCH_BYTES, Codec.GZIP)])
    asked.topic_data[0].name = "two"
    first, image, replicas = harness.hosted("two"), harness.services.image, harness.broker.replicas
    state = image.topics["two"].partitions[0]

    def lead(**changes: object) -> None:
        partition = replace(state, **changes)  # type: ignore[arg-type]
        first.lead(
            0, replicas.broker_epoch, partition, image.living, replicas.monotonic_ms(), 30_000
        )

    # Nothing is committed without the other replica, which does not exist.
    lead(leader_epoch=1, replicas=(0, 1), isr=(0, 1), member_epochs=(replicas.broker_epoch, 99))
    await harness.until(lambda: first.leadership is not None)
    produce = asyncio.ensure_future(harness.ask(asked, VERSION, ProduceResponse))
    await harness.until(lambda: first.log.end_offset == 1)
    first.resign()
    async with replicas.flusher.exclusive(first.log):
        first.log.truncate_to(0)
    lead(leader_epoch=2)
    assert await harness.produce("two", [b"another"]) == 0
    checked.set()
    codes = [part.error_code for part in (await produce).responses[0].partition_responses]
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE]
