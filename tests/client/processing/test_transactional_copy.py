"""Tests `exactly_once`: through crashes and rebalances, the output equals the input."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock import Record, TopicPartition
from penstock.aio import Admin, Consumer, Producer, exactly_once
from penstock.client.admin.transactions import TransactionInfo
from penstock.client.errors import Fenced, OptionError, TransactionAborted
from penstock.interceptors import ProducerRecord
from penstock.testing import Broker
from penstock.testing.slowness import patient

SCRIPT = Path(__file__).with_name("copying_in_transactions.py")
LIMIT_S = 150.0
PARTITIONS = 3

Bytes = bytes | None
Given = list[Record[Bytes, Bytes]]
Made = list[ProducerRecord[Bytes, Bytes]]


def run_case(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(patient(LIMIT_S)):
            await scenario()

    asyncio.run(limited())


async def fill(broker: Broker, topic: str, count: int) -> None:
    async with Producer(broker.bootstrap) as producer:
        for number in range(count):
            await producer.send(topic, b"%06d" % number, partition=number % PARTITIONS)


def consumer_on(broker: Broker, source: str, group: str) -> Consumer[Bytes, Bytes]:
    return Consumer(
        broker.bootstrap,
        topics=[source],
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )


def producer_on(broker: Broker, name: str, timeout_ms: int = 60_000) -> Producer[Bytes, Bytes]:
    return Producer(
        broker.bootstrap, transactional_id=name, transaction_timeout_ms=timeout_ms, linger_ms=1
    )


def copied(records: Given, target: str) -> Made:
    return [
        ProducerRecord(target, record.value, record.key, partition=record.partition)
        for record in records
    ]


async def read(broker: Broker, topic: str, wanted: int) -> dict[int, list[Bytes]]:
    """Returns all committed records by partition, and any that arrive shortly afterwards."""
    found: dict[int, list[Bytes]] = {index: [] for index in range(PARTITIONS)}
    async with Consumer(
        broker.bootstrap, isolation_level="read_committed", fetch_max_wait_ms=50
    ) as consumer:
        consumer.assign([TopicPartition(topic, index) for index in range(PARTITIONS)])
        consumer.seek_to_beginning()
        more = True
        while more or sum(map(len, found.values())) < wanted:
            records = await consumer.poll(timeout_ms=300)
            more = bool(records)
            for record in records:
                found[record.partition].append(record.value)
    return found


def expected(count: int) -> dict[int, list[Bytes]]:
    return {
        index: [b"%06d" % number for number in range(index, count, PARTITIONS)]
        for index in range(PARTITIONS)
    }


def topics_on(broker: Broker) -> tuple[str, str]:
    return broker.new_topic(partitions=PARTITIONS), broker.new_topic(partitions=PARTITIONS)


# -- in one process ------------------------------------------------------------------------------


def test_everything_is_copied_until_it_is_stopped(live_broker: Broker) -> None:
    """Once and in order. The summary reports the committed offsets."""
    source, target = topics_on(live_broker)
    stop = asyncio.Event()
    seen: list[Bytes] = []

    def handle(records: Given) -> Made:
        assert len(records) <= 50
        seen.extend(record.value for record in records)
        if len(seen) == 600:
            stop.set()
        return copied(records, target)

    async def scenario() -> None:
        await fill(live_broker, source, 600)
        async with (
            producer_on(live_broker, target) as producer,
            consumer_on(live_broker, source, target) as consumer,
        ):
            summary = await exactly_once(consumer, producer, handle, max_records=50, stop=stop)
        assert (summary.processed, summary.retried) == (600, 0)
        assert summary.committed == {TopicPartition(source, n): 200 for n in range(PARTITIONS)}
        assert await read(live_broker, target, 600) == expected(600)

    run_case(scenario)


def test_an_aborted_transaction_is_repeated(live_broker: Broker) -> None:
    """Here because it exceeded its timeout. No reader sees the first attempt."""
    source, target = topics_on(live_broker)
    stop = asyncio.Event()
    calls: list[list[Bytes]] = []

    async def scenario() -> None:
        await fill(live_broker, source, 90)
        async with (
            producer_on(live_broker, target, timeout_ms=int(patient(5_000))) as producer,
            consumer_on(live_broker, source, target) as consumer,
            Admin(live_broker.bootstrap) as admin,
        ):

            async def is_open() -> bool:
                found = (await admin.describe_transactions([target]))[target]
                return not isinstance(found, TransactionInfo) or found.state == "Ongoing"

            async def handle(records: Given) -> Made:
                calls.append([record.value for record in records])
                if len(calls) == 2:
                    # A transaction begins with its first batch. Before that, nothing can time out.
                    await (await producer.send(target, b"too early", partition=0))
                    while await is_open():  # noqa: ASYNC110 - the broker ends it
                        await asyncio.sleep(0.05)
                if len(calls) > 2 and sum(map(len, calls)) == 90 + len(calls[1]):
                    stop.set()
                return copied(records, target)

            summary = await exactly_once(consumer, producer, handle, max_records=10, stop=stop)
        assert (summary.processed, summary.retried) == (90, 1)
        assert set(calls[1]) <= set().union(*calls[2:])
        assert await read(live_broker, target, 90) == expected(90)

    run_case(scenario)


def test_a_failing_handler_ends_the_copy_and_loses_nothing(live_broker: Broker) -> None:
    """The consumer's position is unchanged, so the same consumer and producer can continue."""
    source, target = topics_on(live_broker)
    stop = asyncio.Event()
    done = 0

    def handle(records: Given) -> Made:
        nonlocal done
        done += len(records)
        if done == 60:
            stop.set()
        return copied(records, target)

    def refuse(records: Given) -> Made:
        raise KeyError("not today")

    async def scenario() -> None:
        await fill(live_broker, source, 60)
        async with (
            producer_on(live_broker, target) as producer,
            consumer_on(live_broker, source, target) as consumer,
        ):
            for _ in range(2):
                with pytest.raises(KeyError, match="not today"):
                    await exactly_once(consumer, producer, refuse)
            await exactly_once(consumer, producer, handle, stop=stop)
        assert await read(live_broker, target, 60) == expected(60)

    run_case(scenario)


