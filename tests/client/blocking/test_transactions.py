"""Tests transactions of the sync producer with a real broker."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace

import pytest

from penstock import Consumer, Fenced, OffsetAndMetadata, Producer, TopicPartition
from penstock.client.errors import BrokerError, ClientError, OptionError
from penstock.testing import Broker
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode

LIMIT_S = 100.0


class Trouble(Exception):
    """An application error, raised inside a transaction."""


class Late:
    """A stand-in for a consumer that has not yet noticed the last rebalance."""

    def __init__(
        self, consumer: Consumer[bytes | None, bytes | None], generation: int | None = None
    ) -> None:
        group, member = consumer.membership
        before = member.generation - 1 if generation is None else generation
        self.membership = group, replace(member, generation=before)


def fail() -> None:
    raise Trouble


def committed(broker: Broker, topic: str, wanted: int) -> list[bytes | None]:
    """Returns the wanted number of committed records, and any that arrive shortly afterwards."""
    found: list[bytes | None] = []
    with Consumer(
        broker.bootstrap,
        topics=[topic],
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        fetch_max_wait_ms=50,
    ) as consumer:
        while len(found) < wanted:
            records = consumer.poll(60_000)
            assert records
            found += [record.value for record in records]
        found += [record.value for record in consumer.poll(200)]
    return found


@pytest.mark.parametrize(("transactional", "batch_size"), [(1, 1_000), (1, 80_000), (0, 80_000)])
def test_full_batches_are_sent_before_the_commit(
    live_broker: Broker, monkeypatch: pytest.MonkeyPatch, *, transactional: bool, batch_size: int
) -> None:
    """In a transaction, the sending thread yields to the event loop every few batches. Without a
    transaction it never yields."""
    turns: list[None] = []
    monkeypatch.setattr("penstock.client.blocking.producer.give_way", lambda: turns.append(None))
    topic = live_broker.new_topic()
    name = topic if transactional else None
    with (
        Producer(live_broker.bootstrap, transactional_id=name, batch_size=batch_size) as producer,
        producer.transaction() if transactional else nullcontext(),
    ):
        for _ in range(2_000):
            producer.send(topic, b"x" * 200)
    assert len(turns) in (range(3, 10) if transactional else [0])


def test_a_block_is_one_transaction(live_broker: Broker) -> None:
    """Leaving the block commits. An error inside aborts and is raised to the caller. Sending
    outside of a transaction is refused."""
    topic = live_broker.new_topic()
    producer = Producer(live_broker.bootstrap, transactional_id=topic, linger_ms=1)
    with producer:
        for number in range(4):
            try:
                with producer.transaction():
                    sent = producer.send(topic, b"%d" % number)
                    if number == 2:
                        sent.result(LIMIT_S)
                        fail()
            except Trouble:
                assert number == 2
        with pytest.raises(ClientError, match=r"transaction\(\)"):
            producer.send(topic, b"outside")
    assert committed(live_broker, topic, 3) == [b"0", b"1", b"3"]


def test_the_first_transaction_connects_the_producer(live_broker: Broker) -> None:
    """As with all sync clients, the first use connects."""
    topic = live_broker.new_topic()
    producer = Producer(live_broker.bootstrap, transactional_id=topic)
    try:
        with producer.transaction():
            producer.send(topic, b"v")
    finally:
        producer.close(LIMIT_S)
    assert committed(live_broker, topic, 1) == [b"v"]


def test_threads_share_one_transaction(live_broker: Broker) -> None:
    """The transaction belongs to the producer, so records from every thread are part of it."""
    topic = live_broker.new_topic(partitions=2)
    with Producer(live_broker.bootstrap, transactional_id=topic, batch_size=2_000) as producer:

        def send(who: int) -> None:
            for number in range(200):
                producer.send(topic, b"%d:%d" % (who, number), partition=who % 2)

        for aborted in (True, False):
            try:
                with producer.transaction():
                    threads = [threading.Thread(target=send, args=(who,)) for who in range(3)]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join(LIMIT_S)
                    if aborted:
                        fail()
            except Trouble:
                assert aborted
    found = committed(live_broker, topic, 600)
    assert len(found) == len(set(found)) == 600


def test_offsets_are_committed_with_the_transaction(live_broker: Broker) -> None:
    """They carry the group membership of the consumer that read them. Aborting the
    transaction discards them."""
    source, target = live_broker.new_topic(), live_broker.new_topic()
    topic_partition = TopicPartition(source, 0)
    with Producer(live_broker.bootstrap) as feed:
        for number in range(5):
            feed.send(source, b"%d" % number)
    with (
        Producer(live_broker.bootstrap, transactional_id=target) as producer,
        Consumer(
            live_broker.bootstrap,
            topics=[source],
            group_id=target,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        ) as consumer,
    ):
        records = consumer.poll(60_000)
        for aborted in (True, False):
            try:
                with producer.transaction() as transaction:
                    for record in records:
                        producer.send(target, record.value)
                    transaction.send_offsets(consumer.positions(), consumer)
                    if aborted:
                        fail()
            except Trouble:
                assert consumer.committed(topic_partition)[topic_partition] is None
        stands = consumer.committed(topic_partition)[topic_partition]
        assert stands is not None
        assert stands.offset == records[-1].offset + 1
        late = Late(consumer)
        with pytest.raises(BrokerError) as refused, producer.transaction() as transaction:
            transaction.send_offsets({topic_partition: 0}, late)
        assert refused.value.code == ErrorCode.ILLEGAL_GENERATION
        late = Late(consumer, -1)
        with pytest.raises(BrokerError, match="not a member"), producer.transaction() as once_more:
            once_more.send_offsets({topic_partition: 0}, late)
    assert committed(live_broker, target, len(records)) == [record.value for record in records]


def test_offsets_carry_the_generation_in_which_the_records_were_read(live_broker: Broker) -> None:
    """A consumer that lost its partitions and rejoined cannot commit offsets of
    records that it read before."""
    source, target = live_broker.new_topic(partitions=2), live_broker.new_topic()
    with Producer(live_broker.bootstrap) as feed:
        for index in (0, 1):
            feed.send(source, b"v", partition=index)

    def member() -> Consumer[bytes | None, bytes | None]:
        return Consumer(
            live_broker.bootstrap,
            topics=[source],
            group_id=target,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
        )

    with Producer(live_broker.bootstrap, transactional_id=target) as producer, member() as older:
        positions: dict[TopicPartition, OffsetAndMetadata] = {}
        while len(positions) < 2:
            assert older.poll(60_000)
            positions = older.positions()
        # So that no record is delivered twice after the rebalance.
        older.commit()
        before = older.membership[1].generation
        with member() as newer:
            deadline = threading.Event()
            timer = threading.Timer(patient(LIMIT_S), deadline.set)
            timer.start()
            while len(older.assignment()) > 1 or not newer.assignment():
                assert not deadline.is_set()
                older.poll(50)
                newer.poll(50)
            timer.cancel()
            assert older.membership[1].generation == before
            with pytest.raises(BrokerError) as refused, producer.transaction() as transaction:
                transaction.send_offsets(positions, older)
        assert refused.value.code == ErrorCode.ILLEGAL_GENERATION


def test_a_newer_producer_fences_an_older_one(live_broker: Broker) -> None:
    topic = live_broker.new_topic()
    with Producer(live_broker.bootstrap, transactional_id=topic) as older:
        with pytest.raises(Fenced), older.transaction():
            older.send(topic, b"old").result(LIMIT_S)
            with (
                Producer(live_broker.bootstrap, transactional_id=topic) as newer,
                newer.transaction(),
            ):
                newer.send(topic, b"new")
        with pytest.raises(Fenced), older.transaction():
            pass
    assert committed(live_broker, topic, 1) == [b"new"]


def test_transactions_need_a_transactional_id() -> None:
    """The error is raised before the producer connects."""
    with pytest.raises(OptionError, match="transactional_id"):
        Producer("localhost:1").transaction()
