"""Transactions of other clients: committed records are read once, aborted ones never."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import aiokafka
import confluent_kafka as ck
import kafka
import pytest

from compat.conftest import TopicFactory
from compat.java_build import VERSIONS, compiled
from compat.toolchain import run_scenario
from penstock.testing.slowness import patient

Name = Callable[[], str]
DEADLINE_S = 150.0
QUIET = {"log_level": 2}


class Transactor(Protocol):
    """A producer that runs one transaction at a time."""

    def transact(self, topic: str, values: Sequence[bytes], *, commit: bool) -> None:
        """Runs a transaction; every value is acknowledged before it ends."""

    def close(self) -> None: ...


class Confluent:
    def __init__(self, bootstrap: str, name: str) -> None:
        self._producer = ck.Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 1, **QUIET}
        )
        self._producer.init_transactions(DEADLINE_S)

    def transact(self, topic: str, values: Sequence[bytes], *, commit: bool) -> None:
        self._producer.begin_transaction()
        for number, value in enumerate(values):
            self._producer.produce(topic, value, partition=number % 2)
        assert self._producer.flush(DEADLINE_S) == 0
        if commit:
            self._producer.commit_transaction(DEADLINE_S)
        else:
            self._producer.abort_transaction(DEADLINE_S)

    def close(self) -> None:
        self._producer.flush(DEADLINE_S)


class KafkaPython:
    def __init__(self, bootstrap: str, name: str) -> None:
        self._producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        self._producer.init_transactions()

    def transact(self, topic: str, values: Sequence[bytes], *, commit: bool) -> None:
        self._producer.begin_transaction()
        for number, value in enumerate(values):
            self._producer.send(topic, value, partition=number % 2)
        self._producer.flush(DEADLINE_S)
        if commit:
            self._producer.commit_transaction()
        else:
            self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(DEADLINE_S)


class Aio:
    def __init__(self, bootstrap: str, name: str) -> None:
        self._runner = asyncio.Runner()
        self._producer = self._runner.run(self._start(bootstrap, name))

    @staticmethod
    async def _start(bootstrap: str, name: str) -> aiokafka.AIOKafkaProducer:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        await producer.start()
        return producer

    async def _transact(self, topic: str, values: Sequence[bytes], commit: bool) -> None:
        await self._producer.begin_transaction()
        sent = [
            await self._producer.send(topic, value, partition=number % 2)
            for number, value in enumerate(values)
        ]
        await asyncio.gather(*sent)
        if commit:
            await self._producer.commit_transaction()
        else:
            await self._producer.abort_transaction()

    def transact(self, topic: str, values: Sequence[bytes], *, commit: bool) -> None:
        self._runner.run(asyncio.wait_for(self._transact(topic, values, commit), DEADLINE_S))

    def close(self) -> None:
        self._runner.run(self._producer.stop())
        self._runner.close()


KINDS: dict[str, Callable[[str, str], Transactor]] = {
    "confluent": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": Aio,
}


def consumer_of(bootstrap: str, group: str, isolation: str = "read_committed") -> ck.Consumer:
    return ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
            **QUIET,
        }
    )


class Reader:
    """Reads everything after all transactions have ended: commits are answered before that."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._by_isolation = {
            isolation: consumer_of(bootstrap, name, isolation)
            for isolation in ("read_uncommitted", "read_committed")
        }

    def end_of(self, topic_partition: ck.TopicPartition) -> int:
        deadline = time.monotonic() + patient(DEADLINE_S)
        while time.monotonic() < deadline:
            ends = {
                consumer.get_watermark_offsets(topic_partition, DEADLINE_S, cached=False)[1]
                for consumer in self._by_isolation.values()
            }
            if len(ends) == 1:
                return ends.pop()
        raise AssertionError(
            f"a transaction is open on {topic_partition.topic}-{topic_partition.partition}"
        )

    def read(self, topic: str, partitions: int, isolation: str = "read_committed") -> list[bytes]:
        """Returns the records of one partition after the other, in order."""
        found: list[bytes] = []
        consumer = self._by_isolation[isolation]
        for index in range(partitions):
            topic_partition = ck.TopicPartition(topic, index, 0)
            consumer.assign([topic_partition])
            end, reached = self.end_of(topic_partition), 0
            deadline = time.monotonic() + patient(DEADLINE_S)
            while reached < end:
                assert time.monotonic() < deadline, f"{topic}-{index} ends at {end}, not {reached}"
                message = consumer.poll(0.05)
                if message is not None and not message.error():
                    found.append(message.value() or b"")
                reached = max(reached, consumer.position([topic_partition])[0].offset)
        consumer.unassign()
        return found

    def close(self) -> None:
        for consumer in self._by_isolation.values():
            consumer.close()


@pytest.fixture
def reader(broker: str, name: Name) -> Iterator[Reader]:
    opened = Reader(broker, name())
    yield opened
    opened.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_read_committed_consumer_gets_no_aborted_records(
    broker: str,
    topic: TopicFactory,
    name: Name,
    reader: Reader,
    kind: str,
) -> None:
    """A read_uncommitted consumer gets it. Order is kept within each partition."""
    made = topic(2)
    producer = KINDS[kind](broker, name())
    transactions = [[b"%d-%d" % (number, each) for each in range(20)] for number in range(6)]
    for number, values in enumerate(transactions):
        producer.transact(made, values, commit=number % 3 != 1)
    producer.close()
    expected = [values for number, values in enumerate(transactions) if number % 3 != 1]
    for isolation, kept in (("read_uncommitted", transactions), ("read_committed", expected)):
        wanted = [value for index in (0, 1) for values in kept for value in values[index::2]]
        assert reader.read(made, 2, isolation) == wanted