def test_a_permanent_failure_is_raised(live_broker: Broker) -> None:
    """A record that is too large for its topic fails again on every attempt."""
    source = live_broker.new_topic(partitions=PARTITIONS)
    target = live_broker.new_topic(configs={"max.message.bytes": "2000"})

    def enlarge(records: Given) -> Made:
        return [ProducerRecord(target, bytes(5_000), None)]

    async def scenario() -> None:
        await fill(live_broker, source, 3)
        async with (
            producer_on(live_broker, target) as producer,
            consumer_on(live_broker, source, target) as consumer,
        ):
            with pytest.raises(TransactionAborted, match="not delivered"):
                await exactly_once(consumer, producer, enlarge, retries=2)
            assert set((await consumer.committed()).values()) == {None}

    run_case(scenario)


def test_a_newer_instance_with_the_same_id_fences_the_older_one(live_broker: Broker) -> None:
    """The older one raises `Fenced`, and its output is never read."""
    source, target = topics_on(live_broker)

    async def scenario() -> None:
        await fill(live_broker, source, 30)
        async with (
            producer_on(live_broker, target) as producer,
            consumer_on(live_broker, source, target) as consumer,
        ):

            async def overtaken(records: Given) -> Made:
                await (await producer.send(target, b"old", partition=0))
                async with producer_on(live_broker, target):
                    return copied(records, target)

            with pytest.raises(Fenced):
                await exactly_once(consumer, producer, overtaken)
        assert await read(live_broker, target, 0) == expected(0)

    run_case(scenario)


@pytest.mark.parametrize(
    ("reader", "writer", "message"),
    [
        ({"group_id": None}, {}, "give the consumer a group_id"),
        ({"enable_auto_commit": True}, {}, "enable_auto_commit=False"),
        ({"isolation_level": "read_uncommitted"}, {}, "read_committed"),
        ({}, {"transactional_id": None}, "transactional_id"),
    ],
)
def test_options_that_would_not_be_exactly_once_are_refused(
    reader: dict[str, Any], writer: dict[str, Any], message: str
) -> None:
    """Before anything is read."""
    options: dict[str, Any] = {
        "group_id": "g",
        "enable_auto_commit": False,
        "isolation_level": "read_committed",
    } | reader

    async def scenario() -> None:
        consumer: Consumer[Bytes, Bytes] = Consumer("localhost:1", **options)
        producer: Producer[Bytes, Bytes] = Producer(
            "localhost:1", **({"transactional_id": "t"} | writer)
        )
        with pytest.raises(OptionError, match=message):
            await exactly_once(consumer, producer, lambda records: [])

    run_case(scenario)


# -- as processes that are killed ----------------------------------------------------------------


