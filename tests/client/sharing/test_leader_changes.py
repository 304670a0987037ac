"""What a share consumer does when the leader of a partition dies, or another broker takes over.

The locks of these tests last ten minutes: whatever ends sooner does not wait for a lock.
"""

from __future__ import annotations

import asyncio

import pytest

from penstock.client.errors import ClientError, LockLost
from penstock.client.sharing import slow_requests
from penstock.client.sharing.acknowledgements import AckType
from penstock.client.sharing.leases import LeaseState

from .fake_leaders import FakeCluster
from .share_rig import consuming, run, settle, taken, until


def test_a_job_is_lost_at_once_when_its_leader_is_dead_and_another_leads() -> None:
    async def test(cluster: FakeCluster) -> None:
        cluster.nodes[1].to_deliver = [0]
        async with consuming(cluster) as consumer:
            lease = await taken(consumer)
            cluster.nodes[1].die()
            cluster.move_to(2)
            assert isinstance(await settle(consumer, lease), LockLost)

    run(test)


def test_an_acknowledgement_that_the_leader_took_with_it_is_lost_at_once() -> None:
    """The request is under way when the leader dies, and the metadata has changed before."""

    async def test(cluster: FakeCluster) -> None:
        first, second = cluster.nodes.values()
        first.to_deliver, first.hangs = [0], True
        async with consuming(cluster) as consumer:
            lease = await taken(consumer)
            outcome = asyncio.create_task(settle(consumer, lease))
            await first.asked.wait()
            cluster.move_to(2)
            second.to_deliver = [1]
            consumer.on_leader_changed()
            assert (await taken(consumer)).broker_id == 2
            first.die()
            assert isinstance(await outcome, LockLost)

    run(test)


@pytest.fixture
def soon_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_requests, "SLOW_S", 0.02)


def test_an_acknowledgement_under_way_to_a_frozen_leader_is_lost_when_another_leads(
    soon_slow: None,
) -> None:
    """Nobody says that the leader has changed: the client asks, because the answer takes long. It
    asks another broker. When the frozen one has gone, its connection ends without effect."""

    async def test(cluster: FakeCluster) -> None:
        first, second = cluster.nodes.values()
        first.to_deliver, first.hangs = [0], True
        async with consuming(cluster) as consumer:
            lease = await taken(consumer)
            outcome = asyncio.create_task(settle(consumer, lease))
            await first.asked.wait()
            await until(lambda: cluster.avoided == {1})
            assert not outcome.done()
            cluster.move_to(2)
            assert isinstance(await outcome, LockLost)
            assert lease.state is LeaseState.LOST
            second.to_deliver = [0]
            assert (await taken(consumer)).broker_id == 2
            assert not first.is_dead, "the request is still under way"
            first.die()

    run(test)


def test_an_acknowledgement_behind_a_fetch_from_a_frozen_leader_is_lost_when_another_leads(
    soon_slow: None,
) -> None:
    async def test(cluster: FakeCluster) -> None:
        first = cluster.nodes[1]
        first.to_deliver, first.hangs = [0], True
        async with consuming(cluster) as consumer:
            lease = await taken(consumer)
            first.hangs_at_fetch = True
            await first.fetch_hangs.wait()
            cluster.avoided = frozenset()  # On a busy machine an earlier fetch may have been slow.
            await until(lambda: cluster.avoided == {1})
            outcome: asyncio.Future[ClientError | None] = asyncio.Future()
            consumer.settle(lease, AckType.ACCEPT, outcome.set_result)
            cluster.move_to(2)
            assert isinstance(await outcome, LockLost)
            assert not first.asked.is_set()
            first.die()

    run(test)


def test_acknowledgements_wait_while_no_other_leader_is_known() -> None:
    """A leader that is gone for a moment still may have the lock."""

    async def test(cluster: FakeCluster) -> None:
        node = cluster.nodes[1]
        node.to_deliver = [0]
        async with consuming(cluster) as consumer:
            lease = await taken(consumer)
            node.is_dead = True
            outcome = asyncio.create_task(settle(consumer, lease))
            await until(lambda: cluster.refused >= 3)
            assert not outcome.done()
            node.is_dead = False
            assert await outcome is None
            assert node.accepted == [0]

    run(test)


def test_jobs_of_a_leader_that_has_changed_are_not_handed_out() -> None:
    """The new leader delivers them again; a caller must not get the old delivery in between."""

    async def test(cluster: FakeCluster) -> None:
        cluster.nodes[1].to_deliver = [0, 1]
        async with consuming(cluster) as consumer:
            held = await taken(consumer)
            cluster.move_to(2)
            consumer.on_leader_changed()
            await until(lambda: held.state is LeaseState.LOST)
            with pytest.raises(LockLost, match="another broker"):
                await settle(consumer, held)
            cluster.nodes[2].to_deliver = [1]
            again = await taken(consumer)
            assert (again.offset, again.broker_id) == (1, 2)
            assert await settle(consumer, again) is None

    run(test)


def test_a_record_that_comes_again_before_its_acknowledgement_is_handed_out_once() -> None:
    """The leader dropped its state and delivers the record again to the same member, whose
    acknowledgement waits to be repeated. It settles the second delivery."""

    async def test(cluster: FakeCluster) -> None:
        node = cluster.nodes[1]
        node.to_deliver = [0]
        async with consuming(cluster) as consumer:
            lease = await taken(consumer)
            node.to_deliver, node.delivers_first = [0], True
            assert await settle(consumer, lease) is None
            assert (node.to_deliver, node.accepted) == ([], [0])
            assert consumer.take_nowait() is None

    run(test)


def test_a_member_leaves_its_group_although_a_leader_is_gone() -> None:
    """Otherwise its partitions would wait for the end of its session at the coordinator."""

    async def test(cluster: FakeCluster) -> None:
        cluster.nodes[1].to_deliver = [0]
        async with consuming(cluster) as consumer:
            assert await settle(consumer, await taken(consumer)) is None
            consumer.stop_fetching()
            cluster.nodes[1].die()
        assert cluster.group.epochs[-1] == -1

    run(test)
