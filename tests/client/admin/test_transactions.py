"""Tests transactions in `Admin`: listing them, finding hanging ones, and ending them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from client.hanging_transactions import LIMIT_S, forgetful_broker, leave_open
from penstock import TopicPartition
from penstock.aio import Admin, Consumer, Producer
from penstock.client.admin.transactions import TransactionInfo, TransactionListing
from penstock.client.errors import BrokerError, Fenced, OptionError, TopicNotFound
from penstock.testing import Broker
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode

T = TypeVar("T")


def with_admin(broker: Broker, work: Callable[[Admin], Awaitable[T]]) -> T:
    async def main() -> T:
        async with asyncio.timeout(patient(LIMIT_S)), Admin(broker.bootstrap) as admin:
            return await work(admin)

    return asyncio.run(main())


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, str]]:
    data: Path = tmp_path_factory.mktemp("forgetful")
    with forgetful_broker(data, 0, 1) as (broker, topic):
        yield broker, topic


def test_open_transactions_are_listed_and_described(live_broker: Broker) -> None:
    """With their producers and partitions. A transaction must match all filters."""
    topic, name = live_broker.new_topic(partitions=3), live_broker.new_name("txn")
    leave_open(live_broker, name, topic, 2, 0)

    async def work(admin: Admin) -> None:
        [listed] = [
            each for each in await admin.list_transactions() if each.transactional_id == name
        ]
        assert listed.state == "Ongoing"

        async def mine(**filters: Any) -> list[TransactionListing]:
            return await admin.list_transactions(producer_ids=[listed.producer_id], **filters)

        assert await mine(states=["Ongoing"], pattern=name) == [listed]
        assert await mine(states=["Empty"]) == []
        assert await mine(pattern="other.*") == []
        assert await mine(running_longer_than_ms=3_600_000) == []
        described = await admin.describe_transactions([name, "no-such-id"])
        info, missing = described[name], described["no-such-id"]
        assert isinstance(info, TransactionInfo)
        assert (info.state, info.producer_id) == ("Ongoing", listed.producer_id)
        assert info.partitions == (TopicPartition(topic, 0), TopicPartition(topic, 2))
        assert (info.timeout_ms, info.coordinator) == (60_000, listed.coordinator)
        assert info.start_time_ms > 0
        assert isinstance(missing, BrokerError)
        assert missing.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    with_admin(live_broker, work)


def test_an_unknown_state_is_refused(live_broker: Broker) -> None:
    """An empty list would suggest that no transaction is in that state."""

    async def work(admin: Admin) -> None:
        with pytest.raises(OptionError, match=r"Sleeping: unknown transaction state.*Ongoing"):
            await admin.list_transactions(states=["Sleeping"])

    with_admin(live_broker, work)


def test_an_open_transaction_is_not_hanging(live_broker: Broker) -> None:
    """Its coordinator knows it."""
    topic = live_broker.new_topic(partitions=2)
    leave_open(live_broker, live_broker.new_name("txn"), topic, 0, 1)

    async def work(admin: Admin) -> None:
        search = await admin.find_hanging_transactions([topic])
        assert (search.found, search.not_seen) == ((), ())
        with pytest.raises(TopicNotFound):
            await admin.find_hanging_transactions(["no-such-topic"])

    with_admin(live_broker, work)


def test_terminating_aborts_and_fences(live_broker: Broker) -> None:
    """The producer with that id is fenced at its commit. An unknown id is not created."""
    topic, name = live_broker.new_topic(), live_broker.new_name("txn")
    topic_partition = TopicPartition(topic, 0)

    async def work(admin: Admin) -> None:
        async with Producer(live_broker.bootstrap, transactional_id=name, linger_ms=0) as producer:
            with pytest.raises(Fenced):
                async with producer.transaction():
                    await (await producer.send(topic, b"never", partition=0))
                    await admin.terminate_transaction(name)
                    [open_one] = (await admin.describe_producers([topic_partition]))[
                        topic_partition
                    ]
                    assert open_one.transaction_start_offset == -1
        info = (await admin.describe_transactions([name]))[name]
        assert isinstance(info, TransactionInfo)
        assert (info.state, info.partitions) == ("Empty", ())
        with pytest.raises(BrokerError, match="no-such-id does not exist"):
            await admin.terminate_transaction("no-such-id")
        assert await admin.list_transactions(pattern="no-such-id") == []

    with_admin(live_broker, work)


def test_a_hanging_transaction_is_found_and_aborted(forgetful: tuple[Broker, str]) -> None:
    """On each partition separately. Then readers of committed records can pass it."""
    broker, topic = forgetful

    async def work(admin: Admin) -> None:
        search = await admin.find_hanging_transactions()
        assert search.not_seen == ()
        assert {(each.topic_partition, each.start_offset) for each in search.found} == {
            (TopicPartition(topic, 0), 0),
            (TopicPartition(topic, 1), 0),
        }
        async with Producer(broker.bootstrap, linger_ms=0) as producer:
            for index in (0, 1):
                await producer.send(topic, b"behind", partition=index)
        for number, each in enumerate(search.found):
            assert await committed(broker, each.topic_partition, wait_ms=300) == []
            await admin.abort_transaction(
                each.topic_partition,
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                coordinator_epoch=each.coordinator_epoch,
            )
            left = (await admin.find_hanging_transactions([topic])).found
            assert left == search.found[number + 1 :]
            assert await committed(broker, each.topic_partition, wait_ms=10_000) == [b"behind"]

    with_admin(broker, work)


def test_a_late_abort_is_refused(forgetful: tuple[Broker, str]) -> None:
    """Its epoch is older than that of the open transaction."""
    broker, topic = forgetful
    leave_open(broker, "again", topic, 2)
    topic_partition = TopicPartition(topic, 2)

    async def work(admin: Admin) -> None:
        await admin.terminate_transaction("again")
        [producer] = (await admin.describe_producers([topic_partition]))[topic_partition]
        with pytest.raises(BrokerError, match="has a newer epoch now"):
            await admin.abort_transaction(
                topic_partition,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch - 1,
                coordinator_epoch=producer.coordinator_epoch,
            )

    with_admin(broker, work)


async def committed(
    broker: Broker, topic_partition: TopicPartition, wait_ms: int
) -> list[bytes | None]:
    async with Consumer(
        broker.bootstrap, isolation_level="read_committed", fetch_max_wait_ms=50
    ) as consumer:
        consumer.assign([topic_partition])
        consumer.seek_to_beginning()
        return [record.value for record in await consumer.poll(timeout_ms=wait_ms)]
