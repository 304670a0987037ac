"""The messages that a channel has delivered and that are not settled: each is locked at the broker.

Kombu's virtual transports keep such messages in memory, and write them back when a channel is
closed. Here the broker has them. Settling a message settles its job, and a message that nobody
settles is delivered again when its lock ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from kombu.transport import virtual

from penstock.celery.sources import Delivery
from penstock.client.errors import ClientError

_log: Final = logging.getLogger("penstock.celery")


class Owner(Protocol):
    """The channel."""

    def on_settled(self) -> None:
        """A message was settled."""


class QoS(virtual.QoS):  # type: ignore[misc]  # kombu has no types
    """Settles jobs when kombu settles messages. Acknowledgements may come from any thread."""

    channel: Owner

    def __init__(self, channel: Owner, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self._deliveries: dict[str, tuple[str, Delivery]] = {}

    def hold(self, tag: str, queue: str, delivery: Delivery) -> None:
        self._deliveries[tag] = queue, delivery

    def held(self) -> dict[str, int]:
        """Returns the number of messages that are not settled, by queue."""
        counts: dict[str, int] = {}
        for queue, _ in list(self._deliveries.values()):
            counts[queue] = counts.get(queue, 0) + 1
        return counts

    def ack(self, delivery_tag: str) -> None:
        self._settle(delivery_tag, lambda delivery: delivery.done())

    def ack_up_to(self, delivery_tag: str) -> None:
        """Acknowledges this message and all that were delivered before it."""
        if delivery_tag in self._deliveries:
            for tag in list(self._deliveries):
                self.ack(tag)
                if tag == delivery_tag:
                    break

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if requeue:
            self._settle(delivery_tag, lambda delivery: delivery.give_back())
        else:
            self._settle(delivery_tag, lambda delivery: delivery.reject())

    def restore_unacked(self) -> list[Any]:
        """Gives back everything that is not settled. Kombu expects the failures; there are none to
        handle, because a message that cannot be given back is unlocked by the broker."""
        for tag in list(self._deliveries):
            self.reject(tag, requeue=True)
        self._flush()
        return []

    def _settle(self, tag: str, settle: Callable[[Delivery], None]) -> None:
        found = self._deliveries.pop(tag, None)
        if found is None:
            return
        try:
            settle(found[1])
        except ClientError as error:
            _log.warning(
                "a message of queue %s could not be acknowledged or rejected, so it will be "
                "delivered again: %s",
                found[0],
                error,
            )
        self._quick_ack(tag)
        self.channel.on_settled()
