"""Transactions on three brokers: markers reach all partitions, whichever broker fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import groupby
from pathlib import Path

import pytest

from broker.three_brokers import ThreeBrokers, three_brokers
from broker.transactional_producer import R, TransactionalProducer, contents
from penstock.broker.peers.connection import PeerLost
from penstock.testing.slowness import patient
from penstock.txns.formats import TOPIC
from penstock.wire.java import partition_of
from penstock.wire.messages.base import Request

SETTINGS = {
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
}
TIMEOUT_S = 150.0
Play = Callable[[ThreeBrokers, bool], Awaitable[None]]


class TrioCluster:
    def __init__(self, cluster: ThreeBrokers) -> None:
        self._trio = cluster

    async def ask_broker(
        self, broker: int, request: Request, version: int, response: type[R]
    ) -> R | None:
        if broker < 0 or not self._trio.nodes[broker].is_running:
            return None
        try:
            return await self._trio.nodes[broker].ask(request, version, response)
        except PeerLost:
            return None

    def leader(self, topic: str, index: int) -> int:
        return self._trio.partition(topic, index).leader

    def any_broker(self) -> int:
        return self._trio.running[0].broker_id


def both_ways(run_case: Play) -> Callable[[Path, bool], None]:
    @pytest.mark.parametrize("new", [True, False], ids=["v2", "before"])
    def test(tmp_path: Path, new: bool) -> None:
        async def run() -> None:
            async with (
                asyncio.timeout(patient(TIMEOUT_S)),
                three_brokers(tmp_path, SETTINGS) as cluster,
            ):
                await run_case(cluster, new)

        asyncio.run(run())

    test.__name__ = run_case.__name__
    test.__doc__ = run_case.__doc__
    return test


async def producer_of(cluster: ThreeBrokers, new: bool, name: str = "tx") -> TransactionalProducer:
    producer = TransactionalProducer(TrioCluster(cluster), name, new=new)
    assert await producer.init() == 0
    return producer


def coordinator_of(cluster: ThreeBrokers, name: str = "tx") -> int:
    return cluster.partition(TOPIC, partition_of(name, 3)).leader


async def settled(cluster: ThreeBrokers, told: list[str], partitions: int = 3) -> None:
    """Waits until every partition's log has this content, all of it readable with read_committed.

    A marker may be there twice: its first sender may have failed before it learned that the marker
    was written.
    """

    def all_told() -> bool:
        for index in range(partitions):
            leader = cluster.partition("t", index).leader
            if leader < 0 or not cluster.nodes[leader].is_running:
                return False
            hosted = cluster.broker(leader).replicas.get("t", index)
            if hosted is None or hosted.leadership is None:
                return False
            once = [word for word, _ in groupby(contents(hosted))]
            if hosted.last_stable_offset != hosted.log.end_offset or once != told:
                return False
        return True

    await cluster.until(all_told)


@both_ways
async def test_one_decision_ends_a_transaction_on_every_broker(
    cluster: ThreeBrokers, new: bool
) -> None:
    """All three brokers lead partitions of it, and any of them may lead the group's offsets."""
    await cluster.create("t", 3)
    producer = await producer_of(cluster, new)
    for commit in (True, False):
        for index in range(3):
            assert await producer.write("t", index, b"x") == 0
        assert await producer.send_offsets("g", "t", {0: 5 if commit else 9}) == [0]
        assert await producer.end(commit=commit) == 0
    assert await producer.fetch_offset("g", "t", wait=True) == (5, 0)
    await settled(cluster, ["x", "COMMIT", "x", "ABORT"])


@both_ways
async def test_a_transaction_survives_the_failure_of_its_coordinator(
    cluster: ThreeBrokers, new: bool
) -> None:
    """The coordinator is killed while a transaction is open, and then right after it decided to
    commit one.
    """
    await cluster.create("t", 3)
    producer = await producer_of(cluster, new)
    for index in range(3):
        assert await producer.write("t", index, b"open") == 0
    first = coordinator_of(cluster)
    await cluster.nodes[first].kill()
    assert await producer.end() == 0
    await settled(cluster, ["open", "COMMIT"])
    await cluster.start(first)
    # Of all partitions: the next coordinator needs two replicas in sync.
    await cluster.until(
        lambda: all(
            len(cluster.partition(topic, index).isr) == 3
            for topic in (TOPIC, "t")
            for index in range(3)
        )
    )
    for index in range(3):
        assert await producer.write("t", index, b"decided") == 0
    second = coordinator_of(cluster)
    assert await producer.end() == 0
    await cluster.nodes[second].kill()
    await settled(cluster, ["open", "COMMIT", "decided", "COMMIT"])
    assert await producer.init() == 0
    assert await producer.write("t", 0, b"more") == 0


@both_ways
async def test_transactional_offsets_survive_the_failure_of_the_group_coordinator(
    cluster: ThreeBrokers, new: bool
) -> None:
    """The next coordinator replays them as pending. The marker makes them count."""
    await cluster.create("t", 1)
    producer = await producer_of(cluster, new)
    assert await producer.send_offsets("g", "t", {0: 7}) == [0]
    index = cluster.broker(0).cluster.image.topics["__consumer_offsets"]
    indexes = range(len(index.partitions))
    holds = [
        index
        for index in indexes
        if cluster.hosted(
            cluster.partition("__consumer_offsets", index).leader, "__consumer_offsets", index
        ).log.end_offset
    ]
    leader = cluster.partition("__consumer_offsets", holds[0]).leader
    await cluster.nodes[leader].kill()
    offset, code = await producer.fetch_offset("g", "t")
    assert (offset, code) != (7, 0)
    assert await producer.end() == 0
    assert await producer.fetch_offset("g", "t", wait=True) == (7, 0)
