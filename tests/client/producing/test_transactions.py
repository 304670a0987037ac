"""Tests transactions of Penstock's own producer with a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from itertools import count

import pytest

from penstock import TopicPartition
from penstock.aio import Admin, Consumer, Producer
from penstock.client.admin.transactions import TransactionInfo
from penstock.client.errors import (
    ClientError,
    Closed,
    Fenced,
    OptionError,
    RecordTooLarge,
    TransactionAborted,
)
from penstock.client.producing import transactions
from penstock.testing import Broker
from penstock.testing.slowness import patient

TIMEOUT_S = 150.0
_numbers = count()


@pytest.fixture(params=["the new way", "the older way"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test with transaction.version 2, and with the older protocol,
    which needs more requests."""
    if request.param == "the older way":
        monkeypatch.setattr(transactions, "LEVEL", 3)


both_ways = pytest.mark.usefixtures("way")


def run_case(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(patient(TIMEOUT_S)):
            await scenario()

    asyncio.run(limited())


async def topic_on(
    broker: Broker, partitions: int = 2, configs: Mapping[str, str] | None = None
) -> str:
    name = f"transactions-{next(_numbers)}"
    async with Admin(broker.bootstrap) as admin:
        await admin.create_topic(name, partitions=partitions, configs=configs)
    return name


def producer_on(
    broker: Broker, name: str, timeout_ms: int = 60_000
) -> Producer[bytes | None, bytes | None]:
    return Producer(
        broker.bootstrap, transactional_id=name, transaction_timeout_ms=timeout_ms, linger_ms=1
    )


class Trouble(Exception):
    """An application error, raised inside a transaction."""


async def fail_after(producer: Producer[bytes | None, bytes | None]) -> None:
    """Raises an error once everything is written."""
    await producer.flush()
    raise Trouble


async def read(
    broker: Broker, topic: str, wanted: int, *, last: bytes | None = None
) -> list[bytes | None]:
    """Returns the committed records. Waits for `wanted` records, for the record `last` if one is
    given, and shortly for more."""
    found: list[bytes | None] = []
    async with Consumer(
        broker.bootstrap,
        topics=[topic],
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        fetch_max_wait_ms=50,
    ) as consumer:
        while len(found) < wanted or (last is not None and last not in found):
            found += [record.value for record in await consumer.poll(timeout_ms=200)]
        found += [record.value for record in await consumer.poll(timeout_ms=200)]
    return found


async def until_aborted(broker: Broker, transactional_id: str) -> None:
    async with Admin(broker.bootstrap) as admin:
        while True:
            found = (await admin.describe_transactions([transactional_id]))[transactional_id]
            assert isinstance(found, TransactionInfo)
            if found.state == "CompleteAbort":
                return
            await asyncio.sleep(0.05)


@both_ways
def test_a_block_is_one_transaction(live_broker: Broker) -> None:
    """Leaving the block commits. An error inside aborts the transaction and is raised. An empty
    transaction sends nothing. The next transaction has its own epoch."""

    async def scenario() -> None:
        topic = await topic_on(live_broker)
        async with producer_on(live_broker, topic) as producer:
            for number in range(4):
                try:
                    async with producer.transaction():
                        for index in (0, 1):
                            await producer.send(topic, b"%d" % number, partition=index)
                        if number == 1:
                            await fail_after(producer)
                except Trouble:
                    assert number == 1
                async with producer.transaction():
                    pass
            with pytest.raises(ClientError, match=r"transaction\(\)"):
                await producer.send(topic, b"outside")
        assert sorted(await read(live_broker, topic, 6)) == sorted([b"0", b"2", b"3"] * 2)  # type: ignore[type-var]

    run_case(scenario)


@both_ways
def test_a_newer_producer_with_the_same_id_fences_the_older(live_broker: Broker) -> None:
    """At its commit at the latest, and permanently. Its records are never read."""

    async def scenario() -> None:
        topic = await topic_on(live_broker)
        async with producer_on(live_broker, topic) as older:
            with pytest.raises(Fenced):
                async with older.transaction():
                    await (await older.send(topic, b"old", partition=0))
                    async with producer_on(live_broker, topic) as newer, newer.transaction():
                        await newer.send(topic, b"new", partition=0)
            with pytest.raises(Fenced):
                async with older.transaction():
                    pass
        assert await read(live_broker, topic, 1) == [b"new"]

    run_case(scenario)


@both_ways
def test_offsets_are_committed_with_the_transaction(live_broker: Broker) -> None:
    """A consumer's offsets carry its membership. If the transaction is aborted they are discarded,
    and the next consumer of the group reads the same records again."""

    async def scenario() -> None:
        source, target = await topic_on(live_broker, 1), await topic_on(live_broker, 1)
        async with Producer(live_broker.bootstrap) as feed:
            for number in range(30):
                await feed.send(source, b"%d" % number)
        for turn in range(6):
            await copy_ten(source, target, fails=turn % 2 == 0)
        assert await read(live_broker, target, 30) == [b"%d" % number for number in range(30)]

    async def copy_ten(source: str, target: str, *, fails: bool) -> None:
        async with (
            producer_on(live_broker, target) as producer,
            Consumer(
                live_broker.bootstrap,
                topics=[source],
                group_id=target,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level="read_committed",
                max_poll_records=10,
            ) as consumer,
        ):
            records = await consumer.poll(timeout_ms=1_000)
            while len(records) < 10:
                records += await consumer.poll(1_000, 10 - len(records))
            try:
                async with producer.transaction() as transaction:
                    for record in records:
                        await producer.send(target, record.value)
                    topic_partition = TopicPartition(source, 0)
                    await transaction.send_offsets(
                        {topic_partition: records[-1].offset + 1}, consumer
                    )
                    if fails:
                        await fail_after(producer)
            except Trouble:
                assert fails

    run_case(scenario)


@both_ways
def test_a_transaction_that_timed_out_fails_at_its_end(live_broker: Broker) -> None:
    """The broker has aborted it; the same producer may begin another."""

    async def scenario() -> None:
        topic = await topic_on(live_broker)
        limit_s = patient(2.0)
        async with producer_on(live_broker, topic, timeout_ms=int(1_000 * limit_s)) as producer:
            with pytest.raises(TransactionAborted) as aborted:
                async with producer.transaction():
                    await (await producer.send(topic, b"late", partition=0))
                    await until_aborted(live_broker, topic)
            assert aborted.value.retriable
            is_committed = False
            while not is_committed:  # On a busy machine a short transaction may time out as well.
                with suppress(TransactionAborted):
                    async with producer.transaction():
                        await producer.send(topic, b"in time", partition=0)
                    is_committed = True
        assert await read(live_broker, topic, 1) == [b"in time"]

    run_case(scenario)


@both_ways
def test_an_undelivered_record_aborts_its_transaction(live_broker: Broker) -> None:
    """Even if the caller ignored its delivery: a commit means that all records are stored."""

    async def scenario() -> None:
        topic = await topic_on(live_broker, 2, {"max.message.bytes": "2000"})
        async with producer_on(live_broker, topic) as producer:
            with pytest.raises(TransactionAborted, match="not delivered") as aborted:
                async with producer.transaction():
                    await (await producer.send(topic, b"lost too", partition=0))
                    await producer.send(topic, bytes(5_000), partition=1)
            assert isinstance(aborted.value.__cause__, RecordTooLarge)
            async with producer.transaction():
                await producer.send(topic, b"kept", partition=0)
        assert await read(live_broker, topic, 1) == [b"kept"]

    run_case(scenario)


@pytest.mark.parametrize("aborts", [True, False])
def test_a_producer_interrupted_while_ending_a_transaction_is_unusable(
    own_broker: Broker, aborts: bool
) -> None:
    """The open transaction must not become part of its next one. Another producer with the same id
    aborts it, or finds it committed."""

    async def end_interrupted(topic: str, producer: Producer[bytes | None, bytes | None]) -> None:
        async with asyncio.timeout(None) as limit, producer.transaction():
            await (await producer.send(topic, b"left", partition=0))
            own_broker.freeze()
            limit.reschedule(asyncio.get_running_loop().time() + 0.3)
            if aborts:
                raise Trouble

    async def scenario() -> None:
        topic = await topic_on(own_broker)
        async with producer_on(own_broker, topic) as producer:
            with pytest.raises(TimeoutError):
                await end_interrupted(topic, producer)
            own_broker.thaw()
            with pytest.raises(ClientError, match="outcome is unknown"):
                async with producer.transaction():
                    pass
        async with producer_on(own_broker, topic) as another, another.transaction():
            await another.send(topic, b"next", partition=0)
        found = await read(own_broker, topic, 1, last=b"next")
        assert found == [b"next"] or (not aborts and found == [b"left", b"next"])

    run_case(scenario)


@both_ways
def test_closing_a_producer_aborts_its_open_transaction(live_broker: Broker) -> None:
    """At once, not when the transaction times out. The end of the block raises `Closed`."""

    async def scenario() -> None:
        topic = await topic_on(live_broker)
        producer = producer_on(live_broker, topic)
        await producer.start()
        with pytest.raises(Closed, match="inside the transaction"):
            async with producer.transaction():
                await (await producer.send(topic, b"written", partition=0))
                await producer.send(topic, b"buffered", partition=1)
                await producer.close()
        async with Admin(live_broker.bootstrap) as admin:
            found = (await admin.describe_transactions([topic]))[topic]
            assert getattr(found, "state", found) in ("PrepareAbort", "CompleteAbort", "Empty")
        async with Producer(live_broker.bootstrap) as plain:
            for index in (0, 1):
                await plain.send(topic, b"plain", partition=index)
        assert await read(live_broker, topic, 2) == [b"plain"] * 2

    run_case(scenario)


@both_ways
def test_many_transactions_over_many_partitions(live_broker: Broker) -> None:
    """With batches of all sizes and aborted transactions in between: committed
    records are stored in order."""

    async def scenario() -> None:
        topic = await topic_on(live_broker, 3)
        expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
        async with producer_on(live_broker, topic) as producer:
            for turn in range(12):
                sizes = [10 * (turn + 1) ** 2 for _ in range(turn * 3)]
                values = [b"%d-%d:" % (turn, n) + bytes(size) for n, size in enumerate(sizes)]
                try:
                    async with producer.transaction():
                        for number, value in enumerate(values):
                            await producer.send(topic, value, partition=number % 3)
                        if turn % 3 == 1:
                            await fail_after(producer)
                except Trouble:
                    continue
                for number, value in enumerate(values):
                    expected[number % 3].append(value)
        wanted = sum(len(values) for values in expected.values())
        found = await read(live_broker, topic, wanted)
        assert len(found) == wanted
        for values in expected.values():
            mine = set(values)
            assert [value for value in found if value in mine] == values

    run_case(scenario)


def test_transactions_need_a_transactional_id() -> None:
    """They also need idempotence, which is the default."""
    with pytest.raises(OptionError, match="transactional_id"):
        Producer("localhost:1").transaction()
    with pytest.raises(OptionError, match="enable_idempotence"):
        Producer("localhost:1", transactional_id="t", enable_idempotence=False)
