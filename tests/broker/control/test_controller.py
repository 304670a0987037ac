"""What the controller does: elections, commits with an unknown outcome, failing duties."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.harness import TIMEOUT_S, BrokerHarness, open_harness, with_harness, with_harness_of
from penstock.broker.broker import Broker
from penstock.metadata.config_changes import (
    ConfigEdit,
    ConfigOperation,
    ResourceType,
    incremental_alter_configs,
)
from penstock.metadata.config_values import NO_CONFIGS
from penstock.metadata.decisions import Change, Decision, guarded
from penstock.metadata.image import ClusterImage
from penstock.metadata.keys import CONTROLLER_KEY, topic_key
from penstock.metadata.membership import claim_controller
from penstock.metadata.model import NO_LEADER, Partition, Topic
from penstock.metadata.topic_values import encode_topic
from penstock.metadata.topics import TopicDefaults, TopicSpec, create_topic
from penstock.ports import Committed, Put
from penstock.stores.errors import OutcomeUnknown, StoreUnavailable, StoreUnreachable
from penstock.stores.sqlite import SqliteStore
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode, KafkaError


def renew_often(broker: Broker, seconds: float = 0.05) -> None:
    """From now on the broker renews its lease this often."""
    broker.membership._session_timeout_s = seconds
    broker.membership.doubt()


def epoch_of(harness: BrokerHarness, broker_id: int, seen_by: int = 0) -> int:
    registered = harness.brokers[seen_by].cluster.image.brokers.get(broker_id)
    return -1 if registered is None else registered.broker_epoch


def only(harness: BrokerHarness, name: str) -> Partition:
    return harness.broker.cluster.image.topics[name].partitions[0]


async def create(harness: BrokerHarness, name: str, replicas: int, broker: int = 0) -> bytes:
    """Creates a topic of one partition, through the controller of `broker`. Its replicas begin with
    broker 0.
    """
    spec = TopicSpec(name, 1, replicas)
    topic_id = name.encode().ljust(16)
    topic = await harness.brokers[broker].controller.decide(
        lambda image: create_topic(image, spec, topic_id=topic_id, defaults=TopicDefaults())
    )
    return topic.topic_id


# The controller


async def put_topic(harness: BrokerHarness, name: str, broker_id: int) -> Partition:
    """Stores a topic led by a run of a broker that has ended. Returns its partition after the
    election.
    """
    led = Partition((broker_id,), (broker_id,), (), broker_id, 0, 0, leader_broker_epoch=12345)
    topic = Topic(name, name.encode().ljust(16), (led,), NO_CONFIGS)
    decision = Decision((Change(topic_key(name), encode_topic(topic), 0),), None)
    await harness.broker.controller.commit_own(lambda _: decision)
    topics = harness.broker.cluster.image.topics
    await harness.until(lambda: topics[name].partitions[0].leader_epoch == 1)
    return topics[name].partitions[0]


@with_harness_of(brokers=2)
async def test_a_topic_created_on_a_broker_that_died_gets_a_leader(harness: BrokerHarness) -> None:
    """The broker that created it may not have known of the death, so the controller checks new
    topics.
    """
    assert (await put_topic(harness, "restarted", 1)).leader == 1
    assert (await put_topic(harness, "gone", 7)).leader == NO_LEADER


@with_harness_of(brokers=3)
async def test_another_broker_becomes_controller_when_the_lease_is_gone(
    harness: BrokerHarness,
) -> None:
    """It has a higher controller epoch, and elects leaders for the partitions of the first one."""
    await create(harness, "t", 3)
    others = harness.brokers[1].cluster.image
    await harness.until(lambda: "t" in others.topics)
    first = others.controller
    assert first is not None
    stopped = harness.brokers[first.broker_id].membership
    stopped._leaving = True
    await stopped._env.store.revoke_lease(stopped._commits.lease)

    def is_settled() -> bool:
        term, partition = others.controller, others.topics["t"].partitions[0]
        return (
            term is not None
            and term.epoch == first.epoch + 1
            and first.broker_id not in partition.isr
            and partition.leader not in (NO_LEADER, first.broker_id)
        )

    await harness.until(is_settled)


@with_harness_of(brokers=2)
async def test_a_lower_min_insync_replicas_takes_effect_while_replicas_are_away(
    harness: BrokerHarness,
) -> None:
    """The controller drops the eligible leader replicas, which would keep the leader from
    committing.
    """
    await create(harness, "t", 2)
    await set_min_insync(harness, "2")
    gone = harness.brokers[1].membership
    gone._leaving = True
    await gone._env.store.revoke_lease(gone._commits.lease)
    await harness.until(lambda: only(harness, "t").eligible_leaders == (1,))
    await harness.until(lambda: harness.broker.controller.term is not None)
    # Without the timer, only the config change can make the controller look at the partitions.
    harness.broker.controller._cancel_timer()
    await set_min_insync(harness, "1")
    await harness.until(lambda: only(harness, "t").eligible_leaders == ())
    assert only(harness, "t").isr == (0,)


async def set_min_insync(harness: BrokerHarness, value: str) -> None:
    edits = [ConfigEdit("min.insync.replicas", ConfigOperation.SET, value)]
    await harness.broker.controller.decide(
        lambda image: incremental_alter_configs(image, ResourceType.TOPIC, "t", edits)
    )


@with_harness_of(brokers=2)
async def test_the_writes_of_a_deposed_controller_fail(harness: BrokerHarness) -> None:
    """Two brokers may both believe that they are the controller for a while. The one with the older
    image decides under a claim that is gone, and none of its changes are committed.
    """
    await create(harness, "t", 2)
    old, new = harness.brokers
    late = old.controller.term
    assert late is not None
    stale = ClusterImage()
    entries, revision = await old.membership._env.store.range("/penstock/")
    stale.load(((each.key, each.value, each.modify_revision) for each in entries), revision)
    await new.controller.commit_own(
        lambda image: Decision(
            (Change(CONTROLLER_KEY, None, image.revision_of(CONTROLLER_KEY)),), None
        )
    )
    await harness.until(lambda: new.cluster.image.controller is not None)
    claimed = new.cluster.image.controller
    assert claimed is not None
    assert claimed.epoch > late.epoch
    topic = stale.topics["t"]
    moved = replace(topic.partitions[0], leader=1, leader_epoch=9)
    changed = replace(topic, partitions=(moved,))
    change = Change(topic_key("t"), encode_topic(changed), stale.revision_of(topic_key("t")))
    assert not await old.controller._commits.attempt(guarded(Decision((change,), None), late))
    assert old.cluster.image.topics["t"] == topic
    assert claim_controller(stale, 1) is None


@with_harness_of(brokers=2)
async def test_the_preferred_replica_becomes_leader_again_by_itself(harness: BrokerHarness) -> None:
    """Soon after it is back in the ISR, although the regular check has a long interval."""
    await create(harness, "t", 2)
    first = only(harness, "t").replicas[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.broker.control.controller.PREFER_SOON_S", 0.02)
        await harness.brokers[first].controller.hand_over()
        moved = only(harness, "t")
        assert moved.leader != first

        def rejoined(image: ClusterImage) -> Decision[None]:
            topic = image.topics["t"]
            now = topic.partitions[0]
            epochs = tuple(image.brokers[each].broker_epoch for each in now.replicas)
            back = replace(
                now,
                isr=now.replicas,
                member_epochs=epochs,
                partition_epoch=now.partition_epoch + 1,
            )
            key = topic_key("t")
            value = encode_topic(replace(topic, partitions=(back,)))
            return Decision((Change(key, value, image.revision_of(key)),), None)

        await harness.broker.controller.decide(rejoined)
        await harness.until(lambda: only(harness, "t").leader == first)
    assert only(harness, "t").leader_epoch == moved.leader_epoch + 1


@with_harness_of(brokers=2, kafka={"auto.leader.rebalance.enable": "false"})
async def test_automatic_leader_rebalancing_can_be_disabled(harness: BrokerHarness) -> None:
    """Then only an operator moves leaderships."""
    await create(harness, "t", 2)
    first = only(harness, "t").replicas[0]
    await harness.brokers[first].controller.hand_over()
    before = only(harness, "t")
    controller = next(each.controller for each in harness.brokers if each.controller.term)
    controller._on_prefer()
    await controller.claim()
    await controller._prefer_if_due()
    assert only(harness, "t") == before


# Commits


@pytest.mark.parametrize("is_made", [True, False])
def test_a_commit_with_an_unknown_outcome_is_resolved(tmp_path: Path, *, is_made: bool) -> None:
    """A topic is created once and reported as created, whether the commit whose response was lost
    took effect or not.
    """

    async def run_case() -> None:
        async with asyncio.timeout(patient(TIMEOUT_S)), open_harness(tmp_path) as harness:
            store = harness.broker.membership._env.store
            commit = store.commit
            lost: list[object] = []

            async def lose_first(compares: object, changes: list[Put]) -> Committed:
                if lost or not changes[0].key.startswith("/penstock/topics/"):
                    return await commit(compares, changes)  # type: ignore[arg-type]
                lost.append(changes)
                if is_made:
                    await commit(compares, changes)  # type: ignore[arg-type]
                raise OutcomeUnknown("no answer")

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(store, "commit", lose_first)
                topic_id = await create(harness, "t", 1)
            assert len(lost) == 1
            assert harness.broker.cluster.image.topics["t"].topic_id == topic_id

    asyncio.run(run_case())


@with_harness
async def test_an_outcome_that_cannot_be_resolved_is_reported_as_unknown(
    harness: BrokerHarness,
) -> None:
    """The store stays unreachable, so the broker does not guess."""
    store = harness.broker.membership._env.store

    async def lose(*_: object) -> Committed:
        raise OutcomeUnknown("no answer")

    async def fail(*_: object) -> None:
        raise StoreUnreachable("still no answer")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "commit", lose)
        patch.setattr(store, "get", fail)
        with pytest.raises(OutcomeUnknown, match="it is unknown whether the change to"):
            await create(harness, "t", 1)


@with_harness_of(brokers=2)
async def test_a_block_of_producer_ids_goes_to_one_broker_although_a_response_is_lost(
    harness: BrokerHarness,
) -> None:
    """Two brokers take a block at the same time. The later one does not learn that its commit
    failed, and finds the counter at the value that it wanted to write.
    """
    late, first = harness.brokers
    assert late.services is not None
    assert first.services is not None
    first_ids = first.services.producer_ids
    store = late.membership._env.store
    commit = store.commit
    taken: list[int] = []

    async def lose_first(compares: Any, changes: Any) -> Committed:
        if taken:
            return await commit(compares, changes)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "commit", commit)
            taken.append(await first_ids.next())
            await commit(compares, changes)
        raise OutcomeUnknown("no answer")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "commit", lose_first)
        taken.append(await late.services.producer_ids.next())
    assert sorted(taken) == [0, 1000]


@with_harness_of(brokers=2)
async def test_a_request_is_not_refused_because_of_an_outdated_image(
    harness: BrokerHarness,
) -> None:
    """A broker whose image is behind does not refuse a topic name that has just become free."""
    await create(harness, "t", 1)
    behind = harness.brokers[1]
    await harness.until(lambda: "t" in behind.cluster.image.topics)
    image = harness.broker.cluster.image
    with pytest.raises(KafkaError) as caught:
        await create(harness, "t", 1, broker=1)
    assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    store = behind._env.store
    assert isinstance(store, SqliteStore)
    with pytest.MonkeyPatch.context() as patch:
        # The watch of this broker sees no changes for a while.
        unchanged = store._poller.version()
        patch.setattr(store._poller, "version", lambda: unchanged)
        key = topic_key("t")
        change = Change(key, None, image.revision_of(key))
        await harness.broker.controller.commit_own(lambda _: Decision((change,), None))
        assert "t" in behind.cluster.image.topics
        asyncio.get_running_loop().call_later(0.05, patch.undo)
        await create(harness, "t", 1, broker=1)


# Duties that fail


class Unforeseen(Exception):
    """An exception of a type that the broker does not know."""


@pytest.mark.parametrize("duty", ["claim", "elect", "_elect_among", "_prefer_if_due", "_prefer"])
@pytest.mark.parametrize(
    "error", [Unforeseen("bug"), StoreUnavailable("etcdserver: request is too large")], ids=repr
)
def test_a_failing_duty_of_the_controller_does_not_end_the_broker(
    tmp_path: Path, duty: str, error: Exception
) -> None:
    """The exception is reported, and the duty is retried until it succeeds."""

    async def run_case() -> None:
        async with (
            asyncio.timeout(patient(TIMEOUT_S)),
            open_harness(tmp_path, brokers=2) as harness,
        ):
            controller = next(
                each.controller for each in harness.brokers if each.controller.term is not None
            )
            await create(harness, "t", 2)
            failed = 0
            real = getattr(controller, duty)

            async def fail(*args: Any) -> Any:
                nonlocal failed
                failed += 1
                if failed <= 2:
                    raise error
                return await real(*args)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("penstock.broker.control.controller._PUT_OFF_S", 0.01)
                patch.setattr("penstock.broker.control.controller.PREFER_SOON_S", 0.0)
                patch.setattr(controller, duty, fail)
                controller._on_prefer()
                await harness.until(lambda: failed > 2)
                await harness.until(lambda: controller.failing is None)

    asyncio.run(run_case())


@with_harness_of(brokers=2)
async def test_a_topic_that_cannot_be_stored_does_not_block_other_elections(
    harness: BrokerHarness,
) -> None:
    """The controller commits elections in portions. One that fails does not affect the others."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr("penstock.metadata.edits.TOPICS_MAX", 1)
    monkeypatch.setattr("penstock.broker.control.controller._PUT_OFF_S", 0.01)
    for name in ("bad", "good"):
        await create(harness, name, 2)
    controller = next(each for each in harness.brokers if each.controller.term is not None)
    other = next(each for each in harness.brokers if each is not controller)
    commit = controller.membership._env.store.commit

    async def refuse(compares: Any, changes: Any) -> Committed:
        if any(change.key == topic_key("bad") for change in changes):
            raise StoreUnavailable("etcdserver: request is too large")
        return await commit(compares, changes)

    monkeypatch.setattr(controller.membership._env.store, "commit", refuse)
    before = other.membership.broker_epoch
    await other.membership._env.store.revoke_lease(other.membership._commits.lease)

    def settled(name: str) -> bool:
        image = controller.cluster.image
        if name not in image.topics or other.membership.broker_epoch <= before:
            return False
        partition = image.topics[name].partitions[0]
        held = image.brokers.get(partition.leader)
        return held is not None and held.broker_epoch == partition.leader_broker_epoch

    await harness.until(lambda: settled("good"))
    await harness.until(lambda: controller.controller.failing is not None)
    assert "too large" in str(controller.controller.failing)
    monkeypatch.undo()
    await harness.until(lambda: settled("bad") and controller.controller.failing is None)
