"""Tests the sync consumer with a real broker."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from penstock import Consumer, Producer, Record, SqlOffsets, TopicPartition, serializers
from penstock.errors import ClientError, Closed, DeserializationFailed
from penstock.testing import Broker
from penstock.testing.slowness import patient

LIMIT_S = 100.0
K = TypeVar("K")
V = TypeVar("V")


def fill(broker: Broker, count: int, partitions: int = 1) -> str:
    topic = broker.new_topic(partitions=partitions)
    with Producer(broker.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=number % partitions)
    return topic


def take(consumer: Consumer[K, V], count: int) -> list[Record[K, V]]:
    found: list[Record[K, V]] = []
    while len(found) < count:
        records = consumer.poll(60_000)
        assert records, f"only {len(found)} of {count} records came"
        found += records
    return found


def reader(broker: Broker, topic: str) -> Consumer[bytes | None, bytes | None]:
    return Consumer(broker.bootstrap, topics=[topic], auto_offset_reset="earliest")


def member(broker: Broker, topic: str, group: str) -> Consumer[bytes | None, bytes | None]:
    return Consumer(broker.bootstrap, topics=[topic], group_id=group, auto_offset_reset="earliest")


def in_thread(work: Callable[[], object]) -> list[object]:
    """Runs `work` on another thread and returns its result, or the error that it raised."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:  # noqa: BLE001 - the error is the outcome
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(LIMIT_S)
    return outcome


def test_polling_and_iterating_share_one_position(live_broker: Broker) -> None:
    """`poll` and iteration read the same stream: each continues where the other stopped."""
    topic = fill(live_broker, 2_000)
    with reader(live_broker, topic) as consumer:
        values = [record.value for record in consumer.poll(60_000, max_records=10)]
        for record in consumer:
            values.append(record.value)
            if len(values) == 1_500:
                break
        assert consumer.position(TopicPartition(topic, 0)) == 1_500
        while len(values) < 2_000:
            values += [record.value for record in consumer.poll(60_000)]
    assert values == [b"%d" % number for number in range(2_000)]


def test_commit_during_iteration_commits_the_records_handed_out(live_broker: Broker) -> None:
    """Records of the same poll that the loop has not received yet are not committed."""
    topic = fill(live_broker, 100)
    group = live_broker.new_name("group")
    topic_partition = TopicPartition(topic, 0)
    with member(live_broker, topic, group) as consumer:
        consumer.hold_auto_commit()
        for record in consumer:
            if record.offset == 41:
                break
        consumer.commit()
        committed = consumer.committed(topic_partition)[topic_partition]
        assert committed is not None
        assert committed.offset == 42
    with member(live_broker, topic, group) as consumer:
        assert next(consumer).offset == 42


def test_closing_commits_what_was_handed_out(live_broker: Broker) -> None:
    """The auto-commit at close stops at the last record that the loop received."""
    topic = fill(live_broker, 100)
    group = live_broker.new_name("group")
    with member(live_broker, topic, group) as consumer:
        for record in consumer:
            if record.offset == 10:
                break
    with member(live_broker, topic, group) as consumer:
        assert next(consumer).offset == 11


def test_values_are_deserialized_and_bad_ones_can_be_skipped(live_broker: Broker) -> None:
    """Deserializers apply. The error for a record that cannot be deserialized names the record, and
    the caller can seek past it."""
    topic = live_broker.new_topic()
    with Producer(live_broker.bootstrap) as producer:
        for value in (b'{"a": 1}', b"{", b'{"a": 3}'):
            producer.send(topic, value)
    with Consumer(
        live_broker.bootstrap,
        topics=[topic],
        auto_offset_reset="earliest",
        value_deserializer=serializers.json,
    ) as consumer:
        assert next(consumer).value == {"a": 1}
        with pytest.raises(DeserializationFailed) as caught:
            next(consumer)
        consumer.seek(caught.value.topic_partition, caught.value.offset + 1)
        assert next(consumer).value == {"a": 3}


