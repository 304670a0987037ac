"""A coordinator answers for a group's offsets only when no other can have taken commits since."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.creation import OFFSETS_TOPIC
from penstock.metadata.image import Changed
from penstock.stores.errors import StoreUnreachable
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

from .trio import Trio, trio

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "offsets.commit.timeout.ms": "1000",
}
TIMEOUT_S = 150.0


def play(directory: Path, script: Callable[[Trio, int], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(TIMEOUT_S), trio(directory, SETTINGS) as cluster:
            await cluster.create("t", 1, 3)
            while not await is_coordinated(cluster):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
            await commit(cluster, 5)
            await script(cluster, cluster.partition(OFFSETS_TOPIC).leader)

    asyncio.run(run())


async def is_coordinated(cluster: Trio) -> bool:
    request = FindCoordinatorRequest("g", 0)
    answer = await cluster.running[0].ask(request, 3, FindCoordinatorResponse)
    return answer.error_code == 0 and cluster._is_led(OFFSETS_TOPIC, 0)


async def commit(cluster: Trio, offset: int) -> None:
    """To whoever coordinates the group now, until it is taken."""
    part = OffsetCommitRequest.Partition(0, offset, committed_metadata="")
    request = OffsetCommitRequest("g", topics=[OffsetCommitRequest.Topic("t", partitions=[part])])
    while True:
        leader = cluster.partition(OFFSETS_TOPIC).leader
        if leader >= 0:
            answer = await cluster.nodes[leader].ask(request, 7, OffsetCommitResponse)
            if answer.topics[0].partitions[0].error_code == ErrorCode.NONE:
                return
        await asyncio.sleep(0.01)


async def ask(cluster: Trio, broker_id: int) -> tuple[int, int | None]:
    """What a broker answers: its code, and the offset."""
    wanted = OffsetFetchRequest.GroupTopic("t", partition_indexes=[0])
    request = OffsetFetchRequest(groups=[OffsetFetchRequest.Group("g", topics=[wanted])])
    answer = await cluster.nodes[broker_id].ask(request, 8, OffsetFetchResponse)
    (group,) = answer.groups
    if group.error_code:
        return group.error_code, None
    return group.error_code, group.topics[0].partitions[0].committed_offset


def make_deaf(cluster: Trio, broker_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch tells this broker nothing any more."""
    image = cluster.broker(broker_id).cluster.image
    monkeypatch.setattr(image, "apply", lambda *_: Changed())


def cut_off(cluster: Trio, broker_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor can it read anything."""

    async def away(*_: Any) -> Any:
        raise StoreUnreachable("cut off by a test")

    monkeypatch.setattr(cluster.broker(broker_id).cluster._store, "range", away)


async def depose(cluster: Trio, broker_id: int) -> None:
    """Its lease runs out, and the others go on without it."""
    broker = cluster.broker(broker_id)
    other = next(node for node in cluster.running if node.broker_id != broker_id)
    assert other._store is not None
    await other._store.revoke_lease(broker.membership._commits.lease)
    await cluster.until(lambda: cluster.partition(OFFSETS_TOPIC).leader not in (-1, broker_id))


def test_a_coordinator_that_is_told_late_does_not_answer_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(cluster: Trio, leader: int) -> None:
        make_deaf(cluster, leader, monkeypatch)
        await depose(cluster, leader)
        await commit(cluster, 9)
        assert await ask(cluster, leader) == (ErrorCode.NOT_COORDINATOR, None)
        assert await ask(cluster, cluster.partition(OFFSETS_TOPIC).leader) == (0, 9)

    play(tmp_path, script)


def test_one_that_is_cut_off_from_the_store_and_was_deposed_answers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(cluster: Trio, leader: int) -> None:
        make_deaf(cluster, leader, monkeypatch)
        cut_off(cluster, leader, monkeypatch)
        await depose(cluster, leader)
        await commit(cluster, 9)
        assert await ask(cluster, leader) == (ErrorCode.NOT_COORDINATOR, None)

    play(tmp_path, script)


def test_while_the_store_is_away_and_followers_follow_offsets_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(cluster: Trio, leader: int) -> None:
        cut_off(cluster, leader, monkeypatch)
        assert await ask(cluster, leader) == (0, 5)

    play(tmp_path, script)


def test_who_is_to_lead_and_has_not_opened_the_log_yet_says_so(tmp_path: Path) -> None:
    """Clients are sent there already: not all of them look for another one, but all try again."""

    async def script(cluster: Trio, leader: int) -> None:
        services = cluster.broker(leader).services
        assert services is not None
        services.groups._shells.clear()
        assert await ask(cluster, leader) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None)
        follower = next(node.broker_id for node in cluster.running if node.broker_id != leader)
        assert await ask(cluster, follower) == (ErrorCode.NOT_COORDINATOR, None)

    play(tmp_path, script)
