"""acks=1: when a produce request that waits only for the leader is answered.

While other replicas are in sync, the response is sent as soon as the batch is in the leader's file.
If the leader may be the only replica in sync, the response waits for the leader's own flush: no
other disk has the record. Usually the record is then visible to consumers, too.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from broker.followers import consume, create_on, epoch_of, follow, produce, shown, written
from broker.harness import NOW_MS, BrokerHarness, with_harness, with_harness_of
from penstock.partition.leadership import Leadership
from penstock.records.record import Record, build_batch
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)

with_three_brokers = with_harness_of(brokers=3)


async def latest(harness: BrokerHarness, topic: str = "orders") -> int:
    asked = ListOffsetsRequest.Partition(0, -1, -1)
    request = ListOffsetsRequest(-1, 0, [ListOffsetsRequest.Topic(topic, [asked])])
    response = await harness.ask(request, 7, ListOffsetsResponse)
    (answer,) = response.topics[0].partitions
    assert answer.error_code == 0
    return answer.offset


def set_isr(harness: BrokerHarness, *isr: int) -> None:
    """Makes the metadata show this ISR to the leader, broker 0."""
    hosted = harness.hosted("orders")
    assert hosted.leadership is not None
    after = replace(shown(harness), isr=isr, partition_epoch=hosted.leadership.partition_epoch + 1)
    replicas, brokers = harness.broker.replicas, harness.broker.cluster.image.living
    hosted.lead(0, replicas.broker_epoch, after, brokers, replicas.monotonic_ms(), 30_000)


@with_harness
async def test_with_one_replica_an_acknowledged_record_is_visible(harness: BrokerHarness) -> None:
    """A program that produces and then seeks to the end must find its record, on the fast path
    too.
    """
    await harness.create("orders")
    for count in range(1, 21):
        assert await produce(harness, acks=1) == (0, count - 1)
        assert await latest(harness) == count


@with_harness
async def test_a_request_for_many_partitions_waits_for_the_flush_of_each(
    harness: BrokerHarness,
) -> None:
    await harness.create("orders", partitions=3)
    batches = [
        ProduceRequest.Partition(index, build_batch([Record(0, NOW_MS, None, b"x")]))
        for index in range(3)
    ]
    # Kafka ignores the timeout of a request with acks=1.
    request = ProduceRequest(None, 1, 0, [ProduceRequest.Topic("orders", partition_data=batches)])
    response = await harness.ask(request, 9, ProduceResponse)
    assert [each.error_code for each in response.responses[0].partition_responses] == [0, 0, 0]
    assert [harness.hosted("orders", index).high_watermark for index in range(3)] == [1, 1, 1]


@with_harness
async def test_a_leader_that_resigns_before_its_flush_answers_with_an_error(
    harness: BrokerHarness,
) -> None:
    """It is unknown whether the record will survive."""
    await harness.create("orders")
    hosted = harness.hosted("orders")
    await produce(harness, acks=1)
    answered = asyncio.ensure_future(produce(harness, acks=1))
    await asyncio.sleep(0)  # the batch is written; its flush has not begun yet
    assert hosted.log.end_offset == 2
    hosted.resign()
    assert (await answered)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER


@with_three_brokers
async def test_the_last_in_sync_replica_makes_its_records_visible(harness: BrokerHarness) -> None:
    await create_on(harness, 0, 1, 2)
    set_isr(harness, 0)
    for count in range(1, 6):
        assert await produce(harness, acks=1) == (0, count - 1)
        assert await latest(harness) == count


@with_three_brokers
async def test_below_min_insync_replicas_the_response_waits_for_the_flush_only(
    harness: BrokerHarness,
) -> None:
    """The record cannot become visible however long the leader waits, but it is on its disk."""
    await create_on(harness, 0, 1, 2, configs={"min.insync.replicas": "2"})
    set_isr(harness, 0)
    assert await produce(harness, acks=1) == (0, 0)
    assert harness.hosted("orders").log.recovery_point == 1
    assert (await consume(harness, 0)).high_watermark == 0


async def with_a_caught_up_follower(harness: BrokerHarness) -> Leadership:
    """Makes broker 0 the only in-sync replica, with broker 1 about to join."""
    await create_on(harness, 0, 1, 2)
    assert await produce(harness, acks=1) == (0, 0)
    set_isr(harness, 0)
    await written(harness.hosted("orders"), 1)
    await follow(harness, 1, 1, broker_epoch=epoch_of(harness, 1))
    held = harness.hosted("orders").leadership
    assert held is not None
    return held


@with_three_brokers
async def test_while_another_replica_is_about_to_join_the_response_waits_for_the_flush_only(
    harness: BrokerHarness,
) -> None:
    """The high watermark waits for a caught-up follower as for an in-sync one. The response does
    not, but the leader is still the only replica that is in sync.
    """
    held = await with_a_caught_up_follower(harness)
    assert await produce(harness, acks=1) == (0, 1)
    assert harness.hosted("orders").log.recovery_point == 2
    assert held.high_watermark == 1


@with_three_brokers
async def test_the_response_waits_for_the_flush_until_another_replica_has_joined(
    harness: BrokerHarness,
) -> None:
    """While a proposal is undecided, and while its outcome is unknown, the in-sync set may consist
    of the leader only. A move may even end with another replica as the only one.
    """
    held = await with_a_caught_up_follower(harness)
    log = harness.hosted("orders").log
    proposal = held.propose(harness.broker.replicas.monotonic_ms())
    assert proposal is not None
    assert [each for each, _ in proposal.isr] == [0, 1]
    assert await produce(harness, acks=1) == (0, 1)
    assert log.recovery_point == 2
    held.on_isr_refused(proposal, ErrorCode.REQUEST_TIMED_OUT, 0)
    assert held.maximal_isr == {0, 1}
    assert await produce(harness, acks=1) == (0, 2)
    assert log.recovery_point == 3
    set_isr(harness, 0, 1)
    assert not held.may_be_alone


@with_three_brokers
async def test_a_leader_that_proposes_to_be_alone_waits_for_its_flush(
    harness: BrokerHarness,
) -> None:
    """The proposal may have taken effect before its answer arrives."""
    await create_on(harness, 0, 1, 2)
    hosted = harness.hosted("orders")
    held = hosted.leadership
    assert held is not None
    assert not held.may_be_alone
    lag_max_ms = harness.broker.configs().int_value("replica.lag.time.max.ms")
    later_ms = harness.broker.replicas.monotonic_ms() + 2 * lag_max_ms
    proposal = held.propose(later_ms)
    assert proposal is not None
    assert [each for each, _ in proposal.isr] == [0]
    assert await produce(harness, acks=1) == (0, 0)
    assert hosted.log.recovery_point == 1
    held.on_isr_refused(proposal, ErrorCode.REQUEST_TIMED_OUT, later_ms)
    assert await produce(harness, acks=1) == (0, 1)
    assert hosted.log.recovery_point == 2
