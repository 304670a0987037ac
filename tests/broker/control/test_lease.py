"""A broker's lease: how it is kept and given back, and what happens when it is lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from broker.control.test_controller import create, epoch_of, only, renew_often
from broker.harness import TIMEOUT_S, BrokerHarness, on_stage, staged, staged_with
from penstock.broker.control.membership import Replaced
from penstock.metadata.cluster_values import encode_broker
from penstock.metadata.decisions import Change, Decision
from penstock.metadata.keys import broker_key
from penstock.stores.errors import StoreUnreachable
from penstock.testing.slowness import patient


@staged
async def test_a_lease_is_kept_by_renewing_it(stage: BrokerHarness) -> None:
    """The broker epoch stays the same."""
    membership = stage.broker.membership
    before = membership.broker_epoch
    renew_often(stage.broker)
    for _ in range(3):
        renewed_at = membership.renewed_at
        await stage.until(lambda: membership.renewed_at > renewed_at)  # noqa: B023
    assert membership.broker_epoch == before == epoch_of(stage, 0)


@staged_with(brokers=2)
async def test_a_broker_that_lost_its_lease_registers_again(stage: BrokerHarness) -> None:
    """It does so in the same process, under a new broker epoch. It leads its unreplicated
    partitions again in a new leader epoch, and has kept all records.
    """
    await create(stage, "alone", 1)
    await stage.broker.replicas.settled()
    await stage.produce("alone", [b"one"])
    leader = 0
    broker = stage.brokers[leader]
    before = broker.membership.broker_epoch
    term = stage.hosted("alone", broker=leader).leadership
    assert term is not None
    await broker.membership._env.store.revoke_lease(broker.membership._commits.lease)
    await stage.until(lambda: broker.membership.broker_epoch > before)
    assert epoch_of(stage, leader, seen_by=leader) == broker.membership.broker_epoch

    def leads_anew() -> bool:
        held = stage.hosted("alone", broker=leader).leadership
        return held is not None and held.epoch > term.epoch

    await stage.until(leads_anew)
    assert stage.hosted("alone", broker=leader).log.end_offset == 1
    registered = broker.cluster.image.brokers[leader]
    assert registered.has_kept(before)
    assert registered.has_synced(before)
    assert registered.has_asked_for_fsync(before)


@staged_with(kafka={"log.durability": "replicated"})
async def test_a_broker_with_replicated_durability_in_its_config_file_registers_that(
    stage: BrokerHarness,
) -> None:
    """It has kept what it had written, but what it had counted may not be synced."""
    broker = stage.broker
    before = broker.membership.broker_epoch
    await broker.membership._env.store.revoke_lease(broker.membership._commits.lease)
    await stage.until(lambda: broker.membership.broker_epoch > before)
    registered = broker.cluster.image.brokers[0]
    assert registered.has_kept(before)
    assert not registered.has_asked_for_fsync(before)


@staged
async def test_a_lost_lease_ends_all_leadership_first(stage: BrokerHarness) -> None:
    """Without a registration the broker leads nothing. A second loss is handled like the first, and
    a store that cannot be reached meanwhile only delays the registration.
    """
    await stage.create("alone")
    store = stage.broker.membership._env.store
    hosted = stage.hosted("alone")
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
            before = stage.broker.membership.broker_epoch
            await store.revoke_lease(stage.broker.membership._commits.lease)
            await stage.until(lambda: stage.broker.membership.broker_epoch > before)  # noqa: B023
            await stage.until(lambda: hosted.leadership is not None)
    assert led_meanwhile == [False] * 4


@staged
async def test_a_renewal_after_the_lease_was_given_back_is_not_a_failure(
    stage: BrokerHarness,
) -> None:
    """A stopping broker gives its lease back before it answers the waiting requests. A renewal
    between the two finds no lease.
    """
    membership = stage.broker.membership
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
        renew_often(stage.broker)
        await begun.wait()
        await membership.leave()
        may_go_on.set()
        await stage.until(lambda: bool(answers))
        await stage.until(lambda: epoch_of(stage, 0) == -1)
    assert answers == [False]
    assert started_over == []


def test_of_two_brokers_with_the_same_id_the_earlier_one_stops(tmp_path: Path) -> None:
    """They do not take the registration from each other in turn. The error says which process took
    over.
    """

    async def play() -> None:
        async with asyncio.timeout(TIMEOUT_S), on_stage(tmp_path) as stage:
            image = stage.broker.cluster.image
            other = replace(image.brokers[0], incarnation_id=bytes(16), port=9999)
            change = Change(broker_key(0), encode_broker(other), image.revision_of(broker_key(0)))
            await stage.broker.controller.commit_own(lambda _: Decision((change,), None))
            await stage.until(lambda: stage.broker._tasks is None)

    with pytest.raises(Replaced, match=r"at 127\.0\.0\.1:9999, has registered as broker 0"):
        asyncio.run(play())


@staged_with(brokers=3)
async def test_a_stopping_broker_hands_over_its_leaderships_first(stage: BrokerHarness) -> None:
    """It leads until another broker does, leaves the ISR, and is not elected again meanwhile."""
    await create(stage, "t", 3)
    before = only(stage, "t")
    leaving = stage.brokers[before.leader]
    seen: list[tuple[bool, int]] = []
    watcher = stage.brokers[(before.leader + 1) % 3].cluster
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
    assert stage.hosted("t", broker=before.leader).leadership is None
    await stage.until(lambda: (True, after.leader) in seen)
    await leaving._leave()
    await stage.until(lambda: before.leader not in watcher.image.brokers)
    assert not watcher.image.stopping
    assert all(registered for registered, leader in seen if leader == before.leader)


@staged_with(brokers=2)
async def test_a_stopping_broker_with_the_only_replica_leads_until_it_stops(
    stage: BrokerHarness,
) -> None:
    """There is no other replica, and the stop does not wait for one."""
    await create(stage, "t", 1)
    leader = only(stage, "t").leader
    async with asyncio.timeout(patient(10)):
        await stage.brokers[leader]._hand_over()
    assert stage.hosted("t", broker=leader).leadership is not None


@staged_with(brokers=2, kafka={"controlled.shutdown.enable": "false"})
async def test_controlled_shutdown_can_be_disabled(stage: BrokerHarness) -> None:
    """Then the leaders are elected after the broker is gone."""
    await create(stage, "t", 2)
    await stage.brokers[0]._hand_over()
    assert not stage.broker.cluster.image.stopping