@pytest.fixture
def impatient_broker() -> Iterator[Broker]:
    """A broker with a short session timeout, because members are killed without leaving the
    group."""
    with Broker({"group.min.session.timeout.ms": "500"}) as broker:
        yield broker


def test_an_instance_that_lost_its_partitions_commits_nothing(impatient_broker: Broker) -> None:
    """Its handler took so long that the group assigned the partitions to another member,
    which has already copied them."""
    broker = impatient_broker
    source, target = topics_on(broker)
    taken, over = asyncio.Event(), asyncio.Event()
    copies: list[Bytes] = []

    async def slow(records: Given) -> Made:
        taken.set()
        await over.wait()
        return copied(records, target)

    def quick(records: Given) -> Made:
        copies.extend(record.value for record in records)
        if len(set(copies)) == 60:
            over.set()
        return copied(records, target)

    def member(max_poll_interval_ms: int) -> Consumer[Bytes, Bytes]:
        return Consumer(
            broker.bootstrap,
            topics=[source],
            group_id=target,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            max_poll_interval_ms=max_poll_interval_ms,
        )

    async def scenario() -> None:
        await fill(broker, source, 60)
        async with (
            producer_on(broker, f"{target}-slow") as slow_producer,
            producer_on(broker, f"{target}-quick") as quick_producer,
            member(int(patient(2_000))) as slow_consumer,
            asyncio.TaskGroup() as both,
        ):
            late = both.create_task(exactly_once(slow_consumer, slow_producer, slow, stop=over))
            await taken.wait()
            async with member(300_000) as consumer:
                await exactly_once(consumer, quick_producer, quick, stop=over)
            summary = await late
        assert (summary.processed, summary.retried) == (0, 1)
        assert await read(broker, target, 60) == expected(60)

    run_case(scenario)


class Crew:
    """Two instances, each restarted whenever it is killed."""

    def __init__(self, broker: Broker, source: str, target: str, stack: ExitStack) -> None:
        self._words = (broker.bootstrap, source, target)
        self._target = target
        self.members = [self._start(number) for number in range(2)]
        stack.callback(self.end)

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        name = f"{self._target}-{number}"
        command = [sys.executable, str(SCRIPT), *self._words, name]
        return subprocess.Popen(command, stdout=subprocess.PIPE)

    def kill(self, number: int) -> None:
        """Kills an instance with SIGKILL and starts its successor with the same id."""
        assert self.members[number].poll() is None, "it ended by itself"
        self._end(self.members[number])
        self.members[number] = self._start(number)

    def stop(self) -> list[int]:
        for member in self.members:
            assert member.stdout is not None
            # Before it says that it is ready, SIGTERM would end it without a clean stop.
            assert member.stdout.readline() == b"ready\n"
            member.terminate()
        return [member.wait(LIMIT_S) for member in self.members]

    def end(self) -> None:
        for member in self.members:
            self._end(member)

    @staticmethod
    def _end(member: subprocess.Popen[bytes]) -> None:
        member.kill()
        member.wait(LIMIT_S)
        assert member.stdout is not None
        member.stdout.close()


def test_the_output_equals_the_input_after_kills_and_restarts(impatient_broker: Broker) -> None:
    """Two instances share the work and are killed repeatedly while they work."""
    broker = impatient_broker
    source, target = topics_on(broker)
    count, kills = 9_000, 5
    chance = random.Random(7)

    async def reached(consumer: Consumer[Bytes, Bytes], goal: int) -> None:
        """Waits until this many records are written, committed or not. The broker
        can only be polled for it."""
        topic_partitions = [TopicPartition(target, index) for index in range(PARTITIONS)]
        while sum((await consumer.end_offsets(topic_partitions)).values()) < goal:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def scenario() -> None:
        await fill(broker, source, count)
        with ExitStack() as stack:
            crew = Crew(broker, source, target, stack)
            async with Consumer(broker.bootstrap) as consumer:
                for kill in range(kills):
                    goal = (kill + 1) * count // (kills + 2)
                    await reached(consumer, goal)
                    await asyncio.sleep(chance.random() * 0.02)
                    crew.kill(kill % 2)
            assert await read(broker, target, count) == expected(count)
            assert crew.stop() == [0, 0]
        assert await read(broker, target, count) == expected(count)
        async with Admin(broker.bootstrap) as admin:
            names = [f"{target}-{number}" for number in range(2)]
            states = (await admin.describe_transactions(names)).values()
            assert all(isinstance(each, TransactionInfo) for each in states)
            assert (await admin.find_hanging_transactions()).found == ()

    run_case(scenario)
