"""Producers and consumers of two libraries, each on its own thread, recorded in one ledger.

confluent-kafka is the library that most Python users of Kafka have; the other is our own client.
Producers are idempotent with acks=all and send at a steady pace to every partition, so a pause
between two acknowledgements is caused by the cluster. One reader is assigned all partitions, and
the verdict is based on it. Two groups, one per library, must get everything as well.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import penstock
from penstock.errors import ClientError
from penstock.testing.slowness import patient

from .broker_processes import NotInTime, wait_for
from .ledger import NUMBERS_PER_PRODUCER, Ledger

TOPIC = "numbers"
PARTITIONS = 3
AUDIT = "audit"
WAITING_PER_PARTITION_MAX = 1_000
DELIVERY_TIMEOUT_S = 180.0
REQUEST_TIMEOUT_MS = 10_000
"""Matters for frozen brokers whose connections stay open; a dead broker is noticed at once."""
TURN_S = 0.01
HUNG_S = 30.0
"""A call that should return within a tenth of a second and has not after this time never will."""


def create_topic(
    bootstrap: str,
    name: str = TOPIC,
    partitions: int = PARTITIONS,
    replicas: int = 3,
    configs: Mapping[str, str] | None = None,
) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    settings = dict(configs or {"min.insync.replicas": "2"})
    admin.create_topics([NewTopic(name, partitions, replicas, config=settings)])[name].result(
        patient(120)
    )


class Worker(ABC):
    """A thread that does one task until it is stopped."""

    def __init__(self, name: str, ledger: Ledger) -> None:
        self.name = name
        self.ledger = ledger
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(patient(DELIVERY_TIMEOUT_S))
        if self._thread.is_alive():
            self.ledger.failures.append(f"{self.name} does not end")

    def _run(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 -- reported with the verdict
            self.ledger.failures.append(f"{self.name} broke: {error!r}")

    @property
    def is_hung(self) -> bool:
        """Whether the library that it uses does not return from a call."""
        return False

    @abstractmethod
    def work(self) -> None: ...


class Sender(Worker):
    """Sends its next number to each partition in turn, at a steady pace."""

    def __init__(
        self, name: str, ledger: Ledger, bootstrap: str, index: int, per_second: int, size: int
    ) -> None:
        super().__init__(name, ledger)
        self.bootstrap = bootstrap
        self.waiting: Counter[int] = Counter()
        """Sent and not answered yet, by partition."""
        self._next = index * NUMBERS_PER_PRODUCER
        self._per_turn = max(1, round(per_second * TURN_S / ledger.partitions))
        self._padding = size

    def send_turn(self) -> None:
        for partition in range(self.ledger.partitions):
            for _ in range(self._per_turn):
                if self.waiting[partition] < WAITING_PER_PARTITION_MAX:
                    number, self._next = self._next, self._next + 1
                    self.waiting[partition] += 1
                    self.ledger.sent += 1
                    self.send(partition, number, str(number).encode().zfill(self._padding))

    def answer_to(self, number: int, partition: int) -> Callable[[int | None, object], None]:
        """Returns the function to call with the offset, or the error, of a record sent now."""
        sent_s = time.monotonic()

        def answered(offset: int | None, error: object) -> None:
            self.waiting[partition] -= 1
            if error is not None:
                self.ledger.on_failed(number, str(error))
            else:
                known = -1 if offset is None else offset
                self.ledger.on_acknowledged(number, partition, known, sent_s)

        return answered

    @abstractmethod
    def send(self, partition: int, number: int, value: bytes) -> None: ...


class ConfluentSender(Sender):
    def work(self) -> None:
        self._producer = ck.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": int(patient(DELIVERY_TIMEOUT_S) * 1000),
                "socket.timeout.ms": REQUEST_TIMEOUT_MS,
                "log_level": 0,
                "error_cb": self._on_error,
            }
        )
        while not self.stopping.is_set():
            self.send_turn()
            self._producer.poll(0)
            self.stopping.wait(TURN_S)
        if left := self._producer.flush(patient(DELIVERY_TIMEOUT_S)):
            self.ledger.failures.append(f"{self.name}: {left} records were never answered")

    def send(self, partition: int, number: int, value: bytes) -> None:
        answered = self.answer_to(number, partition)

        def on_delivery(error: ck.KafkaError | None, message: ck.Message) -> None:
            answered(message.offset(), error)

        self._producer.produce(TOPIC, value, partition=partition, on_delivery=on_delivery)

    def _on_error(self, error: ck.KafkaError) -> None:
        if error.fatal():
            self.ledger.failures.append(f"{self.name}: fatal: {error}")


class OurSender(Sender):
    def work(self) -> None:
        with penstock.Producer(
            self.bootstrap,
            linger_ms=2,
            delivery_timeout_ms=int(patient(DELIVERY_TIMEOUT_S) * 1000),
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        ) as self._producer:
            while not self.stopping.is_set():
                self.send_turn()
                self.stopping.wait(TURN_S)

    def send(self, partition: int, number: int, value: bytes) -> None:
        answered = self.answer_to(number, partition)

        def on_delivery(metadata: penstock.RecordMetadata | None, error: Exception | None) -> None:
            answered(metadata.offset if metadata else None, error)

        self._producer.send(TOPIC, value, partition=partition).add_callback(on_delivery)


class ConfluentReader(Worker):
    """A group member or, with the name `AUDIT`, a consumer that is assigned all partitions.

    librdkafka takes two of its locks in opposite orders when a broker leaves the cluster while an
    OffsetForLeaderEpoch request is in flight (its issue 5476), and then hangs forever. Such a
    consumer is abandoned, counted, and replaced by a new one, as its user would do. In some hung
    consumers `consume` still returns, always without messages. `assignment` needs the thread that
    hangs, so calling it shows the hang.
    """

    def work(self) -> None:
        consumer = ck.Consumer(self._options())
        try:
            if self.name == AUDIT:
                partitions = range(self.ledger.partitions)
                consumer.assign([ck.TopicPartition(TOPIC, index, 0) for index in partitions])
            else:
                consumer.subscribe([TOPIC])
            while not self.stopping.is_set():
                self._turn_s = time.monotonic()
                messages = consumer.consume(1000, 0.1)
                if not messages:
                    consumer.assignment()
                for message in messages:
                    if (error := message.error()) is None:
                        self._on_message(message)
                    elif error.fatal() or error.code() == ck.KafkaError._AUTO_OFFSET_RESET:
                        self.ledger.failures.append(f"{self.name}: {error}")
        finally:
            consumer.close()

    def __init__(self, name: str, ledger: Ledger, bootstrap: str) -> None:
        super().__init__(name, ledger)
        self.bootstrap = bootstrap
        self._turn_s = time.monotonic()

    @property
    def is_hung(self) -> bool:
        return time.monotonic() - self._turn_s > patient(HUNG_S)

    def _options(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.name,
            "enable.auto.commit": self.name != AUDIT,
            "auto.commit.interval.ms": 500,
            "socket.timeout.ms": REQUEST_TIMEOUT_MS,
            # No position of a reader may be beyond the end of the log, whichever broker leads.
            "auto.offset.reset": "error" if self.name == AUDIT else "earliest",
            "log_level": 0,
        }

    def _on_message(self, message: ck.Message) -> None:
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None and offset is not None and value is not None
        self.ledger.on_read(self.name, partition, offset, int(value))


class OurReader(Worker):
    def __init__(self, name: str, ledger: Ledger, bootstrap: str) -> None:
        super().__init__(name, ledger)
        self.bootstrap = bootstrap

    def work(self) -> None:
        with penstock.Consumer(
            self.bootstrap,
            topics=[TOPIC],
            group_id=self.name,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=500,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        ) as consumer:
            while not self.stopping.is_set():
                try:
                    records = consumer.poll(100)
                except ClientError as error:
                    if not error.retriable:
                        raise
                    continue
                for record in records:
                    assert record.value is not None
                    self.ledger.on_read(
                        self.name, record.partition, record.offset, int(record.value)
                    )


class Workload:
    """All senders and readers of one topic."""

    def __init__(
        self,
        bootstrap: str,
        *,
        partitions: int = PARTITIONS,
        per_second: int = 300,
        size: int = 0,
        ours: bool = True,
    ) -> None:
        groups = (AUDIT, "confluent-group", *(("our-group",) if ours else ()))
        self.ledger = ledger = Ledger(partitions, groups)
        self.bootstrap = bootstrap
        self.senders: list[Sender] = [
            ConfluentSender("confluent producer", ledger, bootstrap, 1, per_second, size)
        ]
        self.readers: list[Worker] = [
            ConfluentReader(AUDIT, ledger, bootstrap),
            ConfluentReader("confluent-group", ledger, bootstrap),
        ]
        if ours:
            self.senders.append(OurSender("our producer", ledger, bootstrap, 2, per_second, size))
            self.readers.append(OurReader("our-group", ledger, bootstrap))

    def start(self) -> None:
        for worker in (*self.readers, *self.senders):
            worker.start()

    def wait_for_progress(self, within_s: float, more: int = 20) -> float:
        """Waits until every partition has acknowledged `more` records. Returns the seconds."""
        before = self.ledger.count()

        def has_grown() -> bool:
            return all(
                now - then >= more for now, then in zip(self.ledger.count(), before, strict=True)
            )

        return wait_for("acknowledgements in every partition", has_grown, within_s, 0.01)

    def wait_for_readers(self, within_s: float) -> float:
        """Waits until all readers have all records acknowledged so far. Returns the seconds."""
        now = set(self.ledger.acknowledged)
        took_s = 0.0
        for group in self.ledger.groups:

            def has_all(group: str = group) -> bool:
                return not now.intersection(self.ledger.unread(group))

            try:
                took_s += self._wait_for_reader(group, has_all, within_s)
            except NotInTime as late:
                raise NotInTime(f"{late}: it lacks {self.ledger.first_unread(group)}") from None
        return took_s

    def _wait_for_reader(self, group: str, has_all: Callable[[], bool], within_s: float) -> float:
        what = f"{group} gets what was written"
        (reader,) = (each for each in self.readers if each.name == group)
        took_s = wait_for(what, lambda: has_all() or reader.is_hung, within_s, 0.1)
        if has_all():
            return took_s
        self.ledger.hung_clients += 1
        successor = ConfluentReader(group, self.ledger, self.bootstrap)
        self.readers[self.readers.index(reader)] = successor
        successor.start()
        return took_s + wait_for(what, has_all, within_s, 0.1)

    def stop_senders(self) -> None:
        for sender in self.senders:
            sender.stop()

    def stop(self) -> None:
        for worker in (*self.senders, *self.readers):
            worker.stopping.set()
        for worker in (*self.senders, *self.readers):
            worker.stop()
