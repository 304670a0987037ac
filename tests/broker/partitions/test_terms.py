"""Idempotent producers across the leaderships of one broker.

An idempotent producer numbers its batches and has several in flight. If the leader refused one of
them and accepted the next, the sequence would have a gap. Some clients then write records again
under new sequence numbers although an earlier response left their outcome open. So a producer must
not be asked to retry a batch that is already in the log.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from broker.followers import create_on, follow, produce, shown, under_way, written
from broker.harness import BrokerHarness, with_harness_of
from broker.three_brokers import ThreeBrokers
from broker.three_brokers import three_brokers as cluster_of
from penstock.broker.partitions import pending_leadership
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.metadata.model import Partition
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode

with_three_brokers = with_harness_of(brokers=3)


def next_term(harness: BrokerHarness, hosted: HostedPartition) -> Partition:
    """Makes the same broker lead in the next leader epoch, as at the end of a reassignment."""
    before, replicas = shown(harness), harness.broker.replicas
    epoch = 1 if hosted.leadership is None else hosted.leadership.epoch + 1
    after = replace(before, leader_epoch=epoch, partition_epoch=before.partition_epoch + epoch)
    brokers = harness.broker.cluster.image.living
    hosted.lead(0, replicas.broker_epoch, after, brokers, replicas.monotonic_ms(), 30_000)
    return after


async def led(harness: BrokerHarness, hosted: HostedPartition) -> None:
    await harness.until(lambda: hosted.leadership is not None)


@with_three_brokers
async def test_a_request_that_waits_for_its_commit_keeps_waiting_in_the_next_leadership(
    harness: BrokerHarness,
) -> None:
    """Its batch is in the log, and is committed when the followers have it."""
    await create_on(harness, 0, 1)
    hosted = harness.hosted("orders")
    async with under_way(produce(harness, sequence=0)) as waiting:
        term = next_term(harness, hosted)
        await led(harness, hosted)
        await written(hosted, 1)
        assert not waiting.done()
        await follow(harness, 1, 1, leader_epoch=term.leader_epoch)
        assert await waiting == (0, 0)


@with_three_brokers
async def test_a_request_that_waits_for_its_commit_fails_when_another_broker_leads(
    harness: BrokerHarness,
) -> None:
    """It is unknown whether its batch will survive."""
    await create_on(harness, 0, 1)
    hosted = harness.hosted("orders")
    async with under_way(produce(harness, sequence=0)) as waiting:
        next_term(harness, hosted)
        hosted.follow(replace(shown(harness), leader=1, leader_epoch=2, partition_epoch=2))
        assert await waiting == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


@with_three_brokers
async def test_a_retry_in_the_next_leadership_gets_the_offset_of_the_original_batch(
    harness: BrokerHarness,
) -> None:
    """Right after the append, and while the leadership is still pending."""
    await create_on(harness, 0, 1)
    hosted = harness.hosted("orders")
    assert await produce(harness, [b"a", b"b"], acks=1, sequence=0) == (0, 0)
    assert await produce(harness, [b"c"], acks=1, sequence=2) == (0, 2)
    next_term(harness, hosted)
    assert hosted.machine.is_beginning
    assert await produce(harness, [b"c"], acks=1, sequence=2) == (0, 2)
    assert await produce(harness, [b"a", b"b"], acks=1, sequence=0) == (0, 0)
    assert hosted.log.end_offset == 3


@with_three_brokers
async def test_batches_are_accepted_in_order_while_a_leadership_is_pending(
    harness: BrokerHarness,
) -> None:
    """None is refused, so the next one is never out of order."""
    await create_on(harness, 0, 1)
    hosted = harness.hosted("orders")
    assert await produce(harness, acks=1, sequence=0) == (0, 0)
    next_term(harness, hosted)
    assert hosted.machine.is_beginning
    answers = await asyncio.gather(
        *(produce(harness, acks=1, sequence=sequence) for sequence in range(1, 6))
    )
    assert answers == [(0, sequence) for sequence in range(1, 6)]


@with_three_brokers
async def test_after_a_refused_batch_the_later_batches_are_refused_too(
    harness: BrokerHarness,
) -> None:
    """A batch is missing before them. Kafka answers OUT_OF_ORDER_SEQUENCE_NUMBER, on which some
    clients begin a new epoch. Here they get a retriable error until the missing batch has come.
    """
    await create_on(harness, 0, 1, configs={"min.insync.replicas": "2"})
    hosted = harness.hosted("orders")
    await follow(harness, 1, 0)
    assert await produce(harness, acks=1, sequence=0) == (0, 0)
    assert hosted.leadership is not None
    held = hosted.leadership
    in_sync, held.isr = held.isr, frozenset({0})
    assert (await produce(harness, sequence=1))[0] == ErrorCode.NOT_ENOUGH_REPLICAS
    held.isr = in_sync
    again = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await produce(harness, acks=1, sequence=2))[0] == again
    assert (await produce(harness, acks=1, sequence=3))[0] == again
    assert await produce(harness, acks=1, sequence=1) == (0, 1)
    assert await produce(harness, acks=1, sequence=2) == (0, 2)
    assert (await produce(harness, acks=1, sequence=9))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@with_three_brokers
async def test_later_batches_of_a_new_producer_are_refused_after_its_first_was_refused(
    harness: BrokerHarness,
) -> None:
    """Its first batch came before the broker knew that it leads. The second one comes just
    after.
    """
    await create_on(harness, 1, 0)
    hosted = harness.hosted("orders")
    again = (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert await produce(harness, acks=1, sequence=0) == again
    hosted.lead(
        0,
        harness.broker.replicas.broker_epoch,
        replace(
            shown(harness), replicas=(0,), isr=(0,), leader=0, leader_epoch=1, member_epochs=()
        ),
        {0: harness.broker.replicas.broker_epoch},
        0,
        10_000,
    )
    assert hosted.leadership is not None
    assert await produce(harness, acks=1, sequence=1) == again
    assert hosted.log.end_offset == 0
    assert await produce(harness, acks=1, sequence=0) == (0, 0)
    assert await produce(harness, acks=1, sequence=1) == (0, 1)


@with_three_brokers
async def test_later_batches_are_refused_after_one_for_a_topic_that_was_unknown(
    harness: BrokerHarness,
) -> None:
    """The topic was created meanwhile. The batches must still be appended in order."""
    assert (await produce(harness, acks=1, sequence=0))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await create_on(harness, 0)
    assert (await produce(harness, acks=1, sequence=1))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await produce(harness, acks=1, sequence=0) == (0, 0)
    assert await produce(harness, acks=1, sequence=1) == (0, 1)


@with_three_brokers
async def test_a_leadership_that_does_not_begin_refuses_all_waiting_batches(
    harness: BrokerHarness,
) -> None:
    """The first one and those behind it at the same time."""
    await create_on(harness, 0, 1)
    hosted = harness.hosted("orders")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pending_leadership, "WAIT_S", patient(0.5))
        hosted.resign()
        async with under_way(produce(harness, acks=1, sequence=0)) as first:
            assert not first.done()
            second = await produce(harness, acks=1, sequence=1)
            assert first.done()
            assert await first == second == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert hosted.log.end_offset == 0


@with_three_brokers
async def test_a_broker_that_does_not_lead_refuses_batches_at_once(harness: BrokerHarness) -> None:
    """Batches wait only if the metadata names this broker as the leader."""
    await create_on(harness, 1, 0)
    assert await produce(harness, sequence=0) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


@with_three_brokers
async def test_a_truncated_log_recognizes_retries_of_the_batches_it_kept(
    harness: BrokerHarness,
) -> None:
    """The truncated batches are written again in sequence. A batch that comes too early is refused
    with a retriable error.
    """
    await create_on(harness, 0, 1)
    hosted = harness.hosted("orders")
    for sequence in range(4):
        assert await produce(harness, acks=1, sequence=sequence) == (0, sequence)
    await written(hosted, 4)
    hosted.resign()
    hosted.log.truncate_to(2)
    next_term(harness, hosted)
    assert await produce(harness, acks=1, sequence=1) == (0, 1)
    assert (await produce(harness, acks=1, sequence=3))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await produce(harness, acks=1, sequence=2) == (0, 2)
    assert await produce(harness, acks=1, sequence=3) == (0, 3)
    assert (await produce(harness, acks=1, sequence=9))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_retry_is_recognized_by_every_later_leader(tmp_path: Path) -> None:
    """By a follower that takes over, after a clean restart, and after a kill."""

    async def send(cluster: ThreeBrokers, sequence: int) -> int:
        return await cluster.produce(b"x", producer_id=5, producer_epoch=0, base_sequence=sequence)

    async def run_case() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.create(min_insync_replicas="2")
            for sequence, end in enumerate(("stop", "kill", "stop", "kill")):
                assert await send(cluster, sequence) == sequence
                leader = cluster.partition().leader
                await getattr(cluster.nodes[leader], end)()
                for known in range(sequence + 1):
                    assert await send(cluster, known) == known
                await cluster.start(leader)
                assert await send(cluster, sequence) == sequence
                await cluster.until(lambda: len(cluster.partition().isr) == 3)
            assert await cluster.all_equal() == [b"x"] * 4

    asyncio.run(run_case())
