"""Queues of a single client: replies, events, remote control. Each reads logs of exchanges.

A queue that is deleted with its client (`auto_delete` or `exclusive`) needs no topic and no locks.
The client reads the log of the exchange, from its end at the time of the binding, and keeps the
messages whose routing key fits. The default exchange has a log too, for replies.

Kombu declares such a queue on one connection and consumes it on another: the replies of Celery's
`rpc://` backend. A message between the two must not be lost. So these queues belong to the process,
not to a connection, and each knows where it has to read on. A reader runs while a connection uses
the queue.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from penstock.celery.binding_table import fits
from penstock.celery.message_format import ROUTING_KEY
from penstock.celery.settings import LOG_PARTITIONS, Settings
from penstock.client.blocking.consumer import Consumer
from penstock.client.blocking.portal import Forks
from penstock.client.errors import ClientError
from penstock.client.model import Record
from penstock.topic_partition import TopicPartition

AnyRecord = Record[bytes | None, bytes | None]
MESSAGES_MAX: Final = 10_000
"""How many messages wait for a client that does not take them. Older ones are dropped."""
_POLL_MS: Final = 500
_JOIN_S: Final = 10.0
_log: Final = logging.getLogger("penstock.celery")


def log_partition(kind: str, routing_key: str) -> int:
    """Returns the partition of an exchange's log for a message. Only direct exchanges have more
    than one: a client knows its routing keys there, and does not read those of others."""
    return crc32(routing_key.encode()) % LOG_PARTITIONS if kind == "direct" else 0


@dataclass(frozen=True, slots=True)
class Subscription:
    """A binding of a queue to the log of an exchange."""

    topic: str
    kind: str
    pattern: str

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, log_partition(self.kind, self.pattern))


class TransientQueue:
    """One queue of this process. May be used from several threads."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self.dropped = 0
        self._settings = settings
        self._subscriptions: set[Subscription] = set()
        self._positions: dict[TopicPartition, int] = {}
        self._messages: deque[AnyRecord] = deque()
        self._users: dict[int, Callable[[], object]] = {}
        self._changed = threading.Condition()
        self._reader: _Reader | None = None
        self._error: ClientError | None = None
        self._forks = Forks.count

    # -- bindings -------------------------------------------------------------------------------

    @property
    def is_bound(self) -> bool:
        return bool(self._subscriptions)

    def subscribe(self, wanted: Subscription, end: int) -> None:
        """Reads a log from `end` on, unless it is read already."""
        with self._changed:
            if wanted in self._subscriptions:
                return
            self._subscriptions.add(wanted)
            self._positions.setdefault(wanted.place, end)
            restart = self._reader is not None
        if restart:
            self._restart()

    def unsubscribe(self, topic: str, pattern: str) -> None:
        with self._changed:
            gone = {
                each
                for each in self._subscriptions
                if (each.topic, each.pattern) == (topic, pattern)
            }
            self._subscriptions -= gone
            for each in gone:
                if each.place not in {other.place for other in self._subscriptions}:
                    del self._positions[each.place]
            restart = bool(gone) and self._reader is not None
        if restart:
            self._restart()

    # -- users ----------------------------------------------------------------------------------

    def open(self, user: object, wake: Callable[[], object]) -> None:
        """Reads messages from now on, and calls `wake` when some have arrived."""
        with self._changed:
            self._users[id(user)] = wake
            self._error = None
        if self._reader is None:
            self._restart()

    def release(self, user: object) -> None:
        """Stops reading if nobody uses the queue. Reading can go on later at the same place. In a
        child process it has no effect: the thread is the parent's."""
        if self._forks != Forks.count:
            return
        with self._changed:
            self._users.pop(id(user), None)
            reader = self._reader if not self._users else None
            if reader is not None:
                self._reader = None
        if reader is not None:
            reader.stop()

    def take(self) -> AnyRecord | None:
        """Returns the next message, or None. Raises the error that has ended the reading."""
        with self._changed:
            if self._messages:
                return self._messages.popleft()
            if self._error is not None:
                raise self._error
            return None

    def put_back(self, record: AnyRecord) -> None:
        with self._changed:
            self._messages.appendleft(record)
        self._wake()

    def catch_up(self, ends: dict[TopicPartition, int], timeout_s: float) -> bool:
        """Waits until everything before `ends` was read. Returns False after the timeout."""
        with self._changed:
            return self._changed.wait_for(
                lambda: (
                    self._error is not None
                    or all(self._positions.get(place, end) >= end for place, end in ends.items())
                ),
                timeout_s,
            )

    @property
    def places(self) -> list[TopicPartition]:
        with self._changed:
            return list(self._positions)

    def __len__(self) -> int:
        return len(self._messages)

    def clear(self) -> int:
        """Deletes the messages that wait. Returns their number."""
        with self._changed:
            count = len(self._messages)
            self._messages.clear()
        return count

    # -- the reader -----------------------------------------------------------------------------

    def _restart(self) -> None:
        with self._changed:
            before, self._reader = self._reader, None
        if before is not None:
            before.stop()
        with self._changed:
            if self._users and self._reader is None:
                positions = dict(self._positions)
                self._reader = _Reader(self.name, self._settings, positions, self)
                self._reader.start()

    def arrived(self, records: Iterable[AnyRecord]) -> None:
        """The reader has read these records."""
        with self._changed:
            for record in records:
                place = TopicPartition(record.topic, record.partition)
                self._positions[place] = record.offset + 1
                key = (record.header(ROUTING_KEY) or b"").decode()
                if any(
                    each.topic == record.topic and fits(each.kind, each.pattern, key)
                    for each in self._subscriptions
                ):
                    self._messages.append(record)
            too_many = len(self._messages) - MESSAGES_MAX
            for _ in range(too_many):
                self._messages.popleft()
            self._changed.notify_all()
        if too_many > 0:
            self.dropped += too_many
            _log.warning(
                "queue %s: no consumer takes its messages; dropped the %d oldest",
                self.name,
                too_many,
            )
        self._wake()

    def failed(self, error: ClientError) -> None:
        with self._changed:
            self._error = error
            self._reader = None
            self._changed.notify_all()
        self._wake()

    def _wake(self) -> None:
        for wake in list(self._users.values()):
            wake()


