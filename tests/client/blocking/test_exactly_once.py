"""`exactly_once` with the sync clients, on a real broker."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import penstock
from penstock import Consumer, Producer, Record, RunSummary, TopicPartition
from penstock.client.errors import OptionError
from penstock.interceptors import ProducerRecord
from penstock.testing import Broker

LIMIT_S = 150.0
Bytes = bytes | None


class Trouble(Exception):
    """What went wrong in a handler, and has nothing to do with us."""


def consumer_on(broker: Broker, source: str, group: str, **options: Any) -> Consumer[Bytes, Bytes]:
    given: dict[str, Any] = {
        "topics": [source],
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "isolation_level": "read_committed",
        "fetch_max_wait_ms": 50,
    }
    return Consumer(broker.bootstrap, **(given | options))


def fill(broker: Broker, count: int) -> tuple[str, list[bytes]]:
    topic = broker.new_topic()
    values = [b"%d" % number for number in range(count)]
    with Producer(broker.bootstrap) as feed:
        for value in values:
            feed.send(topic, value)
    return topic, values


def committed(broker: Broker, topic: str, wanted: int) -> list[Bytes]:
    found: list[Bytes] = []
    with Consumer(
        broker.bootstrap,
        topics=[topic],
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        fetch_max_wait_ms=50,
    ) as consumer:
        while len(found) < wanted:
            records = consumer.poll(10_000)
            assert records
            found += [record.value for record in records]
        found += [record.value for record in consumer.poll(200)]
    return found


class Copier:
    """A handler that copies to a topic, says when it has had all, and fails where it is told to."""

    def __init__(self, target: str, last: bytes, fails_at: bytes | None = None) -> None:
        self.target = target
        self.last = last
        self.fails_at = fails_at
        self.stop = threading.Event()
        self.threads: set[int] = set()

    def __call__(self, records: list[Record[Bytes, Bytes]]) -> Any:
        self.threads.add(threading.get_ident())
        for record in records:
            if record.value == self.fails_at:
                raise Trouble
            yield ProducerRecord(self.target, record.value, record.key)
        if records[-1].value == self.last:
            self.stop.set()


def copy(broker: Broker, source: str, copier: Copier) -> RunSummary:
    with (
        Producer(broker.bootstrap, transactional_id=copier.target) as producer,
        consumer_on(broker, source, copier.target) as consumer,
    ):
        return penstock.exactly_once(consumer, producer, copier, max_records=20, stop=copier.stop)


def test_input_and_output_are_committed_together(live_broker: Broker) -> None:
    """The handler runs on the thread that called; a failure of it goes to the caller, and whoever
    comes next goes on where the last transaction ended."""
    source, values = fill(live_broker, 100)
    target = live_broker.new_topic()
    failing = Copier(target, values[-1], fails_at=values[50])
    with pytest.raises(Trouble):
        copy(live_broker, source, failing)
    assert failing.threads == {threading.get_ident()}
    summary = copy(live_broker, source, Copier(target, values[-1]))
    assert 0 < summary.processed < len(values)
    assert summary.committed == {TopicPartition(source, 0): len(values)}
    assert committed(live_broker, target, len(values)) == values


def test_it_stops_while_there_is_nothing_to_read(live_broker: Broker) -> None:
    """The event of another thread is noticed within a moment."""
    source, target = live_broker.new_topic(), live_broker.new_topic()
    copier = Copier(target, b"")
    timer = threading.Timer(0.3, copier.stop.set)
    timer.start()
    try:
        assert copy(live_broker, source, copier).processed == 0
    finally:
        timer.cancel()


def test_what_is_missing_is_said_at_once(live_broker: Broker) -> None:
    """As by the async one."""
    with (
        Producer(live_broker.bootstrap) as producer,
        consumer_on(live_broker, live_broker.new_topic(), "g") as consumer,
        pytest.raises(OptionError, match="transactional_id"),
    ):
        penstock.exactly_once(consumer, producer, lambda records: [])
