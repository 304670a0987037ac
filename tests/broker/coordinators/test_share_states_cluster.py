"""Share coordinators on three brokers: states outlive their coordinator, and leaders are fenced."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.three_brokers import ThreeBrokers, three_brokers
from penstock.broker.context import Services
from penstock.broker.coordinators.share_keys import share_key
from penstock.metadata.model import SHARE_STATE_TOPIC
from penstock.shares.image import Delta, ShareImage, StoredSpan
from penstock.shares.state_port import CallOrder, SharePartitionId, StateSummary
from penstock.shares.states import RecordState
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.java import partition_of
from penstock.wire.messages import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

FIRST = CallOrder(1, 1)
PARTITIONS = 3
SETTINGS = {
    "share.coordinator.state.topic.num.partitions": str(PARTITIONS),
    "share.coordinator.snapshot.update.records.per.snapshot": "4",
}
TIMEOUT_S = 150.0
Play = Callable[[ThreeBrokers], Awaitable[None]]


def on_three(run_case: Play) -> Callable[[Path], None]:
    def test(tmp_path: Path) -> None:
        async def run() -> None:
            async with (
                asyncio.timeout(patient(TIMEOUT_S)),
                three_brokers(tmp_path, SETTINGS) as cluster,
            ):
                await run_case(cluster)

        asyncio.run(run())

    test.__name__, test.__doc__ = run_case.__name__, run_case.__doc__
    return test


def services(cluster: ThreeBrokers, broker_id: int) -> Services:
    found = cluster.broker(broker_id).services
    assert found is not None
    return found


async def share_partitions(cluster: ThreeBrokers, count: int) -> list[SharePartitionId]:
    await cluster.create("t", count)
    topic = services(cluster, cluster.running[0].broker_id).image.topics["t"]
    return [SharePartitionId("jobs", topic.topic_id, index) for index in range(count)]


def coordinator_of(cluster: ThreeBrokers, where: SharePartitionId) -> int:
    index = partition_of(share_key(where), PARTITIONS)
    return cluster.partition(SHARE_STATE_TOPIC, index).leader


def done(first: int, last: int) -> Delta:
    spans = (StoredSpan(first, last, RecordState.ACKNOWLEDGED, 1, 0),)
    return Delta(1, 0, last + 1, 0, spans)


async def refused(work: Awaitable[object]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        await work
    return caught.value.code


@on_three
async def test_a_state_outlives_its_coordinator(cluster: ThreeBrokers) -> None:
    """Every broker reaches every coordinator, the next one too when one is killed."""
    wheres = await share_partitions(cluster, 6)
    clients = [services(cluster, broker_id).share_state for broker_id in range(3)]
    await asyncio.gather(*(clients[0].initialize(where, 1, 0, FIRST) for where in wheres))
    await asyncio.gather(*(clients[1].read(where, 4) for where in wheres))
    for number in range(6):
        deltas = [clients[1].write(where, 4, done(number, number)) for where in wheres]
        await asyncio.gather(*deltas)
    killed = next(
        broker_id for where in wheres if (broker_id := coordinator_of(cluster, where)) != 1
    )
    await cluster.nodes[killed].kill()
    reader = clients[1]
    images = await asyncio.gather(*(reader.read(where, 4) for where in wheres))
    assert images == [ShareImage(1, 6, 6, 0) for _ in wheres]
    # The reader goes on, also at the coordinators that took over.
    await asyncio.gather(*(reader.write(where, 4, done(6, 9)) for where in wheres))
    other = clients[next(i for i in range(3) if i not in (1, killed))]
    summaries = await asyncio.gather(*(other.summary(where) for where in wheres))
    assert summaries == [StateSummary(1, 4, 10, 0) for _ in wheres]


@on_three
async def test_a_leader_that_was_replaced_is_fenced(cluster: ThreeBrokers) -> None:
    [where] = await share_partitions(cluster, 1)
    old, new = services(cluster, 0).share_state, services(cluster, 1).share_state
    await old.initialize(where, 1, -1, FIRST)
    assert (await old.read(where, 4)).start_offset == -1
    await old.write(where, 4, done(0, 3))
    assert (await new.read(where, 5)).start_offset == 4
    assert await refused(old.write(where, 4, done(4, 4))) == ErrorCode.FENCED_LEADER_EPOCH
    assert await refused(old.read(where, 4)) == ErrorCode.FENCED_LEADER_EPOCH
    # Having been fenced, it must read the state before it writes again.
    assert await refused(old.write(where, 6, done(4, 4))) == ErrorCode.FENCED_STATE_EPOCH
    await new.write(where, 5, done(4, 4))
    image = await new.read(where, 5)
    assert image.start_offset == 5
    image.truncate(2)
    await new.replace(where, 5, image)
    assert (await old.summary(where)) == StateSummary(1, 5, 2, 0)
    await old.delete(where, CallOrder(1, 2))
    assert await new.summary(where) is None
    assert await refused(new.read(where, 5)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@on_three
async def test_the_states_of_a_deleted_topic_are_removed(cluster: ThreeBrokers) -> None:
    wheres = await share_partitions(cluster, 4)
    client = services(cluster, 2).share_state
    await asyncio.gather(*(client.initialize(where, 1, 0, FIRST) for where in wheres))

    def held() -> int:
        return sum(
            len(shell.shard.states)
            for node in cluster.running
            for shell in services(cluster, node.broker_id).share_coordinator.loaded()
        )

    assert held() == len(wheres)
    answer = await cluster.nodes[0].ask(
        DeleteTopicsRequest(topic_names=["t"], timeout_ms=10_000), 5, DeleteTopicsResponse
    )
    assert answer.responses[0].error_code == 0
    await cluster.until(lambda: held() == 0)
    assert await refused(client.initialize(wheres[0], 2, 0, FIRST)) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


@on_three
async def test_brokers_find_the_coordinator_of_a_share_partition(cluster: ThreeBrokers) -> None:
    [where] = await share_partitions(cluster, 1)
    await services(cluster, 0).share_state.initialize(where, 1, 0, FIRST)

    async def find(key: str, version: int = 6) -> FindCoordinatorResponse.Coordinator:
        request = FindCoordinatorRequest(key_type=2, coordinator_keys=[key])
        answer = await cluster.nodes[0].ask(request, version, FindCoordinatorResponse)
        return answer.coordinators[0]

    found = await find(share_key(where))
    assert (found.error_code, found.node_id) == (0, coordinator_of(cluster, where))
    assert (await find("jobs")).error_code == ErrorCode.INVALID_REQUEST
    assert (await find(share_key(where), 5)).error_code == ErrorCode.INVALID_REQUEST
    configs = services(cluster, 0).image.topics[SHARE_STATE_TOPIC].configs
    assert dict(configs)["cleanup.policy"] == "delete"
    assert dict(configs)["retention.ms"] == "-1"
