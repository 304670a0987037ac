"""Tests `Admin` with a real broker, and with one that does not answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar

import pytest
from confluent_kafka import Producer as ConfluentProducer

from penstock.client.admin.admin import Admin
from penstock.client.admin.offsets import FoundOffset
from penstock.client.admin.operations import NewTopic, TopicInfo
from penstock.client.errors import (
    BrokerError,
    Closed,
    ConnectFailed,
    DeadlineExceeded,
    OptionError,
    TopicNotFound,
)
from penstock.client.model import OffsetAndMetadata
from penstock.metadata.config_types import ConfigSource
from penstock.testing import Broker, Faults
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode

T = TypeVar("T")


def with_admin(bootstrap: str, work: Callable[[Admin], Awaitable[T]]) -> T:
    async def main() -> T:
        async with Admin(bootstrap, default_api_timeout_ms=int(patient(20_000))) as admin:
            return await work(admin)

    return asyncio.run(main())


def produce(broker: Broker, topic: str, *timestamps: int) -> None:
    producer = ConfluentProducer(
        {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True}
    )
    for timestamp in timestamps:
        producer.produce(topic, b"x", partition=0, timestamp=timestamp)
    assert producer.flush(patient(60)) == 0


def test_topics_are_created_changed_and_deleted(live_broker: Broker) -> None:
    first, second = live_broker.new_name(), live_broker.new_name()

    async def work(admin: Admin) -> None:
        made = await admin.create_topic(first, 2, configs={"retention.ms": "3600000"})
        assert (made.name, made.partitions, made.replication_factor) == (first, 2, 1)
        many = await admin.create_topics([NewTopic(first), NewTopic(second, 1)])
        refused = many[first]
        assert isinstance(refused, BrokerError)
        assert refused.code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert {first, second} <= {topic.name for topic in await admin.list_topics()}
        await admin.create_partitions(second, 3)
        assert len((await admin.describe_topic(second)).partitions) == 3
        both = await admin.describe_topics([first, "no-such-topic"])
        assert isinstance(both[first], TopicInfo)
        assert isinstance(both["no-such-topic"], TopicNotFound)
        await admin.delete_topic(first)
        deleted = await admin.delete_topics([second, first])
        assert deleted[second] is None
        assert isinstance(deleted[first], TopicNotFound)

    with_admin(live_broker.bootstrap, work)


def test_validate_only_creates_nothing(live_broker: Broker) -> None:
    name = live_broker.new_name()

    async def work(admin: Admin) -> None:
        await admin.create_topic(name, 3, validate_only=True)
        with pytest.raises(TopicNotFound):
            await admin.describe_topic(name)
        with pytest.raises(BrokerError) as refused:
            await admin.create_topic(name, configs={"retention.ms": "soon"}, validate_only=True)
        assert refused.value.code == ErrorCode.INVALID_CONFIG

    with_admin(live_broker.bootstrap, work)


def test_internal_topics_are_listed_on_request(own_broker: Broker) -> None:
    """On a broker of its own: other tests may have used other internal topics."""
    group = own_broker.new_name("group")
    topic_partition = TopicPartition(own_broker.new_topic(), 0)

    async def work(admin: Admin) -> None:
        await admin.alter_group_offsets(group, {topic_partition: 0})
        shown = {topic.name for topic in await admin.list_topics()}
        hidden = {topic.name for topic in await admin.list_topics(internal=True)} - shown
        assert hidden == {"__consumer_offsets"}

    with_admin(own_broker.bootstrap, work)


def test_configs_of_topics_and_brokers(live_broker: Broker) -> None:
    topic = live_broker.new_topic(configs={"retention.ms": "1000"})

    async def work(admin: Admin) -> None:
        await admin.alter_configs(
            topic=topic, set_values={"max.message.bytes": "5000"}, delete=["retention.ms"]
        )
        configs = await admin.describe_configs(topic=topic)
        assert configs["max.message.bytes"].value == "5000"
        assert configs["max.message.bytes"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG
        assert configs["retention.ms"].is_default
        assert (await admin.describe_configs(broker=0))["num.partitions"].value == "1"
        with pytest.raises(OptionError, match="give one of topic=NAME"):
            await admin.describe_configs(topic=topic, broker=0)
        with pytest.raises(OptionError, match="give one of topic=NAME"):
            await admin.alter_configs(delete=["retention.ms"])

    with_admin(live_broker.bootstrap, work)


def test_a_groups_offsets_are_changed_and_deleted(live_broker: Broker) -> None:
    group, topic = live_broker.new_name("group"), live_broker.new_topic(2)
    topic_partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]

    async def work(admin: Admin) -> None:
        note = OffsetAndMetadata(7, "by hand")
        done = await admin.alter_group_offsets(
            group, {topic_partitions[0]: 5, topic_partitions[1]: note}
        )
        assert done == dict.fromkeys(topic_partitions)
        assert await admin.group_offsets(group) == {
            topic_partitions[0]: OffsetAndMetadata(5),
            topic_partitions[1]: note,
        }
        assert group in {listing.group for listing in await admin.list_groups()}
        described = await admin.describe_groups([group, "no-such-group"])
        missing = described["no-such-group"]
        assert isinstance(missing, BrokerError)
        assert missing.code == ErrorCode.GROUP_ID_NOT_FOUND
        assert (await admin.describe_group(group)).state == "Empty"
        assert await admin.delete_group_offsets(group, [topic_partitions[0]]) == {
            topic_partitions[0]: None
        }
        assert list(await admin.group_offsets(group)) == [topic_partitions[1]]
        await admin.delete_group(group)
        with pytest.raises(BrokerError, match="does not exist"):
            await admin.delete_group(group)

    with_admin(live_broker.bootstrap, work)


def test_offsets_by_time_and_deleted_records(live_broker: Broker) -> None:
    topic_partition = TopicPartition(live_broker.new_topic(), 0)
    base = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
    produce(live_broker, topic_partition.topic, base, base + 9000, base + 5000)

    async def work(admin: Admin) -> None:
        async def found(when: int | datetime | str) -> FoundOffset | None:
            return (await admin.list_offsets({topic_partition: when}))[topic_partition]

        second = datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)
        assert await found(second) == FoundOffset(1, base + 9000, 0)
        assert await found(base + 9001) is None
        assert await found("max_timestamp") == FoundOffset(1, base + 9000, 0)
        assert await admin.delete_records({topic_partition: 2}) == {topic_partition: 2}
        earliest, latest = await found("earliest"), await found("latest")
        assert earliest is not None and earliest.offset == 2
        assert latest is not None and latest.offset == 3
        with pytest.raises(OptionError, match="no time zone"):
            await found(datetime(2026, 1, 1))  # noqa: DTZ001 -- must be refused
        with pytest.raises(OptionError, match="'first' is not a time"):
            await found("first")
        with pytest.raises(TopicNotFound):
            await admin.list_offsets({TopicPartition(topic_partition.topic, 5): "latest"})

    with_admin(live_broker.bootstrap, work)


def test_disks_and_producers_are_described(live_broker: Broker) -> None:
    topic_partition = TopicPartition(live_broker.new_topic(), 0)
    produce(live_broker, topic_partition.topic, 1, 2, 3)

    async def work(admin: Admin) -> None:
        (directory,) = await admin.describe_log_dirs()
        assert directory.broker == 0
        assert directory.replicas[topic_partition].size_bytes > 0
        assert directory.total_bytes > directory.usable_bytes > 0
        assert await admin.describe_log_dirs([0]) is not None
        with pytest.raises(ConnectFailed, match="broker 9"):
            await admin.describe_log_dirs([9])
        (producer,) = (await admin.describe_producers([topic_partition]))[topic_partition]
        assert producer.last_sequence == 2
        assert producer.transaction_start_offset == -1

    with_admin(live_broker.bootstrap, work)


def test_the_cluster_is_described(live_broker: Broker) -> None:
    info = with_admin(live_broker.bootstrap, lambda admin: admin.describe_cluster())
    assert [str(broker.address) for broker in info.brokers] == [live_broker.bootstrap]
    assert info.controller_id == 0


def test_a_cluster_that_does_not_answer_times_out(live_broker: Broker) -> None:
    """Within the timeout of the call, even if the request timeout is longer."""

    async def main(faults: Faults) -> None:
        limit_ms = int(patient(3_000))
        async with Admin(faults.bootstrap, default_api_timeout_ms=limit_ms) as admin:
            faults.silence()
            told = f"list_groups: gave up after {limit_ms / 1_000:g} s"
            with pytest.raises(DeadlineExceeded, match=re.escape(told)):
                await admin.list_groups()

    with Faults(live_broker.bootstrap) as faults:
        asyncio.run(main(faults))


def test_temporary_refusals_are_retried(live_broker: Broker) -> None:
    topic = live_broker.new_name()

    async def main(faults: Faults) -> None:
        async with Admin(faults.bootstrap, retry_backoff_ms=5) as admin:
            faults.fail("CreateTopics", "NOT_CONTROLLER", times=2)
            assert (await admin.create_topic(topic, 1)).partitions == 1
            faults.drop_connections()
            faults.fail("ListOffsets", "NOT_LEADER_OR_FOLLOWER")
            topic_partition = TopicPartition(topic, 0)
            assert await admin.list_offsets({topic_partition: "latest"}) == {
                topic_partition: FoundOffset(0, -1, 0)
            }
            assert faults.count("ListOffsets") == 2

    with Faults(live_broker.bootstrap) as faults:
        asyncio.run(main(faults))


def test_a_closed_admin_raises_closed() -> None:
    async def main() -> None:
        admin = Admin()
        with pytest.raises(Closed, match="start"):
            await admin.list_topics()
        await admin.close()

    asyncio.run(main())


def test_an_unreachable_broker_fails_at_once_and_options_are_checked() -> None:
    async def main() -> None:
        with pytest.raises(ConnectFailed, match="connection refused"):
            await Admin("127.0.0.1:1").start()

    asyncio.run(main())
    with pytest.raises(OptionError, match="default_api_timeout_ms"):
        Admin(default_api_timeout=3)  # type: ignore[call-arg]
