"""A coordinator returns a group's offsets only if no other coordinator can have accepted
commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from broker.three_brokers import ThreeBrokers, three_brokers
from penstock.metadata.image import Changed
from penstock.metadata.model import OFFSETS_TOPIC
from penstock.stores.errors import StoreUnreachable
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "offsets.commit.timeout.ms": str(round(patient(4_000))),
}
TIMEOUT_S = 150.0


def run_case(directory: Path, script: Callable[[ThreeBrokers, int], Awaitable[None]]) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(patient(TIMEOUT_S)),
            three_brokers(directory, SETTINGS) as cluster,
        ):
            await cluster.create("t", 1, 3)
            while not await is_coordinated(cluster):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
            await commit(cluster, 5)
            await script(cluster, cluster.partition(OFFSETS_TOPIC).leader)

    asyncio.run(run())


async def is_coordinated(cluster: ThreeBrokers) -> bool:
    request = FindCoordinatorRequest("g", 0)
    answer = await cluster.running[0].ask(request, 3, FindCoordinatorResponse)
    return answer.error_code == 0 and cluster._is_led(OFFSETS_TOPIC, 0)


async def commit(cluster: ThreeBrokers, offset: int) -> None:
    """Commits at the group's current coordinator until it succeeds."""
    part = OffsetCommitRequest.Partition(0, offset, committed_metadata="")
    request = OffsetCommitRequest("g", topics=[OffsetCommitRequest.Topic("t", partitions=[part])])
    while True:
        leader = cluster.partition(OFFSETS_TOPIC).leader
        if leader >= 0:
            answer = await cluster.nodes[leader].ask(request, 7, OffsetCommitResponse)
            if answer.topics[0].partitions[0].error_code == ErrorCode.NONE:
                return
        await asyncio.sleep(0.01)


async def ask(cluster: ThreeBrokers, broker_id: int) -> tuple[int, int | None]:
    """Returns a broker's error code and committed offset."""
    wanted = OffsetFetchRequest.GroupTopic("t", partition_indexes=[0])
    request = OffsetFetchRequest(groups=[OffsetFetchRequest.Group("g", topics=[wanted])])
    answer = await cluster.nodes[broker_id].ask(request, 8, OffsetFetchResponse)
    (group,) = answer.groups
    if group.error_code:
        return group.error_code, None
    return group.error_code, group.topics[0].partitions[0].committed_offset


def make_deaf(cluster: ThreeBrokers, broker_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the watch from updating this broker's image."""
    image = cluster.broker(broker_id).cluster.image
    monkeypatch.setattr(image, "apply", lambda *_: Changed())


def cut_off(cluster: ThreeBrokers, broker_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the store unreachable for this broker's reads."""

    async def away(*_: Any) -> Any:
        raise StoreUnreachable("cut off by a test")

    monkeypatch.setattr(cluster.broker(broker_id).cluster._store, "range", away)


async def depose(cluster: ThreeBrokers, broker_id: int) -> None:
    """Revokes the broker's lease and waits until another broker leads the offsets topic."""
    broker = cluster.broker(broker_id)
    other = next(node for node in cluster.running if node.broker_id != broker_id)
    assert other._store is not None
    await other._store.revoke_lease(broker.membership._commits.lease)
    await cluster.until(lambda: cluster.partition(OFFSETS_TOPIC).leader not in (-1, broker_id))


def test_a_deposed_coordinator_with_an_outdated_image_does_not_return_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(cluster: ThreeBrokers, leader: int) -> None:
        make_deaf(cluster, leader, monkeypatch)
        await depose(cluster, leader)
        await commit(cluster, 9)
        assert await ask(cluster, leader) == (ErrorCode.NOT_COORDINATOR, None)
        assert await ask(cluster, cluster.partition(OFFSETS_TOPIC).leader) == (0, 9)

    run_case(tmp_path, script)


def test_a_deposed_coordinator_that_cannot_reach_the_store_does_not_return_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(cluster: ThreeBrokers, leader: int) -> None:
        make_deaf(cluster, leader, monkeypatch)
        cut_off(cluster, leader, monkeypatch)
        await depose(cluster, leader)
        await commit(cluster, 9)
        assert await ask(cluster, leader) == (ErrorCode.NOT_COORDINATOR, None)

    run_case(tmp_path, script)


def test_without_the_store_offsets_are_returned_while_followers_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(cluster: ThreeBrokers, leader: int) -> None:
        cut_off(cluster, leader, monkeypatch)
        assert await ask(cluster, leader) == (0, 5)

    run_case(tmp_path, script)


def test_a_new_coordinator_that_has_not_loaded_its_shard_asks_clients_to_wait(
    tmp_path: Path,
) -> None:
    """Clients already send their requests to it. Not all of them look for another coordinator, but
    all retry COORDINATOR_LOAD_IN_PROGRESS.
    """

    async def script(cluster: ThreeBrokers, leader: int) -> None:
        services = cluster.broker(leader).services
        assert services is not None
        services.groups._shells.clear()
        assert await ask(cluster, leader) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None)
        follower = next(node.broker_id for node in cluster.running if node.broker_id != leader)
        assert await ask(cluster, follower) == (ErrorCode.NOT_COORDINATOR, None)

    run_case(tmp_path, script)
