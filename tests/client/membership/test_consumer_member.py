"""Tests members of the new protocol on a real broker: joining, leaving, failures, and no hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from client.live_broker import CONSUMER_GROUPS
from client.membership.live_group import Seat, covered, run_case, seats, until
from penstock.client.admin import operations
from penstock.client.admin.operations import NewTopic
from penstock.client.errors import BrokerError, ClientError, CommitFailed, Fenced
from penstock.client.model import OffsetAndMetadata
from penstock.testing import Broker, Faults
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition


@asynccontextmanager
async def members(
    broker: Broker, group: str, count: int = 1, **options: Any
) -> AsyncIterator[list[Seat]]:
    async with seats(
        broker.bootstrap, group, count, group_protocol="consumer", **options
    ) as opened:
        yield opened


@pytest.mark.parametrize("assignor", [None, "uniform", "range"])
def test_members_join_and_leave(consumer_groups_broker: Broker, assignor: str | None) -> None:
    """After every change, each partition has exactly one owner."""
    broker = consumer_groups_broker
    topic, group = broker.new_topic(6), broker.new_name("group")

    async def case() -> None:
        async with members(broker, group, 3, remote_assignor=assignor) as (a, b, c):
            a.subscribe(topic)
            await until(lambda: covered(6, a), a)
            b.subscribe(topic)
            await until(lambda: covered(6, a, b), a, b)
            kept = a.owned
            c.subscribe(topic)
            await until(lambda: covered(6, a, b, c), a, b, c)
            assert {len(seat.owned) for seat in (a, b, c)} == {2}
            if assignor != "range":
                assert a.owned <= kept
            await b.member.close(patient(5.0))
            await until(lambda: covered(6, a, c), a, c)
            await a.member.unsubscribe()
            await until(lambda: covered(6, c), c)
            a.subscribe(topic)
            await until(lambda: covered(6, a, c), a, c)

    run_case(case())


def test_a_member_never_stops_reading_partitions_that_stay(consumer_groups_broker: Broker) -> None:
    """The first member is notified only of the half that it gives up, and it commits that before
    the other one reads it."""
    broker = consumer_groups_broker
    topic, group = broker.new_topic(4), broker.new_name("group")

    async def case() -> None:
        async with members(broker, group, 2) as (a, b):
            a.subscribe(topic)
            await until(lambda: covered(4, a), a)
            a.read_to(7)
            b.subscribe(topic)
            await until(lambda: covered(4, a, b), a, b)
            revoked = [numbers for what, numbers in a.notes if what == "revoked"]
            assert revoked == [b.owned]
            found = await b.member.committed([TopicPartition(topic, n) for n in b.owned])
            assert {each.offset for each in found.values() if each} == {7}
            assert "lost" not in {what for what, _ in a.notes + b.notes}

    run_case(case())


def test_a_member_that_crashed_is_replaced(consumer_groups_broker: Broker) -> None:
    """Its partitions move when its session ends."""
    broker = consumer_groups_broker
    topic, group = broker.new_topic(4), broker.new_name("group")

    async def case() -> None:
        async with members(broker, group, 2) as (a, b):
            a.subscribe(topic)
            b.subscribe(topic)
            await until(lambda: covered(4, a, b), a, b)
            await a.member.close(patient(5.0), leave=False)
            await until(lambda: covered(4, b), b)

    run_case(case())


def test_a_static_member_keeps_its_partitions_while_it_restarts(
    consumer_groups_broker: Broker,
) -> None:
    """It leaves for a while. Nothing moves meanwhile, and the next process gets the same."""
    broker = consumer_groups_broker
    topic, group = broker.new_topic(4), broker.new_name("group")

    async def case() -> None:
        async with (
            members(broker, group, 1) as (other,),
            members(broker, group, 1, group_instance_id="i") as (first,),
        ):
            other.subscribe(topic)
            first.subscribe(topic)
            await until(lambda: covered(4, other, first), other, first)
            had, epoch = first.owned, other.member.generation
            await first.member.close(patient(5.0))
            async with members(broker, group, 1, group_instance_id="i") as (second,):
                second.subscribe(topic)
                await until(lambda: covered(4, other, second), other, second)
                assert second.owned == had
                assert other.member.generation == epoch
                assert [what for what, _ in other.notes].count("assigned") <= 3

    run_case(case())


def test_a_static_member_waits_for_its_former_session(consumer_groups_broker: Broker) -> None:
    """The first process ended without a word. The second one gets its place when the session of the
    first has ended."""
    broker = consumer_groups_broker
    topic, group = broker.new_topic(2), broker.new_name("group")

    async def case() -> None:
        async with members(broker, group, 2, group_instance_id="i") as (first, second):
            first.subscribe(topic)
            await until(lambda: covered(2, first), first)
            await first.member._stop_working()
            second.subscribe(topic)
            await until(lambda: covered(2, second), second)
            with pytest.raises((Fenced, CommitFailed, BrokerError)):
                await first.member.commit({TopicPartition(topic, 0): OffsetAndMetadata(3)})

    run_case(case())


def test_regular_expressions_are_resolved_by_the_broker(consumer_groups_broker: Broker) -> None:
    """A topic that is created later is read too."""
    broker = consumer_groups_broker
    prefix, group = broker.new_name("orders"), broker.new_name("group")

    async def case() -> None:
        async with members(broker, group, 1) as (a,):
            await operations.create_topic(a.cluster, NewTopic(f"{prefix}-x", partitions=2))
            a.subscribe(regex=f"{prefix}-.*")
            await until(lambda: len(a.member.assignment) == 2, a)
            await operations.create_topic(a.cluster, NewTopic(f"{prefix}-y", partitions=1))
            await until(lambda: TopicPartition(f"{prefix}-y", 0) in a.member.assignment, a)

    run_case(case())


def test_an_expression_that_is_not_valid_is_an_error(consumer_groups_broker: Broker) -> None:
    broker = consumer_groups_broker

    async def case() -> None:
        async with members(broker, broker.new_name("group"), 1) as (a,):
            a.subscribe(regex="(")
            with pytest.raises(BrokerError) as caught:
                await until(lambda: False, a)
            assert caught.value.code.name == "INVALID_REGULAR_EXPRESSION"

    run_case(case())


def test_an_unknown_assignor_is_an_error(consumer_groups_broker: Broker) -> None:
    broker = consumer_groups_broker

    async def case() -> None:
        async with members(broker, broker.new_name("group"), 1, remote_assignor="mine") as (a,):
            a.subscribe(broker.new_topic(1))
            with pytest.raises(BrokerError, match="uniform"):
                await until(lambda: False, a)

    run_case(case())


def test_a_member_that_does_not_poll_leaves_and_returns(consumer_groups_broker: Broker) -> None:
    """Its commits fail in the meantime."""
    broker = consumer_groups_broker
    topic, group = broker.new_topic(2), broker.new_name("group")

    async def case() -> None:
        async with members(broker, group, 2, max_poll_interval_ms=int(patient(1_500))) as (a, b):
            a.subscribe(topic)
            await until(lambda: covered(2, a), a)
            b.subscribe(topic)
            await until(lambda: covered(2, b), b)
            with pytest.raises(CommitFailed):
                await a.member.commit({TopicPartition(topic, 0): OffsetAndMetadata(1)})
            await until(lambda: covered(2, a, b), a, b)
            assert ("lost", frozenset({0, 1})) in a.notes or len(a.notes) > 2

    run_case(case())


def test_partitions_that_are_added_are_assigned(consumer_groups_broker: Broker) -> None:
    broker = consumer_groups_broker
    topic, group = broker.new_topic(1), broker.new_name("group")

    async def case() -> None:
        async with members(broker, group, 1) as (a,):
            a.subscribe(topic)
            await until(lambda: covered(1, a), a)
            await operations.create_partitions(a.cluster, topic, 3)
            await until(lambda: covered(3, a), a)

    run_case(case())


def test_a_broker_without_the_protocol_says_what_to_do() -> None:
    with Broker({"group.coordinator.rebalance.protocols": "classic"}) as broker:

        async def case() -> None:
            async with members(broker, broker.new_name("group"), 1) as (a,):
                a.subscribe("t")
                with pytest.raises(ClientError, match=r"group\.coordinator\.rebalance\.protocols"):
                    await until(lambda: False, a)

        run_case(case())


@pytest.mark.parametrize("fault", ["restart", "kill"])
def test_the_group_survives_a_restart_of_its_broker(fault: str) -> None:
    """Members keep what they own: the coordinator loads its state from the log."""
    # No session may end while the broker is away.
    with Broker(CONSUMER_GROUPS | {"group.consumer.session.timeout.ms": "60000"}) as broker:
        topic, group = broker.new_topic(4), broker.new_name("group")

        async def case() -> None:
            async with members(broker, group, 2) as (a, b):
                a.subscribe(topic)
                b.subscribe(topic)
                await until(lambda: covered(4, a, b), a, b)
                before = a.owned, b.owned, a.member.generation
                if fault == "kill":
                    await asyncio.to_thread(broker.kill)
                    await asyncio.to_thread(broker.start)
                else:
                    await asyncio.to_thread(broker.restart)
                beats = a.member.stats().heartbeats, b.member.stats().heartbeats
                await until(lambda: a.member.stats().heartbeats > beats[0] + 1, a, b)
                await until(lambda: b.member.stats().heartbeats > beats[1] + 1, a, b)
                await a.member.commit(
                    {TopicPartition(topic, n): OffsetAndMetadata(5) for n in a.owned}
                )
                assert (a.owned, b.owned, a.member.generation) == before
                assert "lost" not in {what for what, _ in a.notes + b.notes}

        run_case(case())


def _has_beaten(seat: Seat, times: int) -> bool:
    return seat.member.stats().heartbeats >= times


def test_heartbeats_whose_answers_are_lost_do_no_harm(consumer_groups_broker: Broker) -> None:
    """The connection is cut again and again while members join. In the end each partition has one
    owner, and nobody was told of a loss."""
    broker = consumer_groups_broker
    topic, group = broker.new_topic(6), broker.new_name("group")

    async def case() -> None:
        with Faults(broker.bootstrap) as faults:
            async with seats(faults.bootstrap, group, 3, group_protocol="consumer") as (a, b, c):
                for seat in (a, b, c):
                    seat.subscribe(topic)
                    for _ in range(5):
                        faults.cut_after(0, api="ConsumerGroupHeartbeat")
                        beats = seat.member.stats().heartbeats
                        await until(partial(_has_beaten, seat, beats + 1), a, b, c)
                await until(lambda: covered(6, a, b, c), a, b, c)
                assert "lost" not in {what for seat in (a, b, c) for what, _ in seat.notes}

    run_case(case())
