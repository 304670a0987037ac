"""A kombu channel on Penstock. docs/CELERY.md has the design.

Kombu's virtual channel supplies consumers, callbacks and the exchange declarations of this
connection. Queues, bindings and deliveries are the broker's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from queue import Empty
from typing import Any, Final, Protocol

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from penstock.celery.binding_table import Binding, log_of
from penstock.celery.broker_link import DIRECT, BrokerLink
from penstock.celery.message_format import Message
from penstock.celery.qos import QoS
from penstock.celery.queue_arguments import BadArgument, read_arguments
from penstock.celery.sources import Delivered, Getter, Source, TaskSource, TransientSource
from penstock.client.queue_options import PREFETCH_MAX

_DRAIN_S: Final = 0.5


class Connection(Protocol):
    """The transport, as far as a channel needs it beside kombu."""

    @property
    def link(self) -> BrokerLink: ...
    @property
    def arrived(self) -> threading.Event: ...


class Channel(virtual.Channel):  # type: ignore[misc]  # kombu has no types
    """One channel of a connection."""

    QoS = QoS
    supports_fanout = True
    body_encoding = None
    from_transport_options = ("deadletter_queue",)

    def __init__(self, connection: Connection, **options: Any) -> None:
        super().__init__(connection, **options)
        self._link: BrokerLink = connection.link
        self._wake: Callable[[], object] = connection.arrived.set
        self._sources: dict[str, Source] = {}
        self._stopped: list[Source] = []
        self._getters: dict[str, Getter] = {}
        self._without_ack: set[str] = set()
        self._limiting = threading.RLock()
        """Held while the prefetch count is divided: pools settle messages on several threads."""

    # -- queues ---------------------------------------------------------------------------------

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> Any:
        name = queue or f"amq.gen-{uuid()}"
        if passive:
            if not self._link.queue_exists(name):
                raise ChannelError(f"NOT_FOUND - no queue {name!r}", (50, 10), "queue_declare", 404)
            return queue_declare_ok_t(name, self._link.size(name), 0)
        if auto_delete or exclusive or not queue:
            self._link.declare_transient(name)
        else:
            try:
                self._link.declare_queue(name, read_arguments(arguments))
            except BadArgument as error:
                text = f"PRECONDITION_FAILED - queue {name!r}: {error}"
                raise ChannelError(text, (50, 10), "queue_declare", 406) from error
        return queue_declare_ok_t(name, 0, 0)

    def prepare_queue_arguments(self, arguments: Mapping[str, Any], **options: Any) -> Any:
        return to_rabbitmq_queue_arguments(arguments, **options)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any
    ) -> int:
        size = self._link.size(queue) if self._link.queue_exists(queue) else 0
        if (if_empty and size) or (if_unused and queue in self._sources):
            return 0
        self._link.delete_queue(queue)
        return size

    def after_reply_message_received(self, queue: str) -> None:
        """Kombu would delete the queue of replies here. It stays, as it does with AMQP: the next
        request declares it before it sends, but only if kombu does not remember it."""

    def _size(self, queue: str) -> int:
        return self._link.size(queue)

    def _has_queue(self, queue: str, **_: Any) -> bool:
        return self._link.queue_exists(queue)

    def _purge(self, queue: str) -> int:
        transient = self._link.transients.find(queue)
        if transient is not None:
            return transient.clear()
        if not self._link.queue_exists(queue) or not self._link.size(queue):
            return 0
        return self._link.drain(queue, _DRAIN_S)

    # -- bindings -------------------------------------------------------------------------------

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        exchange = exchange or "amq.direct"
        kind = self._kind(exchange)
        transient = self._link.transients.find(queue)
        if transient is None:
            self._link.bindings.add(Binding(exchange, routing_key, queue), kind)
        else:
            self._link.bind_transient(transient, exchange, kind, routing_key)
            self._link.bindings.add(log_of(exchange), kind)

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        exchange = exchange or "amq.direct"
        transient = self._link.transients.find(queue)
        if transient is None:
            self._link.bindings.remove(Binding(exchange, routing_key, queue))
        else:
            self._link.unbind_transient(transient, exchange, routing_key)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        table = self._link.bindings.table()
        if if_unused and any(each.queue for each in table.of_exchange(exchange)):
            return
        self._link.bindings.remove_exchange(exchange)
        self.state.exchanges.pop(exchange, None)

    def get_table(self, exchange: str) -> list[tuple[str, None, str]]:
        found = self._link.bindings.table().of_exchange(exchange)
        return [(each.routing_key, None, each.queue) for each in found if each.queue]

    def _kind(self, exchange: str) -> str:
        declared = self.state.exchanges.get(exchange)
        if declared is not None:
            return str(declared["type"])
        return self._link.bindings.table().kind(exchange) or DIRECT

    # -- publishing -----------------------------------------------------------------------------

    def basic_publish(self, message: Message, exchange: str, routing_key: str, **_: Any) -> None:
        self._inplace_augment_message(message, exchange, routing_key)
        routing_key = routing_key or ""
        if not exchange:
            self._link.put(routing_key, message)
            return
        table = self._link.bindings.table()
        queues, uses_log = table.queues(exchange, routing_key), table.uses_log(exchange)
        if not queues and not uses_log:
            table = self._link.bindings.fresh_table()
            queues, uses_log = table.queues(exchange, routing_key), table.uses_log(exchange)
        for queue in queues:
            self._link.put(queue, message)
        if uses_log:
            self._link.put_log(exchange, self._kind(exchange), routing_key, message)
        elif not queues and self.deadletter_queue:
            self._link.declare_queue(self.deadletter_queue)
            self._link.put(self.deadletter_queue, message)

    def _put(self, queue: str, message: Message, **_: Any) -> None:
        self._link.put(queue, message)

    # -- consuming ------------------------------------------------------------------------------

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], Any],
        consumer_tag: str,
        **options: Any,
    ) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
        if no_ack:
            self._without_ack.add(queue)
        else:
            self._without_ack.discard(queue)
        if queue not in self._sources:
            transient = self._link.transients.find(queue)
            self._sources[queue] = (
                TaskSource(self._link, queue, self.qos.prefetch_count, self._wake)
                if transient is None
                else TransientSource(transient, self._wake)
            )
            self._limit_sources()

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            source = self._sources.pop(queue, None)
            if source is not None:
                source.stop()
                self._stopped.append(source)
                self._limit_sources()

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        getter = self._getters.setdefault(queue, Getter(self._link, queue))
        found = getter.get(self._next_delivery_tag())
        if found is None:
            return None
        message = self.Message(self._received(queue, found, no_ack=no_ack), channel=self)
        if not no_ack:
            self.qos.append(message, message.delivery_tag)
        return message

    def _get(self, queue: str, timeout: float | None = None) -> Message:
        source = self._sources.get(queue)
        found = None if source is None else source.take(self._next_delivery_tag())
        if found is None:
            raise Empty
        return self._received(queue, found, no_ack=queue in self._without_ack)

    def _received(self, queue: str, found: Delivered, *, no_ack: bool) -> Message:
        if no_ack:
            found.delivery.done()
        else:
            tag = found.message["properties"]["delivery_tag"]
            self.qos.hold(tag, queue, found.delivery)
            self._limit_sources()
        return found.message

    # -- settling -------------------------------------------------------------------------------

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        if multiple:
            self.qos.ack_up_to(delivery_tag)
        else:
            self.qos.ack(delivery_tag)

    def basic_recover(self, requeue: bool = False) -> None:
        """Gives back all messages that are not settled. AMQP's recovery to the same consumer does
        not exist here: a share group may deliver them to any."""
        self.qos.restore_unacked()

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self._limit_sources()

    def on_settled(self) -> None:
        """A message was settled, so that another one may come."""
        if not self.closed:
            self._limit_sources()
            self._wake()

    def _limit_sources(self) -> None:
        """Divides the prefetch count among the queues. Each queue with room gets at least one, so
        that none waits for another: with several queues the count may be exceeded by one each."""
        with self._limiting:
            sources = dict(self._sources)
            held = self.qos.held()
            count = self.qos.prefetch_count
            room = max(0, count - sum(held.values()))
            share = max(1, room // len(sources)) if sources and room else 0
            for queue, source in sources.items():
                source.limit(held.get(queue, 0) + share if count else PREFETCH_MAX)

    def close(self) -> None:
        """Gives back what is not settled, and leaves the share groups."""
        was_closed = self.closed
        super().close()
        if not was_closed:
            for source in (*self._sources.values(), *self._stopped):
                source.close()
            for getter in self._getters.values():
                getter.close()
