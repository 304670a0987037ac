"""Where a channel gets the messages of a queue that it consumes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from penstock.celery.broker_link import BrokerLink
from penstock.celery.message_format import MESSAGE, Message, NotAMessage, decode
from penstock.celery.task_queues import Feed, TaskDelivery, new_queue
from penstock.celery.transient_queues import TransientDelivery, TransientQueue
from penstock.client.blocking.queue import Job, Queue
from penstock.client.queue_options import PREFETCH_MAX

_FIRST_GET_S: Final = 10.0
"""A client must join the share group before its first get."""
_GET_S: Final = 0.5
_log: Final = logging.getLogger("penstock.celery")


class Delivery(Protocol):
    """What can happen to a message that was delivered."""

    def done(self) -> None: ...
    def reject(self) -> None: ...
    def give_back(self) -> None: ...


class Delivered(NamedTuple):
    """A message for kombu, and how to settle it."""

    message: Message
    delivery: Delivery


class Source(Protocol):
    """The messages of one queue."""

    def take(self, tag: str) -> Delivered | None:
        """Returns the next message, if there is one. Does not wait."""
        ...

    def limit(self, prefetch: int) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...


def _delivered(link: BrokerLink, name: str, job: Job[bytes], tag: str) -> Delivered | None:
    """Returns the message of a job. A job that is no message is given up."""
    try:
        message = decode(job.value, job.header(MESSAGE), tag, redelivered=job.attempt > 1)
    except NotAMessage as error:
        _log.error("rejected the record at offset %d of topic %s: %s", job.offset, job.topic, error)
        job.reject(wait=False)
        return None

    def put(copy: Any) -> None:
        link.put(name, copy)

    return Delivered(message, TaskDelivery(job, message, put))


class TaskSource:
    """A queue that several workers share."""

    def __init__(
        self, link: BrokerLink, name: str, prefetch: int, wake: Callable[[], object]
    ) -> None:
        self._link = link
        self._name = name
        topic = link.settings.names.queue_topic(name)
        limit = prefetch or PREFETCH_MAX
        self._feed = Feed(new_queue(link.settings, topic, limit), limit, wake)
        self._feed.start()

    def take(self, tag: str) -> Delivered | None:
        job = self._feed.take()
        return None if job is None else _delivered(self._link, self._name, job, tag)

    def limit(self, prefetch: int) -> None:
        self._feed.limit(prefetch)

    def stop(self) -> None:
        self._feed.stop()

    def close(self) -> None:
        self._feed.close()


class TransientSource:
    """A queue of this client."""

    def __init__(self, queue: TransientQueue, wake: Callable[[], object]) -> None:
        self._queue = queue
        self._queue.open(self, wake)

    def take(self, tag: str) -> Delivered | None:
        while (record := self._queue.take()) is not None:
            try:
                message = decode(record.value, record.header(MESSAGE), tag, redelivered=False)
            except NotAMessage as error:
                _log.error(
                    "skipped the record at offset %d of %s: %s", record.offset, record.topic, error
                )
            else:
                return Delivered(message, TransientDelivery(self._queue, record))
        return None

    def limit(self, prefetch: int) -> None:
        """Nothing is locked, so nothing is limited."""

    def stop(self) -> None:
        self._queue.release(self)

    def close(self) -> None:
        self._queue.release(self)


class Getter:
    """Gets single messages (`basic_get`), one at a time and without a thread of its own."""

    def __init__(self, link: BrokerLink, name: str) -> None:
        self._link = link
        self._name = name
        self._queue: Queue[bytes] | None = None
        self._wait_s = _FIRST_GET_S
        self._held: list[Job[bytes]] = []
        self._transient: TransientSource | None = None

    def get(self, tag: str) -> Delivered | None:
        """Returns the next message, or None if there is none. Waits for half a second if others
        may have the rest of the messages."""
        transient = self._link.transients.find(self._name)
        if transient is not None:
            return self._get_transient(transient, tag)
        self._held = [job for job in self._held if not (job.is_settled or job.is_lost)]
        if self._link.size(self._name) <= len(self._held):
            return None
        if self._queue is None:
            topic = self._link.settings.names.queue_topic(self._name)
            self._queue = new_queue(self._link.settings, topic, 1)
        self._queue.set_prefetch(len(self._held) + 1)
        wait_s, self._wait_s = self._wait_s, _GET_S
        job = self._queue.take(wait_s)
        if job is None:
            return None
        self._held.append(job)
        return _delivered(self._link, self._name, job, tag)

    def _get_transient(self, queue: TransientQueue, tag: str) -> Delivered | None:
        if self._transient is None:
            self._transient = TransientSource(queue, lambda: None)
        queue.catch_up(self._link.topics.ends(queue.places), _FIRST_GET_S)
        return self._transient.take(tag)

    def close(self) -> None:
        if self._queue is not None:
            self._queue.close()
        if self._transient is not None:
            self._transient.close()
