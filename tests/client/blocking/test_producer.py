"""Tests the sync producer with a real broker."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import time
from collections import defaultdict
from typing import Any

import pytest

from penstock import Consumer, Producer, RecordMetadata, TopicPartition, serializers
from penstock.client.errors import (
    BufferExhausted,
    Closed,
    ConnectFailed,
    TopicNotFound,
    UnknownTopicYet,
)
from penstock.client.interceptors import ProducerInterceptor, ProducerRecord
from penstock.testing import Broker
from penstock.testing.slowness import patient

LIMIT_S = 100.0


def read_all(broker: Broker, topic: str) -> dict[int, list[bytes | None]]:
    """Returns all values by partition, in order."""
    found: dict[int, list[bytes | None]] = defaultdict(list)
    with Consumer(broker.bootstrap) as consumer:
        topic_partitions = [TopicPartition(topic, n) for n in range(consumer.partitions_for(topic))]
        left = sum(consumer.end_offsets(topic_partitions).values())
        consumer.assign(topic_partitions)
        consumer.seek_to_beginning()
        while left > 0:
            records = consumer.poll(60_000)
            assert records
            left -= len(records)
            for record in records:
                found[record.partition].append(record.value)
    return found


def test_a_delivery_resolves_when_the_record_is_acknowledged(live_broker: Broker) -> None:
    """`result` waits for the acknowledgment, callbacks receive its metadata, and leaving the `with`
    block waits for all deliveries."""
    topic = live_broker.new_topic(partitions=2)
    told: list[RecordMetadata | None] = []
    with Producer(live_broker.bootstrap, linger_ms=0) as producer:
        delivery = producer.send(
            topic,
            b"v",
            key=b"k",
            headers=[("h", b"1")],
            partition=1,
            on_delivery=lambda metadata, error: told.append(metadata),
        )
        metadata = delivery.result(timeout_s=LIMIT_S)
        assert (metadata.topic, metadata.partition, metadata.offset) == (topic, 1, 0)
        last = producer.send(topic, b"w", partition=1)
    assert last.done()
    assert last.result().offset == 1
    assert told == [metadata]


def test_it_connects_on_first_use(live_broker: Broker) -> None:
    """Without `with` and `start`, the first send connects. `close` delivers
    everything that was sent."""
    topic = live_broker.new_topic()
    producer = Producer(live_broker.bootstrap, value_serializer=serializers.json)
    before = producer.is_started
    delivery = producer.send(topic, {"a": 1})
    assert (before, producer.is_started) == (False, True)
    producer.close(LIMIT_S)
    assert delivery.result().offset == 0
    assert producer.is_closed
    with pytest.raises(Closed):
        producer.send(topic, {"a": 2})
    producer.close()


def test_an_unreachable_broker_fails_at_once() -> None:
    """A wrong address raises on first use and leaves no thread behind."""
    threads = set(threading.enumerate())
    producer = Producer("localhost:1")
    with pytest.raises(ConnectFailed):
        producer.send("t", b"v")
    assert set(threading.enumerate()) <= threads
    producer.close()


def test_many_threads_send_concurrently(live_broker: Broker) -> None:
    """The records of each thread arrive once and in the order in which it sent them."""
    topic = live_broker.new_topic(partitions=2)
    with Producer(live_broker.bootstrap, batch_size=2_000) as producer:

        def send(who: int) -> None:
            for number in range(500):
                producer.send(topic, b"%d:%d" % (who, number), partition=who % 2)

        threads = [threading.Thread(target=send, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        producer.flush(LIMIT_S)
        assert producer.metrics().records == 2_000
    found = read_all(live_broker, topic)
    for who in range(4):
        mine = [value for value in found[who % 2] if value and value.startswith(b"%d:" % who)]
        assert mine == [b"%d:%d" % (who, number) for number in range(500)]


def test_send_does_not_switch_threads_for_each_record(
    live_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the topic's metadata is known, `send` never goes through the portal."""
    topic = live_broker.new_topic()
    with Producer(live_broker.bootstrap) as producer:
        producer.partitions_for(topic)
        hops: list[object] = []
        call = producer._life.call

        def counted(*given: Any) -> Any:
            hops.append(given)
            return call(*given)

        monkeypatch.setattr(producer._life, "call", counted)
        last = [producer.send(topic, b"%d" % number) for number in range(1_000)][-1]
        assert hops == []
        producer.flush(LIMIT_S)
        assert len(hops) == 1
        assert last.result(LIMIT_S).offset == 999


def test_send_blocks_on_a_full_buffer_for_max_block_ms(own_broker: Broker) -> None:
    """While the broker does not answer, `send` waits `max_block_ms` for buffer memory and then
    raises. Sending works again once the broker answers."""
    topic = own_broker.new_topic()
    with Producer(
        own_broker.bootstrap,
        buffer_memory=40_000,
        batch_size=10_000,
        max_block_ms=int(patient(4_000)),
    ) as producer:
        producer.partitions_for(topic)
        own_broker.freeze()
        with pytest.raises(BufferExhausted):
            for _ in range(100):
                producer.send(topic, bytes(1_000))
        with pytest.raises(BufferExhausted):
            producer.send_nowait(topic, bytes(1_000))
        own_broker.thaw()
        end = time.monotonic() + patient(LIMIT_S)
        for _ in range(100):
            while True:
                try:
                    producer.send(topic, bytes(1_000))
                    break
                except BufferExhausted:
                    assert time.monotonic() < end
        producer.flush(LIMIT_S)