class _Reader:
    """A thread with a consumer."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        positions: dict[TopicPartition, int],
        queue: TransientQueue,
    ) -> None:
        self._positions = positions
        self._queue = queue
        self._stopping = threading.Event()
        options: dict[str, Any] = {**settings.client, "auto_offset_reset": "earliest"}
        self._consumer: Consumer[bytes | None, bytes | None] = Consumer(
            list(settings.servers), **options
        )
        self._thread = threading.Thread(
            target=self._run, name=f"penstock queue {name}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._consumer.wakeup()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        consumer = self._consumer
        try:
            consumer.assign(self._positions)
            for place, offset in self._positions.items():
                consumer.seek(place, offset)
            while not self._stopping.is_set():
                records = consumer.poll(_POLL_MS)
                if records:
                    self._queue.arrived(records)
        except ClientError as error:
            if not self._stopping.is_set():
                self._queue.failed(error)
        finally:
            consumer.close()


class TransientDelivery:
    """A message of a transient queue that a consumer of kombu has. There is no lock."""

    def __init__(self, queue: TransientQueue, record: AnyRecord) -> None:
        self._queue = queue
        self._record = record

    def done(self) -> None:
        """The log keeps no state of its readers."""

    def reject(self) -> None:
        """The same: it is not delivered again."""

    def give_back(self) -> None:
        self._queue.put_back(self._record)


class TransientQueues:
    """All transient queues of this process, by brokers, virtual host and name."""

    _all: Final[dict[tuple[object, ...], TransientQueue]] = {}

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def _key(self, name: str) -> tuple[object, ...]:
        # A child process has the objects of its parent, but not their threads.
        return (Forks.count, *self._settings.key, name)

    def find(self, name: str) -> TransientQueue | None:
        return self._all.get(self._key(name))

    def declare(self, name: str) -> TransientQueue:
        return self._all.setdefault(self._key(name), TransientQueue(name, self._settings))

    def delete(self, name: str) -> None:
        self._all.pop(self._key(name), None)
