"""Creates consumers that react fast, and records for them to read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from client.open_clusters import cluster_of
from penstock.client.consumer import Consumer
from penstock.client.model import Record
from penstock.records.record import Record as RawRecord
from penstock.records.record import build_batch
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ProduceRequest, ProduceResponse

T = TypeVar("T")
NOW_MS = 1_700_000_000_000
LIMIT_S = 125.0

QUICK: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "retry_backoff_ms": 5,
    "retry_backoff_max_ms": 50,
    "fetch_max_wait_ms": 100,
}
TIMEOUTS = {"request_timeout_ms": 30_000, "default_api_timeout_ms": 60_000}
"""On a quiet machine. Tests of timeouts give their own."""


NOT_YET = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def consumer_of(bootstrap: str, **options: Any) -> Consumer[Any, Any]:
    timeouts = {name: int(patient(ms)) for name, ms in TIMEOUTS.items()}
    return Consumer(bootstrap, **{**QUICK, **timeouts, **options})


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Runs the work to its end, with a time limit."""

    async def main() -> T:
        async with asyncio.timeout(patient(LIMIT_S)):
            return await work()

    return asyncio.run(main())


def batch_of(values: Sequence[bytes], **how: Any) -> bytearray:
    records = [RawRecord(at, NOW_MS + at, None, value) for at, value in enumerate(values)]
    return build_batch(records, **how)


async def produce(
    bootstrap: str, topic_partition: TopicPartition, *batches: bytes | bytearray
) -> None:
    """Writes batches to a partition with one acknowledged request each."""
    async with cluster_of(bootstrap) as cluster:
        connection = await cluster.connection(await cluster.leader(topic_partition))
        for batch in batches:
            part = ProduceRequest.Partition(topic_partition.partition, batch)
            topic = ProduceRequest.Topic(topic_partition.topic, partition_data=[part])
            request = ProduceRequest(None, -1, 10_000, [topic])
            code = None
            # The leader of a new partition may learn of it later than other brokers.
            while code is None or code in NOT_YET:
                answer = await connection.call(request, ProduceResponse)
                code = answer.responses[0].partition_responses[0].error_code
            assert code == 0, ErrorCode(code)


async def numbered(bootstrap: str, topic: str, partitions: int, count: int, per: int) -> None:
    """Writes the values "0", "1", ... to every partition, `per` records in each batch."""
    for partition in range(partitions):
        batches = [
            batch_of([b"%d" % number for number in range(first, min(first + per, count))])
            for first in range(0, count, per)
        ]
        await produce(bootstrap, TopicPartition(topic, partition), *batches)


async def drain(consumer: Consumer[Any, Any], count: int, **poll: Any) -> list[Record[Any, Any]]:
    """Polls until `count` records were returned, then checks that no more arrive."""
    found: list[Record[Any, Any]] = []
    while len(found) < count:
        found += await consumer.poll(**{"timeout_ms": 1_000, **poll})
    found += await consumer.poll(timeout_ms=20)
    assert len(found) == count
    return found


def values_by_partition(records: Sequence[Record[Any, Any]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(int(record.value))
    return found
