"""Plays followers request by request: a test sends the fetches of brokers 1 and 2 to a leader.

The brokers are real and registered, but the harness has no network between them. So their replicas
seem to do exactly what the test sends in their name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.metadata.model import Partition
from penstock.records.record import Record, build_batch
from penstock.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
)

from .harness import NOW_MS, BrokerHarness

T = TypeVar("T")

PATIENT_MS = 600_000
"""For a request that must not time out, however busy the machine is."""
BROKER_EPOCHS = 17
"""The version of Fetch that brokers use. It carries the broker epoch."""


async def create_on(
    harness: BrokerHarness,
    *replicas: int,
    topic: str = "orders",
    configs: Mapping[str, str] | None = None,
) -> bytes:
    """Creates a topic of one partition on these brokers and returns its id. The first broker
    leads.
    """
    texts = [CreateTopicsRequest.Config(*item) for item in (configs or {}).items()]
    assigned = [CreateTopicsRequest.Assignment(0, [*replicas])]
    wanted = CreateTopicsRequest.Topic(topic, -1, -1, assigned, texts)
    created = await harness.ask(CreateTopicsRequest([wanted]), 7, CreateTopicsResponse)
    assert created.topics[0].error_code == 0, created.topics[0].error_message
    for broker in replicas:
        await harness.until(lambda broker=broker: _has_role(harness, topic, broker))  # type: ignore[misc]
    return created.topics[0].topic_id


def _has_role(harness: BrokerHarness, topic: str, broker: int) -> bool:
    hosted = harness.brokers[broker].replicas.get(topic, 0)
    return hosted is not None and (hosted.leadership or hosted.follower) is not None


def shown(harness: BrokerHarness, topic: str = "orders") -> Partition:
    """Returns the partition as the metadata has it."""
    return harness.broker.cluster.image.topics[topic].partitions[0]


def epoch_of(harness: BrokerHarness, broker: int) -> int:
    return harness.broker.cluster.image.brokers[broker].broker_epoch


async def follow(
    harness: BrokerHarness,
    replica: int,
    offset: int,
    *,
    topic: str = "orders",
    leader_epoch: int | None = None,
    broker_epoch: int | None = None,
    last: int = -1,
    log_start: int = 0,
    wait_ms: int = 0,
    version: int = BROKER_EPOCHS,
) -> FetchResponse.Partition:
    """Fetches as a follower that has everything below `offset`, and returns the leader's
    response.
    """
    partition = shown(harness, topic)
    asked = FetchRequest.Partition(
        0,
        current_leader_epoch=partition.leader_epoch if leader_epoch is None else leader_epoch,
        fetch_offset=offset,
        last_fetched_epoch=last,
        log_start_offset=log_start,
        partition_max_bytes=1 << 20,
    )
    topic_id = harness.broker.cluster.image.topics[topic].topic_id
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        topics=[FetchRequest.Topic("" if version >= 13 else topic, topic_id, [asked])],
    )
    if version >= 15:
        known = epoch_of(harness, replica) if broker_epoch is None else broker_epoch
        request.replica_state = FetchRequest.ReplicaState(replica, known)
    else:
        request.replica_id = replica
    response = await harness.ask(request, version, FetchResponse)
    assert response.error_code == 0
    return response.responses[0].partitions[0]


async def consume(
    harness: BrokerHarness,
    offset: int,
    *,
    topic: str = "orders",
    version: int = 12,
    rack: str = "",
    broker: int = 0,
    leader_epoch: int = -1,
    wait_ms: int = 0,
    min_bytes: int = 1,
) -> FetchResponse.Partition:
    """Returns the response that a consumer gets when it fetches from `offset`."""
    asked = FetchRequest.Partition(
        0, current_leader_epoch=leader_epoch, fetch_offset=offset, partition_max_bytes=1 << 20
    )
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        topics=[FetchRequest.Topic(topic, partitions=[asked])],
        rack_id=rack,
    )
    response = await harness.ask(request, version, FetchResponse, broker=broker)
    return response.responses[0].partitions[0]


async def produce(
    harness: BrokerHarness,
    values: Sequence[bytes] = (b"x",),
    *,
    topic: str = "orders",
    acks: int = -1,
    timeout_ms: int = PATIENT_MS,
    sequence: int | None = None,
) -> tuple[int, int]:
    """Produces one batch and returns the error code and the base offset.

    With `sequence`, the batch is an idempotent producer's.
    """
    records = [Record(at, NOW_MS + at, None, value) for at, value in enumerate(values)]
    if sequence is None:
        batch = build_batch(records)
    else:
        batch = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence)
    data = ProduceRequest.Partition(0, batch)
    request = ProduceRequest(
        None, acks, timeout_ms, [ProduceRequest.Topic(topic, partition_data=[data])]
    )
    produced = await harness.ask(request, 9, ProduceResponse)
    answer = produced.responses[0].partition_responses[0]
    return answer.error_code, answer.base_offset


@asynccontextmanager
async def under_way(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Runs a request that waits, while the test goes on. The request is cancelled if it is still
    waiting at the end of the block.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.sleep(0.02)
        yield task
    finally:
        if not task.done():
            task.cancel()


async def written(hosted: HostedPartition, end_offset: int) -> None:
    """Waits until the leader counts its own log up to this offset."""
    while hosted.machine.counted_end < end_offset:  # noqa: ASYNC110 - the harness's timeout is the deadline
        await asyncio.sleep(0.002)
