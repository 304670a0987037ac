"""The bindings of all clients: a compacted topic, and the table that it makes.

A client that publishes to an exchange must know the queues that others have bound to it. Each
connection that needs bindings reads the topic to its end, and then follows it. A message that fits
no binding is not given up before the topic was read to its end again: the client that waits for it
may have bound its queue a moment ago.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from penstock.celery.binding_table import Binding, BindingTable, log_of, value_of
from penstock.celery.settings import Settings
from penstock.celery.topics import Topics
from penstock.client.blocking.consumer import Consumer
from penstock.client.blocking.producer import Producer
from penstock.topic_partition import TopicPartition

_POLL_MS: Final = 500


class BindingLog:
    """Reads and writes the bindings. May be used from several threads."""

    def __init__(
        self,
        settings: Settings,
        topics: Topics,
        producer: Producer[bytes | None, bytes | None],
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._producer = producer
        self._place = TopicPartition(settings.names.bindings_topic, 0)
        self._table = BindingTable()
        self._consumer: Consumer[bytes | None, bytes | None] | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def table(self) -> BindingTable:
        """Returns the bindings as far as they have arrived here; the first time, all of them."""
        with self._lock:
            self._follow()
            return self._table

    def fresh_table(self) -> BindingTable:
        """Returns all bindings that were stored before this call."""
        with self._lock:
            self._follow()
            self._read_to_end()
            return self._table

    def add(self, binding: Binding, kind: str) -> None:
        """Stores a binding, unless there is the same."""
        with self._lock:
            self._follow()
            if not self._table.has(binding, kind):
                self._write(binding, value_of(kind))

    def remove(self, binding: Binding) -> None:
        with self._lock:
            self._follow()
            if binding in set(self._table):
                self._write(binding, None)

    def remove_queue(self, queue: str) -> None:
        for binding in self.table().of_queue(queue):
            self.remove(binding)

    def remove_exchange(self, exchange: str) -> None:
        """The log of the exchange stays in use: clients may read it."""
        for binding in self.table().of_exchange(exchange):
            if binding != log_of(exchange):
                self.remove(binding)

    def _write(self, binding: Binding, value: bytes | None) -> None:
        self._producer.send(self._place.topic, value, key=binding.key(), partition=0).result()
        # Its own record comes back when the log is followed, and changes nothing then.
        self._table.apply(binding.key(), value)

    def _follow(self) -> None:
        if self._consumer is None:
            self._topics.ensure_compacted(self._place.topic)
            options: dict[str, Any] = {**self._settings.client, "auto_offset_reset": "earliest"}
            consumer: Consumer[bytes | None, bytes | None] = Consumer(
                list(self._settings.servers), **options
            )
            consumer.assign([self._place])
            self._consumer = consumer
            self._read_to_end()
        while records := self._consumer.poll(0):
            self._apply(records)

    def _read_to_end(self) -> None:
        assert self._consumer is not None
        end = self._topics.ends([self._place])[self._place]
        while self._consumer.position(self._place) < end:
            self._apply(self._consumer.poll(_POLL_MS))

    def _apply(self, records: list[Any]) -> None:
        for record in records:
            self._table.apply(record.key, record.value)
