"""Readers that follow a copy while it is made, and checks of its transactions at the end.

Readers of both libraries read the target from its beginning, and only committed records.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Self

import confluent_kafka as ck

import penstock
from penstock.errors import ClientError
from penstock.testing.slowness import patient

from .broker_processes import wait_for
from .transactions_ledger import Sight

ASK_S = 150.0
READ_S = 120.0
ENDED_S = 90.0
HUNG_S = 30.0
RUNNING = ("Ongoing", "PrepareCommit", "PrepareAbort")
TURN_S, TURN_MS = 0.1, 100


class Reader(ABC):
    """Follows all partitions of a topic on its own thread."""

    name: str

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.sights: list[Sight] = [[] for _ in range(partitions)]
        self.failures: list[str] = []
        self.turn_s = time.monotonic()
        """When it last asked for records; the library should return within a moment."""
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(patient(ENDED_S))
        if self._thread.is_alive() and not self.is_hung:
            self.failures.append(f"{self.name} does not end")

    @property
    def count(self) -> int:
        return sum(map(len, self.sights))

    @property
    def is_hung(self) -> bool:
        """Whether its library does not return from a call."""
        return False

    def replaced(self) -> Self:
        """Returns a new reader that continues where this one hangs; this one is abandoned."""
        self.stopping.set()
        successor = type(self)(self.bootstrap, self.topic, len(self.sights))
        successor.sights = [list(seen) for seen in self.sights]
        successor.failures = self.failures
        successor.start()
        return successor

    def next_offset(self, partition: int) -> int:
        seen = self.sights[partition]
        return seen[-1][0] + 1 if seen else 0

    def _run(self) -> None:
        try:
            for partition, offset, value in self.read():
                self.sights[partition].append((offset, int(value)))
        except Exception as error:  # noqa: BLE001 -- reported with the verdict
            self.failures.append(f"{self.name} broke: {error!r}")

    @abstractmethod
    def read(self) -> Iterator[tuple[int, int, bytes]]:
        """Yields partition, offset and value of each record until the reader is stopped."""


class ConfluentReader(Reader):
    """Uses librdkafka, which may hang when brokers leave (issue 5476); then it is replaced."""

    name = "confluent's reader"

    def read(self) -> Iterator[tuple[int, int, bytes]]:
        consumer = consumer_of(self.bootstrap, "read_committed")
        try:
            consumer.assign(
                [
                    ck.TopicPartition(self.topic, index, self.next_offset(index))
                    for index in range(len(self.sights))
                ]
            )
            while not self.stopping.is_set():
                self.turn_s = time.monotonic()
                for message in consumer.consume(1_000, TURN_S):
                    if (error := message.error()) is None:
                        yield _parts(message)
                    elif error.fatal() or error.code() == ck.KafkaError._AUTO_OFFSET_RESET:
                        self.failures.append(f"{self.name}: {error}")
        finally:
            consumer.close()

    @property
    def is_hung(self) -> bool:
        return time.monotonic() - self.turn_s > patient(HUNG_S)


class OurReader(Reader):
    name = "our reader"

    def read(self) -> Iterator[tuple[int, int, bytes]]:
        with penstock.Consumer(
            self.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign(
                [penstock.TopicPartition(self.topic, i) for i in range(len(self.sights))]
            )
            while not self.stopping.is_set():
                try:
                    records = consumer.poll(TURN_MS)
                except ClientError as error:
                    if not error.retriable:
                        raise
                    continue
                for record in records:
                    yield record.partition, record.offset, record.value or b""


def topic_partitions_of(topic: str, partitions: int) -> list[ck.TopicPartition]:
    return [ck.TopicPartition(topic, index, 0) for index in range(partitions)]


def consumer_of(bootstrap: str, isolation: str) -> ck.Consumer:
    return ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "readers",
            "enable.auto.commit": False,
            # No position of a reader may be beyond the end of the log, whichever broker leads.
            "auto.offset.reset": "error",
            "isolation.level": isolation,
            "socket.timeout.ms": 10_000,
            "log_level": 0,
        }
    )


def _parts(message: ck.Message) -> tuple[int, int, bytes]:
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None and offset is not None and value is not None
    return partition, offset, value


def read_to_end(bootstrap: str, topic: str, partitions: int) -> list[Sight]:
    """Reads all committed records from the beginning with a new consumer."""
    sights: list[Sight] = [[] for _ in range(partitions)]
    consumer = consumer_of(bootstrap, "read_committed")
    try:
        topic_partitions = topic_partitions_of(topic, partitions)
        ends = [
            consumer.get_watermark_offsets(each, patient(ASK_S), cached=False)[1]
            for each in topic_partitions
        ]
        consumer.assign(topic_partitions)
        deadline = time.monotonic() + patient(READ_S)
        while any(
            p.offset < end for p, end in zip(consumer.position(topic_partitions), ends, strict=True)
        ):
            assert time.monotonic() < deadline, f"{topic} was not read to its end {ends}"
            for message in consumer.consume(10_000, TURN_S):
                if message.error() is not None:
                    raise ck.KafkaException(message.error())
                partition, offset, value = _parts(message)
                sights[partition].append((offset, int(value)))
    finally:
        consumer.close()
    return sights


def unended(bootstrap: str, topic: str, partitions: int) -> list[str]:
    """Returns transactions that are still open although every client has ended."""
    found: list[str] = []
    with penstock.Admin(bootstrap) as admin:

        def is_quiet() -> bool:
            return not admin.list_transactions(states=RUNNING)

        try:
            wait_for("all transactions have ended", is_quiet, ENDED_S, TURN_S)
        except AssertionError as late:
            open_ids = [each.transactional_id for each in admin.list_transactions(states=RUNNING)]
            found.append(f"{late}; open are {admin.describe_transactions(open_ids)}")
        hanging = admin.find_hanging_transactions()
        found += [f"hangs: {each}" for each in hanging.found]
        found += [f"nobody leads {topic_partition}" for topic_partition in hanging.not_seen]
        topic_partitions = [penstock.TopicPartition(topic, index) for index in range(partitions)]
        producers = admin.describe_producers(topic_partitions)
        found += [
            f"{topic_partition} has a transaction of producer {each.producer_id} open"
            for topic_partition, those in producers.items()
            for each in those
            if each.transaction_start_offset >= 0
        ]
    return found + _held_back(bootstrap, topic, partitions)


def _held_back(bootstrap: str, topic: str, partitions: int) -> list[str]:
    """Returns the partitions in which readers of committed records cannot read to the end."""
    consumers = [consumer_of(bootstrap, each) for each in ("read_committed", "read_uncommitted")]
    try:
        return [
            f"{topic}-{topic_partition.partition} is stable up to {stable} and ends at {end}"
            for topic_partition in topic_partitions_of(topic, partitions)
            for stable, end in [
                [
                    each.get_watermark_offsets(topic_partition, patient(ASK_S), cached=False)[1]
                    for each in consumers
                ]
            ]
            if stable != end
        ]
    finally:
        for each in consumers:
            each.close()


def misplaced_group(bootstrap: str, group: str, topic: str, ends: list[int]) -> list[str]:
    """Returns the partitions in which the group's offset is not the end of what it has copied."""
    with penstock.Admin(bootstrap) as admin:
        committed = admin.group_offsets(group)
    found = []
    for index, end in enumerate(ends):
        at = committed.get(penstock.TopicPartition(topic, index))
        if at is None or at.offset != end:
            found.append(f"{group} stands at {at} in {topic}-{index}, which ends at {end}")
    return found
