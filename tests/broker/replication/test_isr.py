"""ISR changes: which replicas leave and join, and what is refused meanwhile.

Also covers other effects of metadata on replicas.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.followers import create_on, epoch_of, follow, produce, shown, under_way, written
from broker.harness import NOW_MS, BrokerHarness, maintenance_of, with_harness_of
from penstock.groups.formats import OffsetValue, offset_record
from penstock.metadata.reassignment import Move, reassign
from penstock.records.record import Record, build_batch
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    FetchRequest,
    FetchResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    MetadataRequest,
    MetadataResponse,
)

with_three_brokers = with_harness_of(brokers=3)
LAG_MS = round(patient(1_500))
"""Longer than the pauses of a busy machine, during which a follower that fetches seems to lag."""
impatient = with_harness_of(brokers=3, kafka={"replica.lag.time.max.ms": str(LAG_MS)})


async def configure(harness: BrokerHarness, **settings: str) -> None:
    texts = [
        IncrementalAlterConfigsRequest.Config(name.replace("_", "."), 0, value)
        for name, value in settings.items()
    ]
    resource = IncrementalAlterConfigsRequest.Resource(2, "orders", texts)
    response = await harness.ask(
        IncrementalAlterConfigsRequest([resource]), 1, IncrementalAlterConfigsResponse
    )
    assert response.responses[0].error_code == 0, response.responses[0].error_message


@impatient
async def test_a_lagging_follower_leaves_the_isr_and_the_others_go_on(
    harness: BrokerHarness,
) -> None:
    """After replica.lag.time.max.ms. Records that waited for it are committed without it."""
    await create_on(harness, 0, 1, 2)
    async with under_way(produce(harness)) as sent:
        await written(harness.hosted("orders"), 1)
        while not sent.done():
            await follow(harness, 1, 1, wait_ms=20)
        assert await sent == (0, 0)
    # After a pause of the machine the follower that fetches may be late too, and comes back.
    while shown(harness).isr != (0, 1):
        await follow(harness, 1, 1, wait_ms=20)
    assert shown(harness).leader_epoch == 0


@impatient
async def test_below_min_insync_replicas_nothing_is_committed(harness: BrokerHarness) -> None:
    """acks=all is refused before it is written. acks=1 is written, but not visible. Both work again
    once enough replicas have caught up.
    """
    await create_on(harness, 0, 1, 2, configs={"min.insync.replicas": "2"})
    hosted = harness.hosted("orders")
    await harness.until(lambda: shown(harness).isr == (0,))
    await harness.until(lambda: hosted.leadership is not None and hosted.leadership.isr == {0})
    assert await produce(harness) == (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
    assert hosted.log.end_offset == 0
    assert await produce(harness, acks=1) == (0, 0)
    await written(hosted, 1)
    assert hosted.high_watermark == 0
    assert shown(harness).eligible_leaders == (1, 2)
    # It does not have all records, so the ISR stays.
    await follow(harness, 1, 0)
    assert shown(harness).isr == (0,)
    while hosted.high_watermark < 1:
        await follow(harness, 1, 1, wait_ms=20)
    assert shown(harness).isr == (0, 1)
    assert shown(harness).eligible_leaders == ()
    async with under_way(produce(harness)) as sent:
        while not sent.done():
            await follow(harness, 1, hosted.log.end_offset, wait_ms=20)
        assert await sent == (0, 1)


@with_three_brokers
async def test_a_change_of_min_insync_replicas_takes_effect_in_the_current_leadership(
    harness: BrokerHarness,
) -> None:
    await create_on(harness, 0, 1)
    async with under_way(produce(harness, timeout_ms=100)) as sent:
        assert await sent == (ErrorCode.REQUEST_TIMED_OUT, -1)
    held = harness.hosted("orders").leadership
    assert held is not None
    after = replace(shown(harness), isr=(0,), partition_epoch=1)
    held.on_partition(after, harness.broker.replicas.monotonic_ms())
    assert (await produce(harness))[0] == 0
    await configure(harness, min_insync_replicas="2")
    assert (await produce(harness))[0] == ErrorCode.NOT_ENOUGH_REPLICAS


@with_harness_of(brokers=3, kafka={"replica.lag.time.max.ms": str(4 * LAG_MS)})
async def test_an_isr_change_with_an_unknown_outcome_counts_until_it_is_known(
    harness: BrokerHarness,
) -> None:
    """The leader waits for every replica that may be in the ISR. It proposes the change again,
    which resolves the outcome.
    """
    await create_on(harness, 0, 1)
    hosted = harness.hosted("orders")
    held = hosted.leadership
    assert held is not None
    await harness.until(lambda: shown(harness).isr == (0,) and held.isr == {0})
    controller = harness.broker.controller

    async def gets_lost(make: object) -> object:
        raise TimeoutError("nobody knows what became of it")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controller, "decide", gets_lost)
        await follow(harness, 1, 0)
        await harness.until(lambda: held.maximal_isr == {0, 1})
        assert held.isr == {0}
        assert await produce(harness, acks=1) == (0, 0)
        await written(hosted, 1)
        assert hosted.high_watermark == 0
    await harness.until(lambda: held.isr == {0, 1} == held.maximal_isr)
    assert shown(harness).isr == (0, 1)
    await follow(harness, 1, 1)
    assert hosted.high_watermark == 1


@impatient
async def test_an_isr_change_whose_response_is_lost_is_learned_from_the_metadata(
    harness: BrokerHarness,
) -> None:
    await create_on(harness, 0, 1)
    held = harness.hosted("orders").leadership
    assert held is not None
    await harness.until(lambda: shown(harness).isr == (0,) and held.isr == {0})
    controller = harness.broker.controller
    decide = controller.decide

    async def answers_nobody(make: object) -> object:
        await decide(make)  # type: ignore[arg-type]
        raise TimeoutError("nobody knows what became of it")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controller, "decide", answers_nobody)
        await follow(harness, 1, 0)
        await harness.until(lambda: held.isr == {0, 1} == held.maximal_isr)
    assert shown(harness).partition_epoch == held.partition_epoch


@with_three_brokers
async def test_a_stopping_broker_is_not_added_to_the_isr(harness: BrokerHarness) -> None:
    """It has caught up, but will be gone when it is needed."""
    await create_on(harness, 0, 1, 2)
    held = harness.hosted("orders").leadership
    assert held is not None
    after = replace(shown(harness), isr=(0, 1), partition_epoch=1)
    held.on_partition(after, 0)
    await follow(harness, 2, 0)
    living = harness.broker.cluster.image.living
    harness.hosted("orders").on_brokers({each: living[each] for each in (0, 1)})
    assert held.propose(harness.broker.replicas.monotonic_ms() + 1_000) is None
    harness.hosted("orders").on_brokers(living)
    proposal = held.propose(harness.broker.replicas.monotonic_ms() + 1_000)
    assert proposal is not None
    assert [each for each, _ in proposal.isr] == [0, 1, 2]


@with_three_brokers
async def test_a_replica_that_was_moved_away_is_deleted(harness: BrokerHarness) -> None:
    """The other replicas go on in a new leader epoch."""
    await create_on(harness, 0, 1, 2)
    hosted = harness.hosted("orders", broker=2)
    directory = hosted.log.directory
    assert harness.disks[2].exists(directory)
    move = [Move("orders", 0, (0, 1))]
    (answer,) = await harness.broker.controller.decide(lambda image: reassign(image, move))
    assert answer.error == ErrorCode.NONE
    await harness.until(lambda: harness.brokers[2].replicas.get("orders", 0) is None)
    await harness.until(lambda: not harness.disks[2].exists(directory))
    assert hosted.follower is None
    assert shown(harness).replicas == (0, 1)
    await harness.until(lambda: harness.hosted("orders").leadership is not None)
    assert harness.disks[0].exists(harness.hosted("orders").log.directory)


@with_three_brokers
async def test_a_topic_that_changes_to_fsync_is_flushed_on_every_replica(
    harness: BrokerHarness,
) -> None:
    """From then on, elections assume that everything that counts is on disk."""
    await create_on(harness, 0, 1, configs={"durability": "replicated"})
    assert await produce(harness, acks=1) == (0, 0)
    leader, follower = harness.hosted("orders"), harness.hosted("orders", broker=1)
    piece = leader.log.read(0, 1 << 20)
    assert piece is not None
    follower.log.append_replica(piece.data, 0)
    assert (leader.log.recovery_point, follower.log.recovery_point) == (0, 0)
    assert leader.machine.counted_end == 1
    await configure(harness, durability="fsync")
    await harness.until(lambda: leader.log.recovery_point == follower.log.recovery_point == 1)
    assert (leader.machine.counted_end, follower.machine.counted_end) == (1, 1)


@with_harness_of(brokers=2)
async def test_the_offsets_topic_has_the_configured_number_of_replicas(
    harness: BrokerHarness,
) -> None:
    """The harness sets offsets.topic.replication.factor to the number of brokers. All brokers lead
    partitions.
    """
    request = FindCoordinatorRequest(key="group", key_type=0)
    await harness.ask(request, 3, FindCoordinatorResponse)
    topics = harness.broker.cluster.image.topics
    await harness.until(lambda: "__consumer_offsets" in topics)
    partitions = topics["__consumer_offsets"].partitions
    assert {len(partition.replicas) for partition in partitions} == {2}
    assert {partition.leader for partition in partitions} == {0, 1}


@with_three_brokers
async def test_a_coordinator_serves_groups_once_what_it_loaded_is_committed(
    harness: BrokerHarness,
) -> None:
    """It may have replayed records that no other replica has, so it waits."""
    name = "__consumer_offsets"
    await create_on(harness, 0, 1, topic=name, configs={"durability": "replicated"})
    hosted = harness.hosted(name)
    services = harness.broker._services
    assert services is not None
    groups = services.groups
    await harness.until(lambda: len(groups.loaded()) == 1)
    entry = offset_record("group", "orders", 0, OffsetValue(7))
    hosted.append_own(build_batch([Record(0, NOW_MS, entry.key, entry.value)]), NOW_MS)
    before = shown(harness, name)
    after = replace(before, leader_epoch=1, partition_epoch=before.partition_epoch + 1)
    harness.broker.replicas._take_role(hosted, after, harness.broker.configs())
    await harness.until(lambda: hosted.leadership is not None)
    await harness.until(lambda: hosted.machine.counted_end == 1)
    assert hosted.high_watermark == 0
    assert groups.loaded() == []
    await follow(harness, 1, 1, topic=name, leader_epoch=1)
    await harness.until(lambda: len(groups.loaded()) == 1)


@with_three_brokers
async def test_metadata_lists_offline_replicas(harness: BrokerHarness) -> None:
    """A partition without a leader has LEADER_NOT_AVAILABLE and leader -1."""
    asked = [CreateTopicsRequest.Assignment(0, [0, 1, 2])]
    wanted = CreateTopicsRequest.Topic("orders", -1, -1, asked)
    await harness.ask(CreateTopicsRequest([wanted]), 7, CreateTopicsResponse)

    async def partition() -> MetadataResponse.Partition:
        request = MetadataRequest([MetadataRequest.Topic(name="orders")], False)
        response = await harness.ask(request, 12, MetadataResponse)
        return response.topics[0].partitions[0]

    answer = await partition()
    assert (answer.error_code, answer.leader_id, answer.leader_epoch) == (0, 0, 0)
    assert (answer.replica_nodes, answer.isr_nodes) == ([0, 1, 2], [0, 1, 2])
    assert answer.offline_replicas == []
    brokers = harness.broker.cluster.image._brokers
    held = dict(brokers)
    for gone in (0, 2):
        del brokers[gone]
    try:
        answer = await partition()
    finally:
        brokers.update(held)
    assert (answer.error_code, answer.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert answer.offline_replicas == [0, 2]


@impatient
async def test_fetches_in_a_session_keep_their_follower_in_sync(harness: BrokerHarness) -> None:
    """A request that names no partitions means that the follower has the same records as before and
    asks for more.
    """
    topic_id = await create_on(harness, 0, 1)
    hosted = harness.hosted("orders")
    session, epoch = 0, 0

    async def fetch(offset: int | None = None) -> list[FetchResponse.Partition]:
        nonlocal session, epoch
        asked = []
        if offset is not None:
            partition = FetchRequest.Partition(0, 0, offset, -1, 0, 1 << 20)
            asked = [FetchRequest.Topic("", topic_id, [partition])]
        request = FetchRequest(
            replica_state=FetchRequest.ReplicaState(1, epoch_of(harness, 1)),
            max_wait_ms=LAG_MS // 20,
            min_bytes=1,
            session_id=session,
            session_epoch=epoch,
            topics=asked,
        )
        response = await harness.ask(request, 17, FetchResponse)
        assert response.error_code == 0
        session, epoch = response.session_id, epoch + 1
        return [answer for topic in response.responses for answer in topic.partitions]

    (first,) = await fetch(0)
    assert (first.error_code, first.high_watermark) == (0, 0)
    for _ in range(40):
        assert await fetch() == []
    assert shown(harness).isr == (0, 1)
    assert await produce(harness, acks=1) == (0, 0)
    (news,) = await fetch()
    assert news.records
    await written(hosted, 1)
    assert hosted.high_watermark == 0
    (committed,) = await fetch(1)
    assert committed.high_watermark == 1
    assert not committed.records
    for _ in range(20):
        assert await fetch() == []
    assert shown(harness).isr == (0, 1)
    # When it stops fetching, it leaves the ISR.
    assert await produce(harness, acks=1) == (0, 1)
    await harness.until(lambda: shown(harness).isr == (0,))


@with_three_brokers
async def test_followers_apply_retention_to_committed_records(harness: BrokerHarness) -> None:
    """As leaders do. Records that may be uncommitted stay, however old they are."""
    await create_on(harness, 0, 1, configs={"retention.ms": "1"})
    hosted = harness.hosted("orders", broker=1)
    for offset in range(3):
        assert await produce(harness, acks=1) == (0, offset)
        piece = harness.hosted("orders").log.read(offset, 1 << 20)
        assert piece is not None
        hosted.log.append_replica(piece.data, NOW_MS)
        hosted.log.roll(NOW_MS)
    assert hosted.follower is not None
    hosted.follower.high_watermark = 2
    services = harness.brokers[1]._services
    assert services is not None
    await maintenance_of(services)._retain(hosted)
    assert (hosted.log.log_start_offset, hosted.log.end_offset) == (2, 3)
