"""Tests the offsets that a consumer commits, with a real broker."""

from __future__ import annotations

from typing import Any

from client.consuming.open_consumers import consumer_of, drain, numbered, run
from client.open_clusters import cluster_of
from client.test_consumer import topic_partitions
from penstock.client.admin.operations import delete_topics
from penstock.client.model import OffsetAndMetadata, Record
from penstock.testing import Broker
from penstock.topic_partition import TopicPartition


def test_offsets_are_committed_with_metadata_and_read_back(live_broker: Broker) -> None:
    """This includes partitions that were assigned manually by a consumer with a group id."""
    topic, group = live_broker.new_topic(2), live_broker.new_name("group")
    first, second = topic_partitions(topic, 2)

    async def work() -> None:
        await numbered(live_broker.bootstrap, topic, 2, 20, per=20)
        options: dict[str, Any] = {"group_id": group, "enable_auto_commit": False}
        async with consumer_of(live_broker.bootstrap, **options) as consumer:
            consumer.assign([first, second])
            await drain(consumer, 40)
            assert await consumer.committed(first) == {first: None}
            await consumer.commit({first: OffsetAndMetadata(7, "so far"), second: 9})
        told: list[Any] = []
        async with consumer_of(live_broker.bootstrap, **options) as consumer:
            consumer.assign([first, second])
            found = await consumer.committed()
            assert found[first] == OffsetAndMetadata(7, "so far")
            assert (await consumer.position(first), await consumer.position(second)) == (7, 9)
            await drain(consumer, 13 + 11)
            consumer.commit_nowait(on_commit=lambda offsets, error: told.append((offsets, error)))
            await consumer.commit()
            assert told == [(consumer.positions(), None)]
            committed = await consumer.committed(first)
            assert committed == {first: OffsetAndMetadata(20, "", 0)}

    run(work)


def test_auto_commit_commits_what_was_returned_and_nothing_else(live_broker: Broker) -> None:
    topic, group = live_broker.new_topic(), live_broker.new_name("group")
    topic_partition = TopicPartition(topic, 0)

    async def work(assign: bool) -> int | None:
        name = f"{group}-{assign}"
        options: dict[str, Any] = {"group_id": name, "auto_commit_interval_ms": 0}
        async with consumer_of(live_broker.bootstrap, **options) as consumer:
            if assign:
                consumer.assign([topic_partition])
            else:
                await consumer.subscribe(topic)
            got: list[Record[Any, Any]] = []
            while len(got) < 7:
                got += await consumer.poll(timeout_ms=1_000, max_records=7 - len(got))
        async with consumer_of(live_broker.bootstrap, group_id=name) as consumer:
            found = (await consumer.committed(topic_partition))[topic_partition]
            return None if found is None else found.offset

    run(lambda: numbered(live_broker.bootstrap, topic, 1, 20, per=20))
    assert run(lambda: work(True)) == 7
    assert run(lambda: work(False)) == 7


def test_manually_assigned_partitions_are_committed_before_they_are_given_up(
    live_broker: Broker,
) -> None:
    """Both a new assignment and `unsubscribe` give partitions up."""
    topic, group = live_broker.new_topic(2), live_broker.new_name("group")
    first, second = topic_partitions(topic, 2)

    async def work() -> None:
        await numbered(live_broker.bootstrap, topic, 2, 20, per=20)
        async with consumer_of(live_broker.bootstrap, group_id=group) as consumer:
            consumer.assign([first])
            assert len(await consumer.poll(timeout_ms=30_000, max_records=3)) == 3
            consumer.assign([second])
            while await consumer.position(second) < 4:
                await consumer.poll(timeout_ms=2_000, max_records=4)
            await consumer.unsubscribe()
            found = await consumer.committed(first, second)
            offsets = [each.offset for each in found.values() if each is not None]
            assert offsets == [3, 4]

    run(work)


def test_a_deleted_topic_is_not_created_again(live_broker: Broker) -> None:
    """The broker creates topics when metadata requests ask for them, so the consumer must not
    ask."""
    topic, other = live_broker.new_topic(), live_broker.new_topic()

    async def work() -> None:
        options: dict[str, Any] = {"metadata_max_age_ms": 20, "topics": [topic, other]}
        async with consumer_of(live_broker.bootstrap, **options) as consumer:
            assert await consumer.poll(timeout_ms=100) == []
            async with cluster_of(live_broker.bootstrap) as cluster:
                await delete_topics(cluster, [topic])
            assert await consumer.poll(timeout_ms=300) == []
            assert topic not in await consumer.topics()
            await numbered(live_broker.bootstrap, other, 1, 3, per=3)
            await drain(consumer, 3)

    run(work)


def test_nothing_is_committed_while_auto_commit_is_held(live_broker: Broker) -> None:
    topic, group = live_broker.new_topic(), live_broker.new_name("group")
    topic_partition = TopicPartition(topic, 0)

    async def work() -> None:
        await numbered(live_broker.bootstrap, topic, 1, 5, per=5)
        options: dict[str, Any] = {"group_id": group, "auto_commit_interval_ms": 0}
        async with consumer_of(live_broker.bootstrap, topics=topic, **options) as consumer:
            consumer.hold_auto_commit()
            await drain(consumer, 5)
        async with consumer_of(live_broker.bootstrap, group_id=group) as consumer:
            assert await consumer.committed(topic_partition) == {topic_partition: None}

    run(work)
