"""How a share consumer stops and closes, in which requests acknowledgements go, and its room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.errors import ClientError, LockLost
from penstock.client.sharing import leader_link
from penstock.client.sharing.acknowledgements import Acknowledgement, AckType
from penstock.client.sharing.leases import LeaseState
from penstock.client.sharing.membership import SharePart
from penstock.wire.messages import ShareFetchRequest

from .fake_leaders import TOPIC_ID, FakeCluster, FakeLeader
from .share_rig import consuming, run, settle, taken, until

Outcome = asyncio.Future[ClientError | None]


class ParkingLeader(FakeLeader):
    """Keeps the fetches that ask for records until the test opens the gate."""

    def __init__(self, broker_id: int) -> None:
        super().__init__(broker_id)
        self.gate = asyncio.Event()
        self.parked = asyncio.Event()

    async def call(self, request: Any, kind: object, *, timeout_s: float | None = None) -> Any:
        if isinstance(request, ShareFetchRequest) and request.max_records:
            self.parked.set()
            await self.gate.wait()
        return await super().call(request, kind, timeout_s=timeout_s)


class BusyLeader(FakeLeader):
    """Every fetch brings a record of partition 0. Acknowledgements of partition 1 are noted."""

    def __init__(self, broker_id: int) -> None:
        super().__init__(broker_id)
        self.fetches = 0
        self.acknowledged_at: int | None = None
        """How many fetches came before the acknowledgement of partition 1."""

    async def call(self, request: Any, kind: object, *, timeout_s: float | None = None) -> Any:
        await asyncio.sleep(0.001)
        if isinstance(request, ShareFetchRequest) and request.max_records:
            self.to_deliver = [self.fetches % 50]
            self.fetches += 1
        for topic in request.topics:
            for part in topic.partitions:
                if part.partition_index == 1 and part.acknowledgement_batches:
                    self.acknowledged_at = self.fetches
        return await super().call(request, kind, timeout_s=timeout_s)


def test_a_job_that_arrives_after_the_stop_is_given_back_at_once() -> None:
    """An idle consumer has a fetch that waits at the broker. Nobody takes what it brings now."""

    async def test(cluster: FakeCluster) -> None:
        node = cluster.nodes[1] = ParkingLeader(1)
        async with consuming(cluster) as consumer:
            await node.parked.wait()
            consumer.stop_taking()
            node.to_deliver = [0, 1]
            node.gate.set()
            await until(lambda: not node.to_deliver and not len(consumer.leases))
            assert node.accepted == [0]
            assert await consumer.take() is None

    run(test)


@pytest.mark.parametrize(
    "where", ["under way", "together under way", "behind a fetch", "renewal under way"]
)
def test_no_caller_waits_for_a_consumer_that_has_closed(where: str) -> None:
    """The broker is frozen, so that close gives up. Whatever was not answered is lost then."""

    async def test(cluster: FakeCluster) -> None:
        node = cluster.nodes[1]
        node.to_deliver, node.hangs = [0, 1], True
        outcomes: list[Outcome] = [Outcome(), Outcome()]
        async with consuming(cluster) as consumer:
            leases = [await taken(consumer), await taken(consumer)]
            if where == "behind a fetch":
                node.hangs_at_fetch = True
                await until(lambda: consumer._links[1].is_fetching)
            if where == "renewal under way":
                consumer.renew(leases[0], outcomes[0].set_result)
            else:
                consumer.settle(leases[0], AckType.ACCEPT, outcomes[0].set_result)
            if where in ("under way", "renewal under way"):
                await node.asked.wait()
            consumer.settle(leases[1], AckType.ACCEPT, outcomes[1].set_result)
            if where == "together under way":
                await node.asked.wait()
            await consumer.close(0.05)
            assert [type(await each) for each in outcomes] == [LockLost, LockLost]
            await consumer.flush()
            assert {lease.state for lease in leases} == {LeaseState.LOST}

    run(test)


def test_jobs_cannot_be_settled_after_close_has_given_up() -> None:
    async def test(cluster: FakeCluster) -> None:
        node = cluster.nodes[1]
        node.to_deliver = [0]
        async with consuming(cluster) as consumer:
            lease = await taken(consumer)
            node.hangs_at_fetch = True
            await consumer.close(0.0)
            with pytest.raises(LockLost):
                await settle(consumer, lease)

    run(test)


def test_no_caller_waits_for_a_consumer_whose_tasks_have_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(cluster: FakeCluster) -> None:
        node = cluster.nodes[1]
        node.to_deliver, node.hangs = [0], True
        async with consuming(cluster) as consumer:
            outcome = asyncio.create_task(settle(consumer, await taken(consumer)))
            await node.asked.wait()

            def fail() -> bool:
                raise RuntimeError("a bug")

            monkeypatch.setattr(consumer, "_plan", fail)
            consumer.on_leader_changed()
            assert isinstance(await outcome, LockLost)
            with pytest.raises(ExceptionGroup):
                await consumer.take()

    run(test)


def test_an_acknowledgement_of_a_partition_that_is_not_assigned_any_more_is_sent_soon() -> None:
    """A busy queue always has room for the next fetch, and that fetch does not name the partition.
    The acknowledgement must not wait until its lock is over."""

    async def test(cluster: FakeCluster) -> None:
        node = cluster.nodes[1] = BusyLeader(1)
        async with consuming(cluster) as consumer:

            async def work() -> None:
                while (lease := await consumer.take()) is not None:
                    consumer.settle(lease, AckType.ACCEPT, lambda _: None)

            working = asyncio.create_task(work())
            await until(lambda: node.fetches >= 20)
            outcome = Outcome()
            before, deadline = node.fetches, cluster.clock.monotonic() + 600.0
            part = SharePart(TOPIC_ID, 1)
            given = Acknowledgement(part, 7, 7, AckType.ACCEPT, deadline, outcome.set_result)
            consumer._links[1].add(given)
            await until(lambda: node.fetches >= before + 20 or outcome.done())
            assert outcome.done()
            assert outcome.result() is None
            consumer.stop_fetching()
            await working

    run(test)


def test_the_room_of_a_fetch_is_taken_until_its_records_are_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another link must not use it meanwhile: the client would hold more than it may."""

    async def test(cluster: FakeCluster) -> None:
        monkeypatch.setattr(leader_link, "_INLINE_BYTES", 0)
        decoding, gate = asyncio.Event(), asyncio.Event()

        class Executor:
            async def run(self, work: Callable[[], Any]) -> Any:
                decoding.set()
                await gate.wait()
                return work()

        cluster.executor = Executor()
        cluster.nodes[1].to_deliver = [0, 1]
        async with consuming(cluster) as consumer:
            consumer.set_prefetch(2)
            await decoding.wait()
            assert consumer.leases.room(2, [2]) is None
            gate.set()
            await taken(consumer)

    run(test)
