"""The clients of one kombu connection. Each is started when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from typing import Any, Final

from penstock.celery.binding_log import BindingLog
from penstock.celery.message_format import (
    PRIORITY_MAX,
    delay_s,
    encode,
    expires_ms,
    priority_level,
    with_expiry,
)
from penstock.celery.queue_arguments import QueueArguments
from penstock.celery.settings import Settings
from penstock.celery.task_queues import new_queue
from penstock.celery.topics import Topics
from penstock.celery.transient_queues import (
    Subscription,
    TransientQueue,
    TransientQueues,
    log_partition,
)
from penstock.client.blocking.admin import Admin
from penstock.client.blocking.producer import Producer
from penstock.client.blocking.queue import Queue
from penstock.client.environment import default_environment
from penstock.client.errors import TopicNotFound

DIRECT: Final = "direct"
_PLAIN: Final = QueueArguments()
_TTL_MIN_S: Final = 0.001


class BrokerLink:
    """Puts messages into queues and logs, and declares queues."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.clock = default_environment().clock
        self.transients = TransientQueues(settings)
        self.admin = Admin(list(settings.servers), **settings.client)
        self.topics = Topics(self.admin, settings, self.clock)
        self._arguments: dict[str, QueueArguments] = {}
        self._puts: dict[str, Queue[bytes]] = {}
        self._lock = threading.Lock()
        self._open = ExitStack()

    def start(self) -> None:
        """Connects, or raises `ConnectFailed`."""
        self._open.callback(self.admin.close)
        self.admin.start()

    def close(self) -> None:
        self._open.close()

    @cached_property
    def producer(self) -> Producer[bytes | None, bytes | None]:
        options: dict[str, Any] = dict(self.settings.client)
        made: Producer[bytes | None, bytes | None] = Producer(
            list(self.settings.servers), **options
        )
        self._open.callback(made.close)
        return made

    @cached_property
    def bindings(self) -> BindingLog:
        made = BindingLog(self.settings, self.topics, self.producer)
        self._open.callback(made.close)
        return made

    # -- declaring ------------------------------------------------------------------------------

    def declare_queue(self, name: str, arguments: QueueArguments = _PLAIN) -> None:
        self.topics.ensure_queue(self.settings.names.queue_topic(name), arguments)
        if arguments != _PLAIN:
            self._arguments[name] = arguments

    def declare_transient(self, name: str) -> None:
        """Declares a queue of this client. The default exchange delivers to it, until it is bound
        to another exchange."""
        queue = self.transients.declare(name)
        if not queue.is_bound:
            self._subscribe(queue, self._default(name))

    def bind_transient(self, queue: TransientQueue, exchange: str, kind: str, pattern: str) -> None:
        topic = self.settings.names.log_topic(exchange)
        self._subscribe(queue, Subscription(topic, kind, pattern))
        default = self._default(queue.name)
        queue.unsubscribe(default.topic, default.pattern)

    def unbind_transient(self, queue: TransientQueue, exchange: str, pattern: str) -> None:
        queue.unsubscribe(self.settings.names.log_topic(exchange), pattern)

    def _default(self, name: str) -> Subscription:
        return Subscription(self.settings.names.log_topic(""), DIRECT, name)

    def _subscribe(self, queue: TransientQueue, wanted: Subscription) -> None:
        self.topics.ensure_log(wanted.topic, is_keyed=wanted.kind == DIRECT)
        queue.subscribe(wanted, self.topics.ends([wanted.place])[wanted.place])

    def queue_exists(self, name: str) -> bool:
        return self.transients.find(name) is not None or self.topics.exists(
            self.settings.names.queue_topic(name)
        )

    # -- putting --------------------------------------------------------------------------------

    def put(self, name: str, message: Mapping[str, Any]) -> None:
        """Puts a message into a queue. Without a topic of this name, the queue may be one of
        another client: then the message goes to the log of the default exchange."""
        topic = self.settings.names.queue_topic(name)
        if self.transients.find(name) is not None or not self.topics.exists(topic):
            self.put_log("", DIRECT, name, message)
            return
        arguments = self._arguments.get(name, _PLAIN)
        can, now_ms = self.topics.abilities(topic), self.clock.wall_ms()
        delay = delay_s(message, now_ms) if can.timed else None
        at_ms = expires_ms(message, arguments.ttl_ms, delay, now_ms) if can.timed else None
        ttl = None
        if at_ms is not None:
            message = with_expiry(message, at_ms)
            ttl = max(_TTL_MIN_S, (at_ms - now_ms) / 1000 - (delay or 0.0))
        level = None
        if can.levels > 1:
            highest = arguments.max_priority or PRIORITY_MAX
            level = priority_level(message, can.levels, highest)
        value, headers = encode(message)
        try:
            self._putter(topic).put(value, headers=headers, delay=delay, ttl=ttl, priority=level)
        except TopicNotFound:
            self.topics.forget(topic)
            raise

    def put_log(
        self, exchange: str, kind: str, routing_key: str, message: Mapping[str, Any]
    ) -> None:
        """Appends a message to the log of an exchange."""
        topic = self.settings.names.log_topic(exchange)
        self.topics.ensure_log(topic, is_keyed=kind == DIRECT)
        value, headers = encode(message, routing_key)
        partition = log_partition(kind, routing_key)
        self.producer.send(topic, value, headers=headers, partition=partition).result()

    def _putter(self, topic: str) -> Queue[bytes]:
        with self._lock:
            found = self._puts.get(topic)
            if found is None:
                found = self._puts[topic] = new_queue(self.settings, topic)
                self._open.callback(found.close)
            return found

    # -- looking --------------------------------------------------------------------------------

    def size(self, name: str) -> int:
        transient = self.transients.find(name)
        if transient is not None:
            return len(transient)
        return self._putter(self.settings.names.queue_topic(name)).stats().depth

    def drain(self, name: str, idle_s: float) -> int:
        """Takes all messages that no worker has, and settles them."""
        with new_queue(self.settings, self.settings.names.queue_topic(name), 1000) as queue:
            return queue.drain(idle_s=idle_s)

    def delete_queue(self, name: str) -> None:
        if self.transients.find(name) is not None:
            self.transients.delete(name)
            return
        topic = self.settings.names.queue_topic(name)
        with self._lock:
            self._puts.pop(topic, None)
        self._arguments.pop(name, None)
        self.bindings.remove_queue(name)
        self.topics.delete(topic)
