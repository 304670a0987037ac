"""ISR changes: which replicas leave and join, and what is refused meanwhile.

Also covers other effects of metadata on replicas.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.followers import create_on, epoch_of, follow, produce, shown, under_way, written
from broker.harness import NOW_MS, BrokerHarness, maintenance_of, staged_with
from penstock.groups.formats import OffsetValue, offset_record
from penstock.metadata.reassignment import Move, reassign
from penstock.records.record import Record, build_batch
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

stage_of_three = staged_with(brokers=3)
impatient = staged_with(brokers=3, kafka={"replica.lag.time.max.ms": "200"})


async def configure(stage: BrokerHarness, **settings: str) -> None:
    texts = [
        IncrementalAlterConfigsRequest.Config(name.replace("_", "."), 0, value)
        for name, value in settings.items()
    ]
    resource = IncrementalAlterConfigsRequest.Resource(2, "orders", texts)
    response = await stage.ask(
        IncrementalAlterConfigsRequest([resource]), 1, IncrementalAlterConfigsResponse
    )
    assert response.responses[0].error_code == 0, response.responses[0].error_message


@impatient
async def test_a_lagging_follower_leaves_the_isr_and_the_others_go_on(stage: BrokerHarness) -> None:
    """After replica.lag.time.max.ms. Records that waited for it are committed without it."""
    await create_on(stage, 0, 1, 2)
    async with under_way(produce(stage)) as sent:
        await written(stage.hosted("orders"), 1)
        while not sent.done():
            await follow(stage, 1, 1, wait_ms=20)
        assert await sent == (0, 0)
    assert shown(stage).isr == (0, 1)
    assert shown(stage).leader_epoch == 0


@impatient
async def test_below_min_insync_replicas_nothing_is_committed(stage: BrokerHarness) -> None:
    """acks=all is refused before it is written. acks=1 is written, but not visible. Both work again
    once enough replicas have caught up.
    """
    await create_on(stage, 0, 1, 2, configs={"min.insync.replicas": "2"})
    hosted = stage.hosted("orders")
    await stage.until(lambda: shown(stage).isr == (0,))
    await stage.until(lambda: hosted.leadership is not None and hosted.leadership.isr == {0})
    assert await produce(stage) == (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
    assert hosted.log.end_offset == 0
    assert await produce(stage, acks=1) == (0, 0)
    await written(hosted, 1)
    assert hosted.high_watermark == 0
    assert shown(stage).eligible_leaders == (1, 2)
    # It does not have all records, so the ISR stays.
    await follow(stage, 1, 0)
    assert shown(stage).isr == (0,)
    while hosted.high_watermark < 1:
        await follow(stage, 1, 1, wait_ms=20)
    assert shown(stage).isr == (0, 1)
    assert shown(stage).eligible_leaders == ()
    async with under_way(produce(stage)) as sent:
        while not sent.done():
            await follow(stage, 1, hosted.log.end_offset, wait_ms=20)
        assert await sent == (0, 1)


@stage_of_three
async def test_a_change_of_min_insync_replicas_takes_effect_in_the_current_leadership(
    stage: BrokerHarness,
) -> None:
    await create_on(stage, 0, 1)
    async with under_way(produce(stage, timeout_ms=100)) as sent:
        assert await sent == (ErrorCode.REQUEST_TIMED_OUT, -1)
    held = stage.hosted("orders").leadership
    assert held is not None
    after = replace(shown(stage), isr=(0,), partition_epoch=1)
    held.on_partition(after, stage.broker.replicas.now_ms())
    assert (await produce(stage))[0] == 0
    await configure(stage, min_insync_replicas="2")
    assert (await produce(stage))[0] == ErrorCode.NOT_ENOUGH_REPLICAS


@staged_with(brokers=3, kafka={"replica.lag.time.max.ms": "1500"})
async def test_an_isr_change_with_an_unknown_outcome_counts_until_it_is_known(
    stage: BrokerHarness,
) -> None:
    """The leader waits for every replica that may be in the ISR. It proposes the change again,
    which resolves the outcome.
    """
    await create_on(stage, 0, 1)
    hosted = stage.hosted("orders")
    held = hosted.leadership
    assert held is not None
    await stage.until(lambda: shown(stage).isr == (0,) and held.isr == {0})
    controller = stage.broker.controller

    async def gets_lost(make: object) -> object:
        raise TimeoutError("nobody knows what became of it")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controller, "decide", gets_lost)
        await follow(stage, 1, 0)
        await stage.until(lambda: held.maximal_isr == {0, 1})
        assert held.isr == {0}
        assert await produce(stage, acks=1) == (0, 0)
        await written(hosted, 1)
        assert hosted.high_watermark == 0
    await stage.until(lambda: held.isr == {0, 1} == held.maximal_isr)
    assert shown(stage).isr == (0, 1)
    await follow(stage, 1, 1)
    assert hosted.high_watermark == 1


@impatient
async def test_an_isr_change_whose_response_is_lost_is_learned_from_the_metadata(
    stage: BrokerHarness,
) -> None:
    await create_on(stage, 0, 1)
    held = stage.hosted("orders").leadership
    assert held is not None
    await stage.until(lambda: shown(stage).isr == (0,) and held.isr == {0})
    controller = stage.broker.controller
    decide = controller.decide

    async def answers_nobody(make: object) -> object:
        await decide(make)  # type: ignore[arg-type]
        raise TimeoutError("nobody knows what became of it")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controller, "decide", answers_nobody)
        await follow(stage, 1, 0)
        await stage.until(lambda: held.isr == {0, 1} == held.maximal_isr)
    assert shown(stage).partition_epoch == held.partition_epoch


@stage_of_three
async def test_a_stopping_broker_is_not_added_to_the_isr(stage: BrokerHarness) -> None:
    """It has caught up, but will be gone when it is needed."""
    await create_on(stage, 0, 1, 2)
    held = stage.hosted("orders").leadership
    assert held is not None
    after = replace(shown(stage), isr=(0, 1), partition_epoch=1)
    held.on_partition(after, 0)
    await follow(stage, 2, 0)
    living = stage.broker.cluster.image.living
    stage.hosted("orders").on_brokers({each: living[each] for each in (0, 1)})
    assert held.propose(stage.broker.replicas.now_ms() + 1_000) is None
    stage.hosted("orders").on_brokers(living)
    proposal = held.propose(stage.broker.replicas.now_ms() + 1_000)
    assert proposal is not None
    assert [each for each, _ in proposal.isr] == [0, 1, 2]


@stage_of_three
async def test_a_replica_that_was_moved_away_is_deleted(stage: BrokerHarness) -> None:
    """The other replicas go on in a new leader epoch."""
    await create_on(stage, 0, 1, 2)
    hosted = stage.hosted("orders", broker=2)
    directory = hosted.log.directory
    assert stage.disks[2].exists(directory)
    move = [Move("orders", 0, (0, 1))]
    (answer,) = await stage.broker.controller.decide(lambda image: reassign(image, move))
    assert answer.error == ErrorCode.NONE
    await stage.until(lambda: stage.brokers[2].replicas.get("orders", 0) is None)
    await stage.until(lambda: not stage.disks[2].exists(directory))
    assert hosted.follower is None
    assert shown(stage).replicas == (0, 1)
    await stage.until(lambda: stage.hosted("orders").leadership is not None)
    assert stage.disks[0].exists(stage.hosted("orders").log.directory)


@stage_of_three
async def test_a_topic_that_changes_to_fsync_is_flushed_on_every_replica(
    stage: BrokerHarness,
) -> None:
    """From then on, elections assume that everything that counts is on disk."""
    await create_on(stage, 0, 1, configs={"durability": "replicated"})
    assert await produce(stage, acks=1) == (0, 0)
    leader, follower = stage.hosted("orders"), stage.hosted("orders", broker=1)
    piece = leader.log.read(0, 1 << 20)
    assert piece is not None
    follower.log.append_replica(piece.data, 0)
    assert (leader.log.recovery_point, follower.log.recovery_point) == (0, 0)
    assert leader.machine.counted_end == 1
    await configure(stage, durability="fsync")
    await stage.until(lambda: leader.log.recovery_point == follower.log.recovery_point == 1)
    assert (leader.machine.counted_end, follower.machine.counted_end) == (1, 1)


@staged_with(brokers=2)
async def test_the_offsets_topic_has_the_configured_number_of_replicas(
    stage: BrokerHarness,
) -> None:
    """The stage sets offsets.topic.replication.factor to the number of brokers. All brokers lead
    partitions.
    """
    request = FindCoordinatorRequest(key="group", key_type=0)
    await stage.ask(request, 3, FindCoordinatorResponse)
    topics = stage.broker.cluster.image.topics
    await stage.until(lambda: "__consumer_offsets" in topics)
    partitions = topics["__consumer_offsets"].partitions
    assert {len(partition.replicas) for partition in partitions} == {2}
    assert {partition.leader for partition in partitions} == {0, 1}


@stage_of_three
async def test_a_coordinator_serves_groups_once_what_it_loaded_is_committed(
    stage: BrokerHarness,
) -> None:
    """It may have replayed records that no other replica has, so it waits."""
    name = "__consumer_offsets"
    await create_on(stage, 0, 1, topic=name, configs={"durability": "replicated"})
    hosted = stage.hosted(name)
    services = stage.broker._services
    assert services is not None
    groups = services.groups
    await stage.until(lambda: len(groups.loaded()) == 1)
    entry = offset_record("group", "orders", 0, OffsetValue(7))
    hosted.append_own(build_batch([Record(0, NOW_MS, entry.key, entry.value)]), NOW_MS)
    before = shown(stage, name)
    after = replace(before, leader_epoch=1, partition_epoch=before.partition_epoch + 1)
    stage.broker.replicas._take_role(hosted, after, stage.broker.configs())
    await stage.until(lambda: hosted.leadership is not None)
    await stage.until(lambda: hosted.machine.counted_end == 1)
    assert hosted.high_watermark == 0
    assert groups.loaded() == []
    await follow(stage, 1, 1, topic=name, leader_epoch=1)
    await stage.until(lambda: len(groups.loaded()) == 1)


@stage_of_three
async def test_metadata_lists_offline_replicas(stage: BrokerHarness) -> None:
    """A partition without a leader has LEADER_NOT_AVAILABLE and leader -1."""
    asked = [CreateTopicsRequest.Assignment(0, [0, 1, 2])]
    wanted = CreateTopicsRequest.Topic("orders", -1, -1, asked)
    await stage.ask(CreateTopicsRequest([wanted]), 7, CreateTopicsResponse)

    async def partition() -> MetadataResponse.Partition:
        request = MetadataRequest([MetadataRequest.Topic(name="orders")], False)
        response = await stage.ask(request, 12, MetadataResponse)
        return response.topics[0].partitions[0]

    answer = await partition()
    assert (answer.error_code, answer.leader_id, answer.leader_epoch) == (0, 0, 0)
    assert (answer.replica_nodes, answer.isr_nodes) == ([0, 1, 2], [0, 1, 2])
    assert answer.offline_replicas == []
    brokers = stage.broker.cluster.image._brokers
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
async def test_fetches_in_a_session_keep_their_follower_in_sync(stage: BrokerHarness) -> None:
    """A request that names no partitions means that the follower has the same records as before and
    asks for more.
    """
    topic_id = await create_on(stage, 0, 1)
    hosted = stage.hosted("orders")
    session, epoch = 0, 0

    async def fetch(offset: int | None = None) -> list[FetchResponse.Partition]:
        nonlocal session, epoch
        asked = []
        if offset is not None:
            partition = FetchRequest.Partition(0, 0, offset, -1, 0, 1 << 20)
            asked = [FetchRequest.Topic("", topic_id, [partition])]
        request = FetchRequest(
            replica_state=FetchRequest.ReplicaState(1, epoch_of(stage, 1)),
            max_wait_ms=10,
            min_bytes=1,
            session_id=session,
            session_epoch=epoch,
            topics=asked,
        )
        response = await stage.ask(request, 17, FetchResponse)
        assert response.error_code == 0
        session, epoch = response.session_id, epoch + 1
        return [answer for topic in response.responses for answer in topic.partitions]

    (first,) = await fetch(0)
    assert (first.error_code, first.high_watermark) == (0, 0)
    for _ in range(40):
        assert await fetch() == []
    assert shown(stage).isr == (0, 1)
    assert await produce(stage, acks=1) == (0, 0)
    (news,) = await fetch()
    assert news.records
    await written(hosted, 1)
    assert hosted.high_watermark == 0
    (committed,) = await fetch(1)
    assert committed.high_watermark == 1
    assert not committed.records
    for _ in range(20):
        assert await fetch() == []
    assert shown(stage).isr == (0, 1)
    # When it stops fetching, it leaves the ISR.
    assert await produce(stage, acks=1) == (0, 1)
    await stage.until(lambda: shown(stage).isr == (0,))


@stage_of_three
async def test_followers_apply_retention_to_committed_records(stage: BrokerHarness) -> None:
    """As leaders do. Records that may be uncommitted stay, however old they are."""
    await create_on(stage, 0, 1, configs={"retention.ms": "1"})
    hosted = stage.hosted("orders", broker=1)
    for offset in range(3):
        assert await produce(stage, acks=1) == (0, offset)
        piece = stage.hosted("orders").log.read(offset, 1 << 20)
        assert piece is not None
        hosted.log.append_replica(piece.data, NOW_MS)
        hosted.log.roll(NOW_MS)
    assert hosted.follower is not None
    hosted.follower.high_watermark = 2
    services = stage.brokers[1]._services
    assert services is not None
    await maintenance_of(services)._retain(hosted)
    assert (hosted.log.log_start_offset, hosted.log.end_offset) == (2, 3)