def test_send_nowait_does_not_fetch_metadata(live_broker: Broker) -> None:
    """The topic must be known already; `partitions_for` fetches its metadata."""
    topic = live_broker.new_topic(partitions=3)
    with Producer(live_broker.bootstrap) as producer:
        with pytest.raises(UnknownTopicYet):
            producer.send_nowait(topic, b"v")
        assert producer.partitions_for(topic) == 3
        assert producer.send_nowait(topic, b"v").result(LIMIT_S).offset == 0
        with pytest.raises(TopicNotFound):
            producer.send(topic, b"v", partition=9)


def test_callbacks_may_send_but_not_wait(live_broker: Broker) -> None:
    """Callbacks run on the producer's own thread, which would wait for itself."""
    topic = live_broker.new_topic()
    seen: list[object] = []
    with Producer(live_broker.bootstrap, linger_ms=0) as producer:
        again = threading.Event()

        def on_delivery(metadata: RecordMetadata | None, error: Exception | None) -> None:
            producer.send(topic, b"second", on_delivery=lambda *_: again.set())
            try:
                producer.flush(1)
            except RuntimeError as refused:
                seen.append(refused)

        producer.send(topic, b"first", on_delivery=on_delivery)
        assert again.wait(LIMIT_S)
    assert "own callbacks" in str(seen[0])
    assert read_all(live_broker, topic) == {0: [b"first", b"second"]}


def test_interceptors_see_each_record_once(own_broker: Broker) -> None:
    """This includes records that had to wait for buffer memory."""
    sent: list[bytes] = []
    acknowledged: list[bytes] = []

    class Watcher(ProducerInterceptor):
        def on_send(self, record: ProducerRecord[bytes, bytes]) -> ProducerRecord[bytes, bytes]:
            sent.append(record.value or b"")
            return record

        def on_acknowledgement(
            self,
            record: ProducerRecord[bytes, bytes],
            metadata: RecordMetadata | None,
            error: BaseException | None,
        ) -> None:
            assert error is None
            acknowledged.append(record.value or b"")

    topic = own_broker.new_topic()
    values = [b"%04d" % number + bytes(500) for number in range(300)]
    with Producer(
        own_broker.bootstrap, buffer_memory=40_000, batch_size=5_000, interceptors=[Watcher()]
    ) as producer:
        for value in values:
            producer.send(topic, value)
    assert sent == values
    assert acknowledged == values


def test_sending_an_arrow_table(live_broker: Broker) -> None:
    """The delivery reports the offsets of the rows."""
    pa = pytest.importorskip("pyarrow")
    topic = live_broker.new_topic()
    with Producer(live_broker.bootstrap) as producer:
        table = pa.table({"value": [b"%d" % number for number in range(1_000)]})
        delivery = producer.send_table(topic, table)
        assert delivery.result(LIMIT_S).records == 1_000
    assert read_all(live_broker, topic) == {0: [b"%d" % number for number in range(1_000)]}


def test_a_producer_that_is_dropped_is_closed(live_broker: Broker) -> None:
    """Its thread ends, all records are delivered, and a warning reports the missing `close`."""
    topic = live_broker.new_topic()
    before = threading.enumerate()
    producer = Producer(live_broker.bootstrap, linger_ms=5_000)
    delivery = producer.send(topic, b"v")
    (thread,) = (
        each
        for each in threading.enumerate()
        if each.name == "penstock producer" and each not in before
    )
    with pytest.warns(ResourceWarning, match="producer was garbage-collected"):
        del producer
        gc.collect()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert delivery.result().offset == 0


def run_script(text: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(text), *args],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )


def test_records_are_delivered_when_the_program_exits(live_broker: Broker) -> None:
    """A script that forgets to close the producer loses nothing, and exits."""
    topic = live_broker.new_topic()
    done = run_script(
        """
        import sys
        from penstock import Producer
        producer = Producer(sys.argv[1], linger_ms=60_000)
        producer.send(sys.argv[2], b"last words")
        """,
        live_broker.bootstrap,
        topic,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert read_all(live_broker, topic) == {0: [b"last words"]}


def test_a_program_exits_although_the_broker_does_not_answer(own_broker: Broker) -> None:
    """The producer delays the exit of the interpreter by a few seconds at most."""
    topic = own_broker.new_topic()
    done = run_script(
        """
        import os, signal, sys
        from penstock import Producer
        from penstock.client.blocking import lifecycle
        lifecycle.EXIT_S = 1.0
        producer = Producer(sys.argv[1])
        producer.partitions_for(sys.argv[2])
        os.kill(int(sys.argv[3]), signal.SIGSTOP)
        producer.send(sys.argv[2], b"nobody hears this")
        """,
        own_broker.bootstrap,
        topic,
        str(own_broker.pid),
    )
    own_broker.thaw()
    assert done.returncode == 0, done.stderr


def test_a_forked_child_is_refused_and_may_create_its_own_producer(live_broker: Broker) -> None:
    """A send through the parent's producer raises `Closed` in the child."""
    topic = live_broker.new_topic()
    done = run_script(
        """
        import os, sys, warnings
        from penstock import Producer
        from penstock.errors import Closed
        bootstrap, topic = sys.argv[1:]
        producer = Producer(bootstrap)
        producer.send(topic, b"parent").result(120)
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if not child:
            try:
                producer.send(topic, b"never")
            except Closed as error:
                with Producer(bootstrap) as own:
                    own.send(topic, b"child").result(120)
                sys.exit(7 if "fork" in str(error) else 1)
            sys.exit(2)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        producer.send(topic, b"parent again").result(120)
        producer.close()
        """,
        live_broker.bootstrap,
        topic,
    )
    assert done.stdout == "7\n", done.stderr
    assert read_all(live_broker, topic) == {0: [b"parent", b"child", b"parent again"]}