def test_concurrent_use_from_another_thread_is_refused(live_broker: Broker) -> None:
    """While one thread is in a call, another thread gets an error that says what to do. Once the
    call has ended, other threads may use the consumer."""
    topic = live_broker.new_topic()
    with reader(live_broker, topic) as consumer:
        polling = threading.Event()

        class Listener:
            def on_assigned(self, topic_partitions: Sequence[TopicPartition]) -> None:
                polling.set()

        consumer.add_listener(Listener())
        thread = threading.Thread(target=lambda: consumer.poll(60_000))
        thread.start()
        assert polling.wait(LIMIT_S)
        with pytest.raises(ClientError, match="in use by another thread"):
            consumer.poll(0)
        consumer.wakeup()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        assert consumer.poll(0) == []


def test_two_threads_cannot_iterate(live_broker: Broker) -> None:
    """Fetched records that iteration has not handed out yet belong to the
    thread that began to iterate."""
    topic = fill(live_broker, 10)
    with reader(live_broker, topic) as consumer:
        next(consumer)
        (error,) = in_thread(lambda: next(consumer))
        assert isinstance(error, ClientError)
        assert "another thread is iterating" in str(error)
        assert next(consumer).offset == 1


@pytest.mark.parametrize("way", ["poll", "iterate", "run"])
def test_closing_from_another_thread_ends_a_blocked_call(live_broker: Broker, way: str) -> None:
    """This holds for `poll`, iteration and `run`; the consumer leaves its group cleanly."""
    topic = fill(live_broker, 1)
    consumer = member(live_broker, topic, live_broker.new_name("group"))
    handed = threading.Event()

    def use() -> object:
        if way == "iterate":
            for _ in consumer:
                handed.set()
            return "ended"
        if way == "run":
            return consumer.run(lambda record: handed.set()).processed
        assert consumer.poll(60_000)
        handed.set()
        try:
            return consumer.poll(60_000)
        except Closed:
            return "closed"

    outcome: list[object] = []
    thread = threading.Thread(target=lambda: outcome.append(use()))
    thread.start()
    assert handed.wait(LIMIT_S)
    consumer.close()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert outcome in ([1], ["ended"], [[]], ["closed"])
    with pytest.raises(Closed):
        consumer.poll(0)


def test_listeners_run_on_the_thread_that_polls(live_broker: Broker) -> None:
    """Listeners may use the consumer themselves: a seek in `on_assigned`
    decides where reading begins."""
    topic = fill(live_broker, 50)
    threads: list[int] = []

    class Listener:
        def on_assigned(self, topic_partitions: Sequence[TopicPartition]) -> None:
            threads.append(threading.get_ident())
            for topic_partition in topic_partitions:
                consumer.seek(topic_partition, 30)

        def on_revoked(self, topic_partitions: Sequence[TopicPartition]) -> None:
            threads.append(threading.get_ident())
            assert consumer.positions()[TopicPartition(topic, 0)].offset == 50

    group = live_broker.new_name("group")
    with Consumer(live_broker.bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic], listener=Listener())
        assert [record.offset for record in take(consumer, 20)] == list(range(30, 50))
        consumer.unsubscribe()
    assert threads == [threading.get_ident()] * 2


def test_an_error_of_a_listener_is_raised_by_poll(live_broker: Broker) -> None:
    topic = live_broker.new_topic()

    class Listener:
        def on_assigned(self, topic_partitions: Sequence[TopicPartition]) -> None:
            raise ZeroDivisionError

    consumer = Consumer(live_broker.bootstrap, topics=[topic], listener=Listener())
    with consumer, pytest.raises(ZeroDivisionError):
        while True:
            consumer.poll(60_000)


def test_an_offset_store_is_called_on_the_polling_thread(
    live_broker: Broker, tmp_path: Path
) -> None:
    """So a database connection that is tied to its thread works as an offset store."""
    topic = fill(live_broker, 30)
    database = sqlite3.connect(tmp_path / "offsets.db")
    offsets = SqlOffsets(database, "g")
    group = live_broker.new_name("group")
    seen: list[int] = []
    for _ in range(3):
        with Consumer(
            live_broker.bootstrap,
            topics=[topic],
            group_id=group,
            auto_offset_reset="earliest",
            offset_store=offsets,
            max_poll_records=10,
        ) as consumer:
            records = consumer.poll(60_000)
            with database:
                offsets.save(records)
            seen += [record.offset for record in records]
    database.close()
    assert seen == list(range(30))


