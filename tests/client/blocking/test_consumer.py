"""The sync consumer on a real broker."""

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
        records = consumer.poll(5_000)
        assert records, f"only {len(found)} of {count} records came"
        found += records
    return found


def reader(broker: Broker, topic: str) -> Consumer[bytes | None, bytes | None]:
    return Consumer(broker.bootstrap, topics=[topic], auto_offset_reset="earliest")


def member(broker: Broker, topic: str, group: str) -> Consumer[bytes | None, bytes | None]:
    return Consumer(broker.bootstrap, topics=[topic], group_id=group, auto_offset_reset="earliest")


def in_thread(work: Callable[[], object]) -> list[object]:
    """What the work returned, or the error that it raised, on another thread."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:  # noqa: BLE001 - it is the outcome
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(LIMIT_S)
    return outcome


def test_polling_and_iterating(live_broker: Broker) -> None:
    """Lists and single records come from the same place, and go on where the other stopped."""
    topic = fill(live_broker, 2_000)
    with reader(live_broker, topic) as consumer:
        values = [record.value for record in consumer.poll(5_000, max_records=10)]
        for record in consumer:
            values.append(record.value)
            if len(values) == 1_500:
                break
        assert consumer.position(TopicPartition(topic, 0)) == 1_500
        while len(values) < 2_000:
            values += [record.value for record in consumer.poll(5_000)]
    assert values == [b"%d" % number for number in range(2_000)]


def test_commits_follow_the_iteration(live_broker: Broker) -> None:
    """In the middle of a run, `commit` commits what was handed out and no more."""
    topic = fill(live_broker, 100)
    group = live_broker.new_name("group")
    place = TopicPartition(topic, 0)
    with member(live_broker, topic, group) as consumer:
        consumer.hold_auto_commit()
        for record in consumer:
            if record.offset == 41:
                break
        consumer.commit()
        committed = consumer.committed(place)[place]
        assert committed is not None
        assert committed.offset == 42
    with member(live_broker, topic, group) as consumer:
        assert next(consumer).offset == 42


def test_closing_commits_what_was_handed_out(live_broker: Broker) -> None:
    """Auto-commit at close stops at the last record that the loop had."""
    topic = fill(live_broker, 100)
    group = live_broker.new_name("group")
    with member(live_broker, topic, group) as consumer:
        for record in consumer:
            if record.offset == 10:
                break
    with member(live_broker, topic, group) as consumer:
        assert next(consumer).offset == 11


def test_typed_records(live_broker: Broker) -> None:
    """Deserializers apply; a record that one refuses is named, and can be passed."""
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
        consumer.seek(caught.value.place, caught.value.offset + 1)
        assert next(consumer).value == {"a": 3}


def test_another_thread_is_refused(live_broker: Broker) -> None:
    """While one thread is in a call, another gets an error that says what to do; later it may."""
    topic = live_broker.new_topic()
    with reader(live_broker, topic) as consumer:
        polling = threading.Event()

        class Listener:
            def on_assigned(self, places: Sequence[TopicPartition]) -> None:
                polling.set()

        consumer.add_listener(Listener())
        thread = threading.Thread(target=lambda: consumer.poll(20_000))
        thread.start()
        assert polling.wait(LIMIT_S)
        with pytest.raises(ClientError, match="in use by another thread"):
            consumer.poll(0)
        consumer.wakeup()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        assert consumer.poll(0) == []


def test_two_threads_cannot_iterate(live_broker: Broker) -> None:
    """The records at hand belong to the thread that began."""
    topic = fill(live_broker, 10)
    with reader(live_broker, topic) as consumer:
        next(consumer)
        (error,) = in_thread(lambda: next(consumer))
        assert isinstance(error, ClientError)
        assert "another thread is iterating" in str(error)
        assert next(consumer).offset == 1


@pytest.mark.parametrize("way", ["poll", "iterate", "run"])
def test_closing_from_another_thread(live_broker: Broker, way: str) -> None:
    """Whatever the owner waits in comes to an end, and the group is left in good order."""
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
        assert consumer.poll(20_000)
        handed.set()
        try:
            return consumer.poll(20_000)
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
    """They may use the consumer themselves: what they seek to is where reading begins."""
    topic = fill(live_broker, 50)
    threads: list[int] = []

    class Listener:
        def on_assigned(self, places: Sequence[TopicPartition]) -> None:
            threads.append(threading.get_ident())
            for place in places:
                consumer.seek(place, 30)

        def on_revoked(self, places: Sequence[TopicPartition]) -> None:
            threads.append(threading.get_ident())
            assert consumer.positions()[TopicPartition(topic, 0)].offset == 50

    group = live_broker.new_name("group")
    with Consumer(live_broker.bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic], listener=Listener())
        assert [record.offset for record in take(consumer, 20)] == list(range(30, 50))
        consumer.unsubscribe()
    assert threads == [threading.get_ident()] * 2


def test_a_listener_that_fails_is_heard(live_broker: Broker) -> None:
    """Its error comes out of `poll`."""
    topic = live_broker.new_topic()

    class Listener:
        def on_assigned(self, places: Sequence[TopicPartition]) -> None:
            raise ZeroDivisionError

    consumer = Consumer(live_broker.bootstrap, topics=[topic], listener=Listener())
    with consumer, pytest.raises(ZeroDivisionError):
        while True:
            consumer.poll(5_000)


def test_offsets_from_a_store_on_this_thread(live_broker: Broker, tmp_path: Path) -> None:
    """A database connection that is tied to its thread works as an offset store."""
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
            records = consumer.poll(5_000)
            with database:
                offsets.save(records)
            seen += [record.offset for record in records]
    database.close()
    assert seen == list(range(30))


def test_tables_and_ranges(live_broker: Broker) -> None:
    """Arrow tables by polling, by range and batch by batch; a range may be left early."""
    topic = fill(live_broker, 1_000, partitions=2)
    with reader(live_broker, topic) as consumer:
        rows = 0
        while rows < 1_000:
            rows += consumer.poll_table(5_000).num_rows
        assert consumer.read_table(topic, {0: 100, 1: 100}, {0: 150, 1: 200}).num_rows == 150
        assert sum(batch.num_rows for batch in consumer.read_batches(topic)) == 1_000
        batches = consumer.read_batches(topic)
        assert next(batches).num_rows
        del batches
        assert consumer.poll(0) == []


def test_an_interrupted_poll_loses_nothing(live_broker: Broker) -> None:
    """What a poll had found when Ctrl-C came is found again by the next."""
    topic = fill(live_broker, 20)
    with reader(live_broker, topic) as consumer:
        (first,) = consumer.poll(5_000, max_records=1)
        assert first.offset == 0
        # As if the interrupt had come after the loop was done, and before its result was here.
        consumer._wait(consumer._poll(5_000, 5))
        assert [record.offset for record in take(consumer, 19)] == list(range(1, 20))
        assert consumer.position(TopicPartition(topic, 0)) == 20


def test_closing_commits_nothing_that_nobody_had(live_broker: Broker) -> None:
    """What an interrupted poll had found is not committed by the close that follows."""
    topic = fill(live_broker, 20)
    group = live_broker.new_name("group")
    with member(live_broker, topic, group) as consumer:
        assert len(consumer.poll(5_000, max_records=3)) == 3
        consumer._wait(consumer._poll(5_000, 5))
    with member(live_broker, topic, group) as consumer:
        assert next(consumer).offset == 3


def test_ctrl_c_ends_a_poll(live_broker: Broker) -> None:
    """At once, and the consumer is of use afterwards."""
    topic = live_broker.new_topic()
    with reader(live_broker, topic) as consumer:
        consumer.poll(0)
        timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):  # It may come before the poll has begun.
            timer.start()
            consumer.poll(60_000)
        timer.join()
        assert consumer.poll(0) == []


def test_a_consumer_that_is_dropped_leaves_its_group(live_broker: Broker) -> None:
    """Its thread ends, and what was handed out is committed; a warning says what was forgotten."""
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
    with pytest.warns(ResourceWarning, match="consumer was dropped"):
        del consumer
        gc.collect()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    with member(live_broker, topic, group) as successor:
        assert next(successor).offset == 5


def test_a_program_that_does_not_close_ends(live_broker: Broker) -> None:
    """The group is left, and what was handed out is committed."""
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
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with member(live_broker, topic, group) as consumer:
        assert next(consumer).offset == 5
