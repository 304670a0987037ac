"""Tests `exactly_once` with the sync clients and a real broker."""

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
    """An application error, raised by a handler."""


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
            records = consumer.poll(60_000)
            assert records
            found += [record.value for record in records]
        found += [record.value for record in consumer.poll(200)]
    return found


class Copier:
    """A handler that copies records to a topic, sets an event after the last one, and
    fails at a chosen record."""

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
    """The handler runs on the calling thread. Its errors are raised to the caller, and the next run
    continues where the last transaction ended."""
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


def test_it_stops_while_no_records_arrive(live_broker: Broker) -> None:
    """A stop event that another thread sets is noticed promptly."""
    source, target = live_broker.new_topic(), live_broker.new_topic()
    copier = Copier(target, b"")
    timer = threading.Timer(0.3, copier.stop.set)
    timer.start()
    try:
        assert copy(live_broker, source, copier).processed == 0
    finally:
        timer.cancel()


def test_a_producer_without_transactional_id_is_refused_at_once(live_broker: Broker) -> None:
    """The async `exactly_once` does the same."""
    with (
        Producer(live_broker.bootstrap) as producer,
        consumer_on(live_broker, live_broker.new_topic(), "g") as consumer,
        pytest.raises(OptionError, match="transactional_id"),
    ):
        penstock.exactly_once(consumer, producer, lambda records: [])
