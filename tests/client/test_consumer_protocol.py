"""Tests consumers of the new group protocol (KIP-848), async and blocking, on a real broker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import Any

import pytest

from penstock import Consumer, Producer, TopicPartition, aio
from penstock.client.options import ConsumerOptions
from penstock.errors import OptionError
from penstock.testing import Broker
from penstock.testing.slowness import patient

LIMIT_S = 75.0
NEW: dict[str, Any] = {"group_protocol": "consumer", "auto_offset_reset": "earliest"}
Raw = aio.Consumer[bytes | None, bytes | None]


def run(case: Coroutine[Any, Any, None]) -> None:
    async def main() -> None:
        async with asyncio.timeout(patient(LIMIT_S)):
            await case

    asyncio.run(main())


def fill(broker: Broker, topic: str, partitions: int, count: int = 5) -> set[bytes]:
    values = set()
    with Producer(broker.bootstrap) as producer:
        for partition in range(partitions):
            for number in range(count):
                value = f"{partition}-{number}".encode()
                producer.send(topic, value, partition=partition)
                values.add(value)
    return values


class Log:
    """A listener that keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, set[TopicPartition]]] = []

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("assigned", set(partitions)))

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("revoked", set(partitions)))

    def on_lost(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("lost", set(partitions)))


async def read(count: int, *consumers: Raw) -> set[bytes | None]:
    found: set[bytes | None] = set()
    while len(found) < count:
        for consumer in consumers:
            found |= {record.value for record in await consumer.poll(100)}
    return found


def test_two_consumers_share_a_topic_and_resume(consumer_groups_broker: Broker) -> None:
    """The second consumer takes half of the partitions, from where the first one stopped."""
    broker = consumer_groups_broker
    topic, group = broker.new_topic(4), broker.new_name("group")
    first = fill(broker, topic, 4)

    async def case() -> None:
        log = Log()
        async with aio.Consumer(broker.bootstrap, group_id=group, **NEW) as a:
            await a.subscribe([topic], listener=log)
            assert await read(20, a) == first
            async with aio.Consumer(broker.bootstrap, topics=topic, group_id=group, **NEW) as b:
                while len(b.assignment()) != 2 or len(a.assignment()) != 2:
                    assert not [*await a.poll(50), *await b.poll(50)]
                assert ("revoked", set(b.assignment())) in log.told
                fill(broker, topic, 4, 1)
                assert len(await read(4, a, b)) == 4
            while len(a.assignment()) != 4:
                assert not await a.poll(50)
        assert "lost" not in {what for what, _ in log.told}

    run(case())


def test_a_blocking_consumer(consumer_groups_broker: Broker) -> None:
    broker = consumer_groups_broker
    topic, group = broker.new_topic(2), broker.new_name("group")
    values = fill(broker, topic, 2)
    log = Log()
    with Consumer(
        broker.bootstrap, group_id=group, listener=log, topics=[topic], **NEW
    ) as consumer:
        found: set[bytes | None] = set()
        while len(found) < len(values):
            found |= {record.value for record in consumer.poll(1_000)}
        assert found == values
        consumer.commit()
    assert log.told[-1] == ("revoked", {TopicPartition(topic, 0), TopicPartition(topic, 1)})
    with Consumer(broker.bootstrap, group_id=group, topics=[topic], **NEW) as consumer:
        while len(consumer.assignment()) != 2:
            assert consumer.poll(100) == []
        committed = consumer.committed()
        assert {each.offset for each in committed.values() if each is not None} == {5}


@pytest.mark.parametrize("compiled", [False, True])
def test_patterns(consumer_groups_broker: Broker, compiled: bool) -> None:
    """A string is a regular expression of the broker. A compiled pattern is Python's, and the
    client finds the topics that match it."""
    broker = consumer_groups_broker
    topic, group = broker.new_topic(2), broker.new_name("group")
    values = fill(broker, topic, 2)
    pattern = re.compile(f"(?i){topic.upper()}") if compiled else f"{topic[:-1]}[{topic[-1]}]"

    async def case() -> None:
        async with aio.Consumer(broker.bootstrap, group_id=group, **NEW) as consumer:
            await consumer.subscribe(pattern=pattern)
            assert await read(len(values), consumer) == values
            assert consumer.subscription() == (frozenset({topic}) if compiled else frozenset())

    run(case())


def test_a_subscription_can_change_and_end(consumer_groups_broker: Broker) -> None:
    broker = consumer_groups_broker
    one, two, group = broker.new_topic(1), broker.new_topic(1), broker.new_name("group")
    fill(broker, one, 1, 1)
    fill(broker, two, 1, 2)

    async def case() -> None:
        async with aio.Consumer(broker.bootstrap, group_id=group, **NEW) as consumer:
            await consumer.subscribe([one])
            assert len(await read(1, consumer)) == 1
            await consumer.subscribe(pattern=two)
            assert len(await read(2, consumer)) == 2
            assert consumer.assignment() == {TopicPartition(two, 0)}
            await consumer.unsubscribe()
            assert consumer.assignment() == frozenset()
            await consumer.subscribe([one, two])
            while len(consumer.assignment()) != 2:
                assert await consumer.poll(100) == []

    run(case())


def test_offsets_in_a_transaction_follow_the_epoch(consumer_groups_broker: Broker) -> None:
    """A member joined after the records were read, so the epoch has grown. Nothing was given up."""
    broker = consumer_groups_broker
    topic, group = broker.new_topic(1), broker.new_name("group")
    fill(broker, topic, 1)
    stable = {**NEW, "isolation_level": "read_committed"}

    async def case() -> None:
        async with (
            aio.Consumer(broker.bootstrap, topics=topic, group_id=group, **stable) as a,
            aio.Consumer(broker.bootstrap, topics=topic, group_id=group, **NEW) as b,
            aio.Producer(broker.bootstrap, transactional_id=group) as producer,
        ):
            await read(5, a)
            before = a.membership[1].generation
            while a.membership[1].generation == before:
                await b.poll(50)
                await a.poll(50)
            async with producer.transaction() as transaction:
                await transaction.send_offsets({TopicPartition(topic, 0): 3}, a)
            committed = await a.committed(TopicPartition(topic, 0))
            assert [each and each.offset for each in committed.values()] == [3]

    run(case())


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"group_protocol": "new"}, '"classic" or "consumer"'),
        ({"group_protocol": "consumer", "group_id": None}, "give group_id"),
        ({"group_protocol": "consumer", "session_timeout_ms": 9_000}, "session.timeout.ms"),
        ({"group_protocol": "consumer", "heartbeat_interval_ms": 9}, "heartbeat.interval.ms"),
        (
            {"group_protocol": "consumer", "partition_assignment_strategy": "range"},
            "group_remote_assignor",
        ),
        ({"group_remote_assignor": "range"}, "partition_assignment_strategy"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], advice: str) -> None:
    with pytest.raises(OptionError, match=re.escape(advice)):
        ConsumerOptions.parse("localhost:9092", {"group_id": "g", **options})


def test_the_protocol_may_be_written_as_in_java() -> None:
    options = ConsumerOptions.parse("h:1", {"group_id": "g", "group_protocol": "CONSUMER"})
    assert options.group_protocol == "consumer"
