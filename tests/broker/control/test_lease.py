"""A broker's lease: how it is kept and given back, and what happens when it is lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from broker.control.test_controller import create, epoch_of, only, renew_often
from broker.harness import TIMEOUT_S, BrokerHarness, open_harness, with_harness, with_harness_of
from penstock.broker.control.membership import Replaced
from penstock.metadata.cluster_values import encode_broker
from penstock.metadata.decisions import Change, Decision
from penstock.metadata.keys import broker_key
from penstock.stores.errors import StoreUnreachable
from penstock.testing.slowness import patient


@with_harness
async def test_a_lease_is_kept_by_renewing_it(harness: BrokerHarness) -> None:
    """The broker epoch stays the same."""
    membership = harness.broker.membership
    before = membership.broker_epoch
    renew_often(harness.broker)
    for _ in range(3):
        renewed_at = membership.renewed_at
        # The lambda is not used after this round.
        await harness.until(lambda: membership.renewed_at > renewed_at)  # noqa: B023
    assert membership.broker_epoch == before == epoch_of(harness, 0)


@with_harness_of(brokers=2)
async def test_a_broker_that_lost_its_lease_registers_again(harness: BrokerHarness) -> None:
    """It does so in the same process, under a new broker epoch. It leads its unreplicated
    partitions again in a new leader epoch, and has kept all records.
    """
    await create(harness, "alone", 1)
    await harness.broker.replicas.settled()
    await harness.produce("alone", [b"one"])
    leader = 0
    broker = harness.brokers[leader]
    before = broker.membership.broker_epoch
    term = harness.hosted("alone", broker=leader).leadership
    assert term is not None
    await broker.membership._env.store.revoke_lease(broker.membership._commits.lease)
    await harness.until(lambda: broker.membership.broker_epoch > before)
    assert epoch_of(harness, leader, seen_by=leader) == broker.membership.broker_epoch

    def leads_anew() -> bool:
        held = harness.hosted("alone", broker=leader).leadership
        return held is not None and held.epoch > term.epoch

    await harness.until(leads_anew)
    assert harness.hosted("alone", broker=leader).log.end_offset == 1
    registered = broker.cluster.image.brokers[leader]
    assert registered.has_kept(before)
    assert registered.has_synced(before)
    assert registered.has_asked_for_fsync(before)


@with_harness_of(kafka={"log.durability": "replicated"})
async def test_a_broker_with_replicated_durability_in_its_config_file_registers_that(
    harness: BrokerHarness,
) -> None:
    """It has kept what it had written, but what it had counted may not be synced."""
    broker = harness.broker
    before = broker.membership.broker_epoch
    await broker.membership._env.store.revoke_lease(broker.membership._commits.lease)
    await harness.until(lambda: broker.membership.broker_epoch > before)
    registered = broker.cluster.image.brokers[0]
    assert registered.has_kept(before)
    assert not registered.has_asked_for_fsync(before)


@with_harness
async def test_a_lost_lease_ends_all_leadership_first(harness: BrokerHarness) -> None:
    """Without a registration the broker leads nothing. A second loss is handled like the first, and
    a store that cannot be reached meanwhile only delays the registration.
    """
    await harness.create("alone")
    store = harness.broker.membership._env.store
    hosted = harness.hosted("alone")
    led_meanwhile = []
    grant = store.grant_lease
    refusals = [StoreUnreachable("not now"), StoreUnreachable("not yet")]

    async def grant_lease(ttl_s: float) -> int:
        led_meanwhile.append(hosted.leadership is not None)
        if refusals:
            raise refusals.pop()
        return await grant(ttl_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "grant_lease", grant_lease)
        patch.setattr("penstock.broker.control.membership._PUT_OFF_S", 0.01)
        for _ in range(2):
            before = harness.broker.membership.broker_epoch
            await store.revoke_lease(harness.broker.membership._commits.lease)
            # The lambda is not used after this round.
            await harness.until(lambda: harness.broker.membership.broker_epoch > before)  # noqa: B023
            await harness.until(lambda: hosted.leadership is not None)
    assert led_meanwhile == [False] * 4


@with_harness
async def test_a_renewal_after_the_lease_was_given_back_is_not_a_failure(
    harness: BrokerHarness,
) -> None:
    """A stopping broker gives its lease back before it answers the waiting requests. A renewal
    between the two finds no lease.
    """
    membership = harness.broker.membership
    keep_alive = membership._env.store.keep_alive
    begun, may_go_on = asyncio.Event(), asyncio.Event()
    answers: list[bool] = []
    started_over: list[bool] = []

    async def late(lease: int, carry_s: float = 0.0) -> bool:
        begun.set()
        await may_go_on.wait()
        answers.append(await keep_alive(lease, carry_s))
        return answers[-1]

    async def start_over(*_: object) -> None:
        started_over.append(True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(membership._env.store, "keep_alive", late)
        patch.setattr(membership, "_start_over", start_over)
        renew_often(harness.broker)
        await begun.wait()
        await membership.leave()
        may_go_on.set()
        await harness.until(lambda: bool(answers))
        await harness.until(lambda: epoch_of(harness, 0) == -1)
    assert answers == [False]
    assert started_over == []


def test_of_two_brokers_with_the_same_id_the_earlier_one_stops(tmp_path: Path) -> None:
    """They do not take the registration from each other in turn. The error says which process took
    over.
    """

    async def run_case() -> None:
        async with asyncio.timeout(patient(TIMEOUT_S)), open_harness(tmp_path) as harness:
            image = harness.broker.cluster.image
            other = replace(image.brokers[0], incarnation_id=bytes(16), port=9999)
            change = Change(broker_key(0), encode_broker(other), image.revision_of(broker_key(0)))
            await harness.broker.controller.commit_own(lambda _: Decision((change,), None))
            await harness.until(lambda: harness.broker._tasks is None)

    with pytest.raises(Replaced, match=r"at 127\.0\.0\.1:9999, has registered as broker 0"):
        asyncio.run(run_case())


@with_harness_of(brokers=3)
async def test_a_stopping_broker_hands_over_its_leaderships_first(harness: BrokerHarness) -> None:
    """It leads until another broker does, leaves the ISR, and is not elected again meanwhile."""
    await create(harness, "t", 3)
    before = only(harness, "t")
    leaving = harness.brokers[before.leader]
    seen: list[tuple[bool, int]] = []
    watcher = harness.brokers[(before.leader + 1) % 3].cluster
    watcher.listen(
        lambda _: seen.append(
            (before.leader in watcher.image.brokers, watcher.image.topics["t"].partitions[0].leader)
        )
    )
    await leaving._hand_over()
    assert leaving.cluster.image.stopping == {before.leader}
    after = leaving.cluster.image.topics["t"].partitions[0]
    assert after.leader != before.leader
    assert after.leader_epoch == before.leader_epoch + 1
    assert before.leader not in after.isr
    assert leaving.replicas.get("t", 0) is not None
    assert harness.hosted("t", broker=before.leader).leadership is None
    await harness.until(lambda: (True, after.leader) in seen)
    await leaving._leave()
    await harness.until(lambda: before.leader not in watcher.image.brokers)
    assert not watcher.image.stopping
    assert all(registered for registered, leader in seen if leader == before.leader)


@with_harness_of(brokers=2)
async def test_a_stopping_broker_with_the_only_replica_leads_until_it_stops(
    harness: BrokerHarness,
) -> None:
    """There is no other replica, and the stop does not wait for one."""
    await create(harness, "t", 1)
    leader = only(harness, "t").leader
    async with asyncio.timeout(patient(10)):
        await harness.brokers[leader]._hand_over()
    assert harness.hosted("t", broker=leader).leadership is not None


@with_harness_of(brokers=2, kafka={"controlled.shutdown.enable": "false"})
async def test_controlled_shutdown_can_be_disabled(harness: BrokerHarness) -> None:
    """Then the leaders are elected after the broker is gone."""
    await create(harness, "t", 2)
    await harness.brokers[0]._hand_over()
    assert not harness.broker.cluster.image.stopping
