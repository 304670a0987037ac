"""Tests members on a real broker: joining, leaving, losing partitions, failures, and no hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from client.membership.live_group import Seat, covered, run_case, seats, until
from penstock.client.admin import operations
from penstock.client.errors import BrokerError, Closed, CommitFailed, Fenced
from penstock.client.membership.assignors import (
    COOPERATIVE_STICKY,
    RANGE,
    ROUNDROBIN,
    STICKY,
    Assignor,
)
from penstock.client.membership.autocommit import Offsets
from penstock.client.membership.listener import Listener
from penstock.client.model import OffsetAndMetadata
from penstock.testing import Broker, Faults
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition

EVERY = [RANGE, ROUNDROBIN, STICKY, COOPERATIVE_STICKY]


@pytest.mark.parametrize("assignor", EVERY, ids=lambda assignor: assignor.name)
def test_members_join_and_leave(live_broker: Broker, assignor: Assignor) -> None:
    """After every change, each partition has exactly one owner."""
    topic, group = live_broker.new_topic(6), live_broker.new_name("group")

    async def case() -> None:
        async with seats(live_broker.bootstrap, group, 3, assignor=assignor) as (a, b, c):
            a.subscribe(topic)
            await until(lambda: covered(6, a), a)
            b.subscribe(topic)
            await until(lambda: covered(6, a, b), a, b)
            kept = a.owned
            c.subscribe(topic)
            await until(lambda: covered(6, a, b, c), a, b, c)
            assert {len(seat.owned) for seat in (a, b, c)} == {2}
            if assignor in (STICKY, COOPERATIVE_STICKY):
                assert a.owned <= kept
            await b.member.close(patient(30.0))
            await until(lambda: covered(6, a, c), a, c)
            await a.member.unsubscribe()
            await until(lambda: covered(6, c), c)
            a.subscribe(topic)
            await until(lambda: covered(6, a, c), a, c)

    run_case(case())


def test_a_cooperative_member_never_stops_reading_partitions_that_stay(live_broker: Broker) -> None:
    """The first member is notified only of the half that it gives up."""
    topic, group = live_broker.new_topic(4), live_broker.new_name("group")

    async def case() -> None:
        async with seats(live_broker.bootstrap, group, 2, assignor=COOPERATIVE_STICKY) as (a, b):
            a.subscribe(topic)
            await until(lambda: covered(4, a), a)
            b.subscribe(topic)
            await until(lambda: covered(4, a, b), a, b)
            told = [note for note in a.notes if note[1]]
            assert told == [("assigned", frozenset(range(4))), ("revoked", b.owned)]

    run_case(case())


def test_a_static_member_gets_its_partitions_back(live_broker: Broker) -> None:
    """It closes and returns within the session timeout: it owns the same partitions, and
    other members do not notice."""
    topic, group = live_broker.new_topic(4), live_broker.new_name("group")

    async def case() -> None:
        async with seats(live_broker.bootstrap, group, 1) as (other,):
            async with seats(live_broker.bootstrap, group, 1, group_instance_id="i") as (static,):
                other.subscribe(topic)
                static.subscribe(topic)
                await until(lambda: covered(4, other, static), other, static)
                owned, generation = static.owned, other.member.generation
            async with seats(live_broker.bootstrap, group, 1, group_instance_id="i") as (back,):
                back.subscribe(topic)
                await until(lambda: covered(4, other, back), other, back)
                assert back.owned == owned
                assert other.member.generation == generation
                await back.member.close(patient(30.0), leave=True)
                await until(lambda: covered(4, other), other)

    run_case(case())


def test_the_older_of_two_members_with_one_instance_id_is_fenced(live_broker: Broker) -> None:
    """It loses its partitions, and every poll reports why."""
    topic, group = live_broker.new_topic(1), live_broker.new_name("group")

    async def case() -> None:
        async with seats(live_broker.bootstrap, group, 2, group_instance_id="i") as (old, new):
            old.subscribe(topic)
            await until(lambda: covered(1, old), old)
            new.subscribe(topic)
            await until(lambda: covered(1, new), new)
            for _ in range(2):
                with pytest.raises(Fenced, match="'i'"):
                    await until(lambda: False, old)
            assert old.notes[-1] == ("lost", frozenset([0]))
            with pytest.raises(CommitFailed):
                await old.member.commit({TopicPartition(topic, 0): OffsetAndMetadata(1)})

    run_case(case())


def test_a_member_that_is_not_polled_is_replaced(live_broker: Broker) -> None:
    """Another member takes over, a late commit is refused, and the next poll
    reports all partitions as lost."""
    topic, group = live_broker.new_topic(2), live_broker.new_name("group")
    topic_partition = TopicPartition(topic, 0)

    async def case() -> None:
        async with (
            seats(
                live_broker.bootstrap,
                group,
                1,
                max_poll_interval_ms=int(patient(1_500.0)),
                enable_auto_commit=False,
            ) as (slow,),
            seats(live_broker.bootstrap, group, 1, enable_auto_commit=False) as (quick,),
        ):
            slow.subscribe(topic)
            quick.subscribe(topic)
            await until(lambda: covered(2, slow, quick), slow, quick)
            await until(lambda: quick.owned == {0, 1}, quick)
            with pytest.raises(CommitFailed):
                await slow.member.commit({topic_partition: OffsetAndMetadata(5)})
            await until(lambda: covered(2, slow, quick), slow, quick)
            assert [note[0] for note in slow.notes][-2:] == ["lost", "assigned"]
            late = asyncio.create_task(
                slow.member.commit({topic_partition: OffsetAndMetadata(6, "note")})
            )
            await until(late.done, slow, quick)
            await late
            found = await quick.member.committed([topic_partition, TopicPartition(topic, 1)])
            assert found[topic_partition] == OffsetAndMetadata(6, "note")
            assert found[TopicPartition(topic, 1)] is None

    run_case(case())


def test_a_vanished_member_is_noticed() -> None:
    """Its session ends without a LeaveGroup request, and the others take over."""

    async def case(broker: Broker, faults: Faults) -> None:
        topic, group = broker.new_topic(2), broker.new_name("group")
        brief = {"session_timeout_ms": int(patient(3_000)), "retry_backoff_max_ms": 100}
        async with (
            seats(faults.bootstrap, group, 1, **brief) as (lost,),
            seats(broker.bootstrap, group, 1, **brief) as (rest,),
        ):
            lost.subscribe(topic)
            rest.subscribe(topic)
            await until(lambda: covered(2, lost, rest), lost, rest)
            faults.refuse_connections()
            faults.drop_connections()
            await until(lambda: covered(2, rest), lost, rest)
            assert len(lost.owned) == 1
            faults.accept_connections()
            await until(lambda: covered(2, lost, rest), lost, rest)
            assert "lost" in [note[0] for note in lost.notes]

    with (
        Broker({"group.min.session.timeout.ms": "100"}) as broker,
        Faults(broker.bootstrap) as faults,
    ):
        run_case(case(broker, faults))


def test_members_survive_a_crash_and_restart_of_the_coordinator(own_broker: Broker) -> None:
    """They find it again, committed offsets are kept, and polls never wait for it."""
    topic = own_broker.new_topic(4)

    async def case(group: str, assignor: Assignor, back: asyncio.Barrier) -> None:
        options = {"assignor": assignor, "enable_auto_commit": False}
        async with seats(own_broker.bootstrap, group, 2, **options) as (a, b):
            a.subscribe(topic)
            b.subscribe(topic)
            await until(lambda: covered(4, a, b), a, b)
            topic_partition = min(a.member.assignment)
            await a.member.commit({topic_partition: OffsetAndMetadata(9)})
            await back.wait()
            for seat in (a, b):
                async with asyncio.timeout(patient(10)):
                    await seat.member.poll()
            await back.wait()
            await until(lambda: covered(4, a, b), a, b)
            beats = a.member.stats().heartbeats
            await until(lambda: a.member.stats().heartbeats > beats, a, b)
            found = await b.member.committed([topic_partition])
            assert found[topic_partition] == OffsetAndMetadata(9)

    async def kill(killed: asyncio.Barrier) -> None:
        async with killed:
            own_broker.kill()
        async with killed:
            await asyncio.to_thread(own_broker.start)

    async def main() -> None:
        barrier = asyncio.Barrier(3)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(case("eager", RANGE, barrier))
            tasks.create_task(case("cooperative", COOPERATIVE_STICKY, barrier))
            tasks.create_task(kill(barrier))

    run_case(main())


def test_a_coordinator_that_never_answers_blocks_no_call(own_broker: Broker) -> None:
    """Polls return at once; commits and `close` end at their deadlines."""
    topic, group = own_broker.new_topic(1), own_broker.new_name("group")

    async def case() -> None:
        loop = asyncio.get_running_loop()
        async with seats(own_broker.bootstrap, group, 2) as (a, joining):
            a.subscribe(topic)
            await until(lambda: covered(1, a), a)
            own_broker.freeze()
            joining.subscribe(topic)
            began = loop.time()
            for seat in (a, joining):
                await seat.member.poll()
            assert loop.time() - began < patient(10)
            await a.member.close(0.3)
            await joining.member.close(0.3)
            assert loop.time() - began < patient(20)
            own_broker.thaw()

    run_case(case())


def test_a_member_may_close_during_a_rebalance(live_broker: Broker) -> None:
    """Its JoinGroup request is parked because another member does not
    poll. It leaves nevertheless."""
    topic, group = live_broker.new_topic(2), live_broker.new_name("group")

    async def case() -> None:
        loop = asyncio.get_running_loop()
        async with seats(live_broker.bootstrap, group, 2) as (busy, other):
            busy.subscribe(topic)
            await until(lambda: covered(2, busy), busy)
            other.subscribe(topic)
            await until(lambda: bool(other.member.member_id), other)
            began = loop.time()
            await other.member.close(90.0)
            assert loop.time() - began < 90
            await until(lambda: covered(2, busy), busy)

    run_case(case())


def test_new_partitions_and_topics_are_assigned(live_broker: Broker) -> None:
    """The leader of the group notices them, and the group rebalances."""
    topic, group = live_broker.new_topic(1), live_broker.new_name("group")
    later = live_broker.new_name("later")

    async def case() -> None:
        async with seats(
            live_broker.bootstrap,
            group,
            1,
            metadata_max_age_ms=100,
        ) as (a,):
            a.subscribe(topic, later)
            await until(lambda: covered(1, a), a)
            await operations.create_partitions(a.cluster, topic, 3)
            await until(lambda: covered(3, a), a)
            live_broker.new_topic(2, name=later)
            await until(lambda: len(a.member.assignment) == 5, a)

    run_case(case())


def test_a_subscription_may_change(live_broker: Broker) -> None:
    """Partitions of removed topics are revoked, those of new topics are assigned."""
    one, two = live_broker.new_topic(2), live_broker.new_topic(3)

    async def case() -> None:
        name = live_broker.new_name("group")
        async with seats(live_broker.bootstrap, name, 1, assignor=COOPERATIVE_STICKY) as (a,):
            a.subscribe(one)
            await until(lambda: covered(2, a), a)
            a.subscribe(two)
            await until(lambda: {p.topic for p in a.member.assignment} == {two}, a)
            assert ("revoked", frozenset([0, 1])) in a.notes

    run_case(case())


def test_an_exception_in_a_listener_is_raised_by_poll(live_broker: Broker) -> None:
    """It is raised once, and the assignment takes effect nevertheless. A listener may be async."""
    topic, group = live_broker.new_topic(2), live_broker.new_name("group")
    heard: list[str] = []

    class Moody:
        async def on_assigned(self, topic_partitions: list[TopicPartition]) -> None:
            await asyncio.sleep(0)
            heard.append("assigned")
            raise ZeroDivisionError

        def on_revoked(self, topic_partitions: list[TopicPartition]) -> None:
            heard.append("revoked")
            raise KeyError

    async def case() -> None:
        async with seats(live_broker.bootstrap, group, 1) as (a,):
            a.member.subscribe([topic], Listener.of(Moody()))
            with pytest.raises(ZeroDivisionError):
                await until(lambda: False, a)
            await until(lambda: covered(2, a), a)
            with pytest.raises(KeyError):
                await a.member.close(patient(30.0))
            assert heard == ["assigned", "revoked"]
            assert a.positions == {}
            await a.member.close(patient(30.0))
            with pytest.raises(Closed):
                a.member.subscribe([topic])

    run_case(case())


def committed_when(
    live_broker: Broker, act: Callable[[Seat], object], **options: object
) -> tuple[Seat, dict[TopicPartition, OffsetAndMetadata | None]]:
    """Reads to offset 5, calls `act`, and returns what another member finds committed."""
    topic, group = live_broker.new_topic(1), live_broker.new_name("group")
    kept: list[tuple[Seat, dict[TopicPartition, OffsetAndMetadata | None]]] = []

    async def case() -> None:
        async with (
            seats(live_broker.bootstrap, group, 1, **options) as (a,),
            seats(live_broker.bootstrap, group, 1, enable_auto_commit=False) as (b,),
        ):
            a.subscribe(topic)
            await until(lambda: covered(1, a), a)
            a.read_to(5)
            result = act(a)
            if asyncio.iscoroutine(result):
                await result
            kept.append((a, await b.member.committed([TopicPartition(topic, 0)])))

    run_case(case())
    return kept[0]


def test_auto_commit_commits_at_intervals(live_broker: Broker) -> None:
    """Inside polls, without waiting, and only offsets that have changed."""

    offsets: list[int] = []

    async def reads_on(a: Seat) -> None:
        await until(lambda: 5 in map(offset_of, a.commits), a)
        a.read_to(6)
        await until(lambda: 6 in map(offset_of, a.commits), a)
        offsets.extend(map(offset_of, a.commits))

    _, found = committed_when(live_broker, reads_on, auto_commit_interval_ms=50)
    assert offsets in ([5, 6], [0, 5, 6])
    assert [value and value.offset for value in found.values()] == [6]


def offset_of(commit: Offsets) -> int:
    (position,) = commit.values()
    return position.offset


def test_auto_commit_commits_at_close(live_broker: Broker) -> None:
    """Before the partitions are assigned to others."""
    _, found = committed_when(live_broker, lambda a: a.member.close(patient(30.0)))
    assert [value and value.offset for value in found.values()] == [5]


def test_without_auto_commit_nothing_is_committed(live_broker: Broker) -> None:
    """Not even at close."""
    _, found = committed_when(
        live_broker, lambda a: a.member.close(patient(30.0)), enable_auto_commit=False
    )
    assert list(found.values()) == [None]


def test_auto_commit_commits_before_a_revocation(live_broker: Broker) -> None:
    """So that the next owner continues from there."""
    topic, group = live_broker.new_topic(2), live_broker.new_name("group")

    async def case() -> None:
        never = {"auto_commit_interval_ms": 600_000}
        async with seats(live_broker.bootstrap, group, 2, **never) as (a, b):
            a.subscribe(topic)
            await until(lambda: covered(2, a), a)
            a.read_to(7)
            b.subscribe(topic)
            await until(lambda: covered(2, a, b), a, b)
            (topic_partition,) = b.member.assignment
            assert await b.member.committed([topic_partition]) == {
                topic_partition: OffsetAndMetadata(7)
            }

    run_case(case())


def test_a_refused_join_is_raised_by_poll(live_broker: Broker) -> None:
    """A session timeout that the broker does not allow; the error has the broker's message."""
    topic, group = live_broker.new_topic(1), live_broker.new_name("group")

    async def case() -> None:
        async with seats(live_broker.bootstrap, group, 1, session_timeout_ms=1) as (a,):
            a.subscribe(topic)
            for _ in range(2):
                with pytest.raises(BrokerError, match="session timeout"):
                    await until(lambda: False, a)

    run_case(case())


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup", "Heartbeat", "FindCoordinator"])
def test_failed_and_lost_requests_are_repeated(live_broker: Broker, api: str) -> None:
    """The coordinator refuses with COORDINATOR_NOT_AVAILABLE, or the connection
    is cut before the answer."""
    topic, group = live_broker.new_topic(2), live_broker.new_name("group")

    async def case(faults: Faults) -> None:
        async with seats(faults.bootstrap, group, 1, retry_backoff_ms=10) as (a,):
            faults.fail(api, "COORDINATOR_NOT_AVAILABLE", times=2)
            a.subscribe(topic)
            await until(lambda: covered(2, a), a)
            faults.cut_after(3, api=api)
            a.member.request_rejoin("to see")
            beats = a.member.stats().heartbeats
            await until(lambda: covered(2, a) and a.member.stats().heartbeats > beats + 2, a)

    with Faults(live_broker.bootstrap) as faults:
        run_case(case(faults))