def test_arrow_tables_by_polling_and_by_range(live_broker: Broker) -> None:
    """Ranges are read as one table or batch by batch; a reader may stop early."""
    topic = fill(live_broker, 1_000, partitions=2)
    with reader(live_broker, topic) as consumer:
        rows = 0
        while rows < 1_000:
            rows += consumer.poll_table(60_000).num_rows
        assert consumer.read_table(topic, {0: 100, 1: 100}, {0: 150, 1: 200}).num_rows == 150
        assert sum(batch.num_rows for batch in consumer.read_batches(topic)) == 1_000
        batches = consumer.read_batches(topic)
        assert next(batches).num_rows
        del batches
        assert consumer.poll(0) == []


def test_an_interrupted_poll_loses_nothing(live_broker: Broker) -> None:
    """The next poll returns the records that a poll had found when Ctrl-C interrupted it."""
    topic = fill(live_broker, 20)
    with reader(live_broker, topic) as consumer:
        (first,) = consumer.poll(60_000, max_records=1)
        assert first.offset == 0
        # Simulates an interrupt after the event loop finished the poll, but before the caller got
        # its result.
        consumer._thread.wait(consumer._thread._poll(60_000, 5))
        assert [record.offset for record in take(consumer, 19)] == list(range(1, 20))
        assert consumer.position(TopicPartition(topic, 0)) == 20


def test_closing_does_not_commit_records_that_were_never_returned(live_broker: Broker) -> None:
    """An interrupted poll had found these records, but the caller never received them."""
    topic = fill(live_broker, 20)
    group = live_broker.new_name("group")
    with member(live_broker, topic, group) as consumer:
        assert len(consumer.poll(60_000, max_records=3)) == 3
        consumer._thread.wait(consumer._thread._poll(60_000, 5))
    with member(live_broker, topic, group) as consumer:
        assert next(consumer).offset == 3


def test_ctrl_c_ends_a_poll_at_once(live_broker: Broker) -> None:
    """The consumer can still be used afterwards."""
    topic = live_broker.new_topic()
    with reader(live_broker, topic) as consumer:
        consumer.poll(0)
        timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):  # The signal may arrive before the poll has begun.
            timer.start()
            consumer.poll(60_000)
        timer.join()
        assert consumer.poll(0) == []


def test_a_consumer_that_is_dropped_leaves_its_group(live_broker: Broker) -> None:
    """Its thread ends, the records handed out are committed, and a warning
    reports the missing `close`."""
    topic = fill(live_broker, 10)
    group = live_broker.new_name("group")
    before = threading.enumerate()
    consumer = member(live_broker, topic, group)
    for record in consumer:
        if record.offset == 4:
            break
    (thread,) = (
        each
        for each in threading.enumerate()
        if each.name == "penstock consumer" and each not in before
    )
    with pytest.warns(ResourceWarning, match="consumer was garbage-collected"):
        del consumer
        gc.collect()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    with member(live_broker, topic, group) as successor:
        assert next(successor).offset == 5


def test_a_program_ends_without_closing_its_consumer(live_broker: Broker) -> None:
    """The consumer leaves its group, and the records handed out are committed."""
    topic = fill(live_broker, 10)
    group = live_broker.new_name("group")
    script = """
        import sys
        from penstock import Consumer
        bootstrap, topic, group = sys.argv[1:]
        consumer = Consumer(
            bootstrap, topics=[topic], group_id=group, auto_offset_reset="earliest"
        )
        for record in consumer:
            if record.offset == 4:
                break
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    done = subprocess.run(
        [*command, live_broker.bootstrap, topic, group],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with member(live_broker, topic, group) as consumer:
        assert next(consumer).offset == 5
