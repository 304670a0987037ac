"""Helpers of the producer tests: open producers, wait, and read back what was written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from client.fake_broker import FakeBroker
from client.open_clusters import cluster_of
from client.producing.model import Partition
from penstock.client.admin.offsets import LATEST, list_offsets
from penstock.client.producing.producer import Producer
from penstock.records.batch import BatchHeader, iter_batches, read_header
from penstock.records.record import read_records
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition
from penstock.wire.api import ApiKey
from penstock.wire.messages import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse
from penstock.wire.messages.base import Response

T = TypeVar("T")
LIMIT_S = 100.0
QUICK: dict[str, Any] = {
    "linger_ms": 0,
    "retry_backoff_ms": 5,
    "retry_backoff_max_ms": 20,
}
TIMEOUTS = {"request_timeout_ms": 30_000, "delivery_timeout_ms": 60_000, "max_block_ms": 30_000}
"""On a quiet machine. Tests of timeouts give their own."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine to its end, with a time limit."""

    async def main() -> T:
        async with asyncio.timeout(patient(LIMIT_S)):
            return await work

    return asyncio.run(main())


def producer_of(bootstrap: str, **options: Any) -> Producer[Any, Any]:
    timeouts = {name: int(patient(ms)) for name, ms in TIMEOUTS.items()}
    delivery_ms = options.get("delivery_timeout_ms", timeouts["delivery_timeout_ms"])
    timeouts["request_timeout_ms"] = min(timeouts["request_timeout_ms"], delivery_ms // 2)
    return Producer(bootstrap, **{**QUICK, **timeouts, **options})


def written(fake: FakeBroker, topic: str, partition: int = 0) -> list[bytes]:
    """Returns the values in a partition of the fake broker."""
    return [record.value for record in fake.model.topics[topic].logs[partition].records()]


def batches(fake: FakeBroker) -> list[BatchHeader]:
    """Returns the batch headers of all produce requests, in order."""
    return [
        read_header(part.records)
        for request in fake.asked(ApiKey.PRODUCE)
        for topic in request.topic_data
        for part in topic.partition_data
    ]


def strict(fake: FakeBroker) -> None:
    """Makes the fake broker check the sequences of producers, as real brokers do."""
    partitions: dict[tuple[str, int], Partition] = {}

    def produce(request: ProduceRequest, version: int) -> Response:
        answer = ProduceResponse()
        for topic in request.topic_data:
            results = []
            for part in topic.partition_data:
                log = fake.model.log(topic.name, part.index)
                assert log is not None
                partition = partitions.setdefault((topic.name, part.index), Partition())
                count = len(partition.values)
                code, offset = partition.write(part.records)
                if len(partition.values) > count:
                    log.append(part.records)
                results.append(ProduceResponse.Partition(part.index, code, offset))
            answer.responses.append(ProduceResponse.Topic(topic.name, partition_responses=results))
        return answer

    fake.model.produce = produce  # type: ignore[method-assign]


async def until(condition: Any, what: str) -> None:
    """Polls for a condition that another thread makes true."""
    loop = asyncio.get_running_loop()
    end = loop.time() + patient(30.0)
    while not condition():
        assert loop.time() < end, f"never happened: {what}"
        await asyncio.sleep(0.005)


async def all_of(deliveries: list[Any]) -> list[Any]:
    """Returns the outcome of each delivery: its metadata, or the error."""

    async def one(delivery: Awaitable[Any]) -> Any:
        return await delivery

    return await asyncio.gather(*map(one, deliveries), return_exceptions=True)


async def read_back(
    bootstrap: str, topic: str, partitions: int, *, at_least: int = 0
) -> list[list[Any]]:
    """Returns all records of a real broker's topic, by partition. Waits for `at_least` records,
    because with less than acks=all they may become readable later."""
    topic_partitions = [TopicPartition(topic, partition) for partition in range(partitions)]
    async with cluster_of(bootstrap) as cluster:
        while True:
            found = await list_offsets(cluster, dict.fromkeys(topic_partitions, LATEST))
            ends = {
                topic_partition: end.offset
                for topic_partition, end in found.items()
                if end is not None
            }
            if sum(ends.values()) >= at_least:
                return [
                    await _read(cluster, topic_partition, ends[topic_partition])
                    for topic_partition in topic_partitions
                ]
            await asyncio.sleep(0.01)


async def _read(cluster: Any, topic_partition: TopicPartition, end: int) -> list[Any]:
    records: list[Any] = []
    offset = 0
    while offset < end:
        leader = await cluster.connection(await cluster.leader(topic_partition))
        asked = FetchRequest.Partition(topic_partition.partition, fetch_offset=offset)
        asked.partition_max_bytes = 8 << 20
        request = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=64 << 20,
            topics=[FetchRequest.Topic(topic_partition.topic, partitions=[asked])],
        )
        answer = await leader.call(request, FetchResponse)
        data = bytes(answer.responses[0].partitions[0].records or b"")
        for position, header in iter_batches(data):
            records += read_records(data[position : position + header.size])
            offset = header.next_offset
    return records
