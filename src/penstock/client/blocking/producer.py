"""The sync Producer: records go into the buffer on the caller's thread, and out of it on another.

`send` takes the producer's lock, packs the record and is gone: no hop to the loop, which is woken
only when there is something to send. Only where the async producer would wait, for room or for a
topic that it does not know yet, does this one go through the portal and wait there.

In a transaction the loop is given a turn whenever some full batches have come together: the commit
waits for the last of them, and those before should be on their way by then. Without one nobody
waits, and the turns would only cost time; so would one for every small batch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, Unpack, overload

from penstock.client.blocking.life import Life
from penstock.client.blocking.portal import Forks
from penstock.client.blocking.transactions import Transaction
from penstock.client.environment import ClientEnv
from penstock.client.errors import BufferExhausted, TopicNotFound, UnknownTopicYet
from penstock.client.metrics import ProducerMetrics
from penstock.client.model import K, V
from penstock.client.options import ProducerKeywords
from penstock.client.producing.core import ERROR_CLOSE_S
from penstock.client.producing.deliveries import Delivery
from penstock.client.producing.producer import Producer as AsyncProducer
from penstock.client.producing.tickets import DeliveryCallback
from penstock.client.serializers import Serializer
from penstock.runtime import give_way

if TYPE_CHECKING:
    from penstock.client.producing.tables import ArrowTable, TableDelivery

Bootstrap = str | Sequence[str]
_TURN_BYTES: Final = 64 << 10


class Producer(Generic[K, V]):
    """Sends records to topics; may be used from several threads at once.

        with Producer("localhost:9092", linger_ms=5) as producer:
            delivery = producer.send("payments", b"42", key=b"alice")
            metadata = delivery.result()

    Leaving the block waits until everything is delivered or has failed. Callbacks are called on
    the producer's own thread: they may send, but not wait.
    """

    @overload
    def __init__(
        self: Producer[bytes | None, bytes | None],
        bootstrap_servers: Bootstrap = ...,
        *,
        key_serializer: None = None,
        value_serializer: None = None,
        env: ClientEnv | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Producer[K, bytes | None],
        bootstrap_servers: Bootstrap = ...,
        *,
        key_serializer: Serializer[K],
        value_serializer: None = None,
        env: ClientEnv | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Producer[bytes | None, V],
        bootstrap_servers: Bootstrap = ...,
        *,
        key_serializer: None = None,
        value_serializer: Serializer[V],
        env: ClientEnv | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self,
        bootstrap_servers: Bootstrap = ...,
        *,
        key_serializer: Serializer[K],
        value_serializer: Serializer[V],
        env: ClientEnv | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None: ...

    def __init__(
        self,
        bootstrap_servers: Bootstrap = "localhost:9092",
        *,
        key_serializer: Serializer[Any] | None = None,
        value_serializer: Serializer[Any] | None = None,
        env: ClientEnv | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        core: AsyncProducer[Any, Any] = AsyncProducer(
            bootstrap_servers,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            env=env,
            lock=threading.Lock(),
            **options,
        )
        self._async = core
        self.bootstrap_servers = bootstrap_servers
        self.options = core.options
        self.env = core.env
        self._send_nowait = core.send_nowait
        self._accumulator = core._accumulator
        self._takes_turns = core.options.transactional_id is not None
        self._turn_after = _TURN_BYTES // max(1, core.options.batch_size)
        self._filled = 0
        # An interceptor must see a record once, so a record must not be tried and then sent anew.
        self._only_slow = bool(core.options.interceptors)
        self._forks = Forks.count
        self._started = False
        self._life = Life("producer", core.env.clock, core.start, core.close)
        self._life.watch(self)

    # -- opening and closing --------------------------------------------------------------------

    def start(self) -> None:
        """Connect now; otherwise the first call does."""
        self._life.portal()
        self._started = True

    def close(self, timeout_s: float | None = None) -> None:
        """Take no more records, deliver what was sent, and disconnect.

        What is not delivered after `timeout_s` fails with `Closed`; without it, everything gets
        the `delivery_timeout_ms` that it was promised.
        """
        self._life.close(timeout_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(None if error is None else ERROR_CLOSE_S)

    @property
    def is_started(self) -> bool:
        return self._life.is_started

    @property
    def is_closed(self) -> bool:
        return self._life.is_closed

    # -- records --------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> Delivery:
        """Buffer a record; waits only for room, or to learn of the topic, up to `max_block_ms`.

        Without `partition` the router chooses one. `on_delivery` is called on the producer's own
        thread with the metadata or the error, the other being None.
        """
        if headers:
            headers = tuple(headers)
        if not self._only_slow and self._started and self._forks == Forks.count:
            try:
                delivery = self._send_nowait(
                    topic,
                    value,
                    key=key,
                    headers=headers,
                    partition=partition,
                    timestamp_ms=timestamp_ms,
                    on_delivery=on_delivery,
                )
            except (BufferExhausted, UnknownTopicYet):
                if self._life.portal().is_own_thread:
                    raise
            except TopicNotFound:
                # The topic may have grown: asking costs a round trip, and so is done slowly.
                if partition is None:
                    raise
            else:
                if self._takes_turns and self._accumulator.has_filled:
                    self._accumulator.has_filled = False
                    self._filled += 1
                    if self._filled >= self._turn_after:
                        self._filled = 0
                        give_way()
                return delivery
        return self._send_slowly(topic, value, key, headers, partition, timestamp_ms, on_delivery)

    def _send_slowly(
        self,
        topic: str,
        value: V | None,
        key: K | None,
        headers: Iterable[tuple[str, bytes | None]],
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: DeliveryCallback | None,
    ) -> Delivery:
        self.start()
        return self._life.call(
            self._async.send(
                topic,
                value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp_ms=timestamp_ms,
                on_delivery=on_delivery,
            )
        )

    def send_nowait(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> Delivery:
        """Buffer a record now or raise: `BufferExhausted` without room, `UnknownTopicYet` for a
        topic that was never sent to; `partitions_for(topic)` makes it known."""
        self._life.portal()
        return self._async.send_nowait(
            topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp_ms=timestamp_ms,
            on_delivery=on_delivery,
        )

    def send_table(self, topic: str, table: ArrowTable) -> TableDelivery:
        """Send every row of an Arrow table, or of anything with the Arrow protocols.

        Columns: value, and optionally key, headers, timestamp, partition. Returns when all rows
        are buffered; ask what it returns for where they are.
        """
        return self._life.call(self._async.send_table(topic, table))

    # -- transactions ---------------------------------------------------------------------------

    def transaction(self) -> Transaction:
        """What is sent in the block is read together by readers of committed records, or never.

            with producer.transaction() as transaction:
                producer.send("orders", b"42")
                transaction.send_offsets({place: 43}, consumer)

        The end of the block commits, and returns when that is decided; an error in the block
        aborts. Needs `transactional_id`.
        """
        return Transaction(self._life, self.start, self._async.transaction())

    # -- the rest -------------------------------------------------------------------------------

    def partitions_for(self, topic: str) -> int:
        """How many partitions the topic has; makes it known, and creates it where that is on."""
        return self._life.call(self._async.partitions_for(topic))

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything sent so far is delivered or has failed; send it without linger.

        After `timeout_s` this raises `DeadlineExceeded`; the records go on their way all the same.
        Failures are reported by the deliveries, not here.
        """
        if self._life.is_started and not self._life.is_closed:
            self._life.call(self._async.flush(timeout_s), timeout_s)

    def metrics(self) -> ProducerMetrics:
        """What was counted so far, frozen."""
        return self._async.metrics()