@pytest.mark.parametrize("version", VERSIONS)
def test_transactions_of_the_java_client(
    broker: str, topic: TopicFactory, name: Name, reader: Reader, tmp_path: Path, version: str
) -> None:
    """3.9 adds partitions first (AddPartitionsToTxn). 4.x adds them with their first batch, and
    gets a new epoch for each transaction (KIP-890). Both commit offsets in transactions, and are
    fenced by their successors."""
    made, group = topic(2), name()
    classes = compiled(version, tmp_path, "Transactions")
    flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
    arguments = [broker, made, name(), group]
    told = run_scenario(["java", *flags, "-cp", classes, "Transactions", *arguments])
    assert told == {"end": {"fenced": True}}
    wanted = [
        b"%d-%d" % (number, each)
        for index in (0, 1)
        for number in (0, 2, 3, 5)
        for each in range(index, 20, 2)
    ]
    assert reader.read(made, 2) == wanted
    last = consumer_of(broker, group)
    (committed,) = last.committed([ck.TopicPartition(made, 0)], DEADLINE_S)
    last.close()
    assert committed.offset == 5


def test_a_second_instance_fences_the_first(
    broker: str, topic: TopicFactory, name: Name, reader: Reader
) -> None:
    """Its open transaction is aborted, and it cannot commit any more."""
    made, identity = topic(2), name()
    first = ck.Producer({"bootstrap.servers": broker, "transactional.id": identity, "log_level": 0})
    first.init_transactions(DEADLINE_S)
    first.begin_transaction()
    first.produce(made, b"zombie", partition=0)
    assert first.flush(DEADLINE_S) == 0
    second = Confluent(broker, identity)
    with pytest.raises(ck.KafkaException) as refused:
        first.commit_transaction(DEADLINE_S)
    assert refused.value.args[0].code() == ck.KafkaError._FENCED
    second.transact(made, [b"alive"], commit=True)
    assert reader.read(made, 2) == [b"alive"]


def write_numbers(broker: str, topic: str, count: int) -> None:
    producer = ck.Producer({"bootstrap.servers": broker, **QUIET})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(DEADLINE_S) == 0


def test_consume_transform_produce_loses_and_duplicates_nothing(
    broker: str, topic: TopicFactory, name: Name, reader: Reader
) -> None:
    """Instances of one application die at different steps without closing. The next one continues
    from what was committed: every record is copied once and in order, and the group's offset is at
    the end of the input."""
    source, target = topic(1), topic(1)
    count, step = 300, 25
    write_numbers(broker, source, count)
    group, identity = name(), name()
    copied, life = 0, 0
    left: list[ck.Producer] = []
    while copied < count:
        life += 1
        assert life < 100
        producer = ck.Producer(
            {"bootstrap.servers": broker, "transactional.id": identity, "log_level": 0}
        )
        left.append(producer)  # Never closed, as after a crash.
        producer.init_transactions(DEADLINE_S)
        consumer = consumer_of(broker, group)
        consumer.subscribe([source])
        deadline = time.monotonic() + patient(DEADLINE_S)
        for turn in range(4):
            records: list[ck.Message] = []
            while len(records) < step and copied + len(records) < count:
                assert time.monotonic() < deadline
                records += [each for each in consumer.consume(step, 0.1) if each.error() is None][
                    : step - len(records)
                ]
            if not records:
                break
            if turn == 0:
                assert records[0].value() == b"%d" % copied
            producer.begin_transaction()
            for record in records:
                producer.produce(target, record.value(), partition=0)
            dies = life % 3 if turn == 2 else 0
            if dies == 1:
                producer.flush(DEADLINE_S)
                break
            next_offset = ck.TopicPartition(source, 0, copied + len(records))
            producer.send_offsets_to_transaction(
                [next_offset], consumer.consumer_group_metadata(), DEADLINE_S
            )
            if dies == 2:
                break
            producer.commit_transaction(DEADLINE_S)
            copied += len(records)
            consumer.seek(next_offset)
        with suppress(ck.KafkaException):
            consumer.close()
    wanted = [b"%d" % number for number in range(count)]
    assert reader.read(target, 1) == wanted
    last = consumer_of(broker, group)
    (committed,) = last.committed([ck.TopicPartition(source, 0)], DEADLINE_S)
    last.close()
    assert committed.offset == count


def test_a_transaction_that_times_out_is_aborted(
    broker: str, topic: TopicFactory, name: Name, reader: Reader
) -> None:
    """Read_committed consumers do not wait longer than the transaction timeout."""
    made = topic(2)
    producer = ck.Producer(
        {
            "bootstrap.servers": broker,
            "transactional.id": name(),
            "transaction.timeout.ms": 1_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(made, b"late", partition=0)
    assert producer.flush(DEADLINE_S) == 0
    plain = ck.Producer({"bootstrap.servers": broker, **QUIET})
    plain.produce(made, b"behind", partition=0)
    assert plain.flush(DEADLINE_S) == 0
    assert reader.read(made, 1) == [b"behind"]
    with pytest.raises(ck.KafkaException):
        producer.commit_transaction(DEADLINE_S)
