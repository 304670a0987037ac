"""The sync Producer: the caller's thread fills the buffer, another thread sends it.

`send` takes the producer's lock, packs the record and returns. It does not switch to the event
loop, which is woken only when there is something to send. Only where the async producer would wait,
for buffer memory or for the metadata of a topic, does `send` go through the portal and wait there.

In a transaction, the caller lets the event loop run whenever a few batches are full. The commit
waits for the last batch, and the earlier ones should be in flight by then. Outside a transaction
nothing waits for the batches, and switching threads would only cost time. Switching for every small
batch would cost time as well.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, Unpack, overload

from penstock.client.blocking.lifecycle import Lifecycle
from penstock.client.blocking.portal import Forks
from penstock.client.blocking.transactions import Transaction
from penstock.client.environment import ClientEnv
from penstock.client.errors import BufferExhausted, TopicNotFound, UnknownTopicYet
from penstock.client.metrics import ProducerMetrics
from penstock.client.model import K, V
from penstock.client.option_help import with_help
from penstock.client.option_keywords import ProducerKeywords
from penstock.client.options import ProducerOptions
from penstock.client.producing.batch_outcome import DeliveryCallback
from penstock.client.producing.deliveries import Delivery
from penstock.client.producing.producer import ERROR_CLOSE_S
from penstock.client.producing.producer import Producer as AsyncProducer
from penstock.client.profiles import FromProfile
from penstock.client.serializers import Serializer
from penstock.runtime import give_way

if TYPE_CHECKING:
    from penstock.client.producing.tables import ArrowTable, TableDelivery

Bootstrap = str | Sequence[str]
_TURN_BYTES: Final = 64 << 10


@with_help(ProducerOptions)
class Producer(Generic[K, V]):
    """Sends records to topics. May be used from several threads at once.

    `bootstrap_servers` is "host:port", or a list of them. The serializers convert keys and values
    to bytes (see `penstock.serializers`); without them, give bytes. `env` is for tests without a
    network. The other keywords are options: see `help(Producer)` or docs/CLIENTS.md.

    Leaving the block waits until every record is delivered or has failed. Callbacks are called on
    the producer's own thread: they may send, but must not wait.

    Example:
        with Producer("localhost:9092", value_serializer=serializers.json) as producer:
            delivery = producer.send("orders", {"sku": "bread", "count": 2}, key=b"eve")
            print(delivery.result(timeout_s=10).offset)
        #> 3
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
        # An interceptor must see a record only once, so the fast path cannot be tried first.
        self._only_slow = bool(core.options.interceptors)
        self._forks = Forks.count
        self._started = False
        self._life = Lifecycle("producer", core.env.clock, core.start, core.close)
        self._life.watch(self)

    # -- starting and closing -------------------------------------------------------------------

    def start(self) -> None:
        """Connects now. Otherwise the first call connects.

        Raises `ConnectFailed` if no broker can be reached, and `Closed` after `close`.
        """
        self._life.portal()
        self._started = True

    def close(self, timeout_s: float | None = None) -> None:
        """Delivers the buffered records and disconnects. No more records are accepted.

        Records that are not delivered within `timeout_s` fail with `Closed`. Without a timeout,
        each record gets its full `delivery_timeout_ms`.
        """
        self._life.close(timeout_s)

    from_profile = FromProfile()

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
        """Whether the producer has connected."""
        return self._life.is_started

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
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
        """Buffers a record and returns its `Delivery`.

        Waits only for buffer memory or for the topic's metadata, each at most `max_block_ms` (one
        minute by default). Without `partition` the router chooses one. `on_delivery` is called on
        the producer's own thread with `(metadata, error)`; one of the two is None.

        Raises `BufferExhausted` if the buffer stays full, `TopicNotFound` or `DeadlineExceeded` if
        the topic's metadata cannot be had, and `RecordTooLarge`, `SerializationFailed` or
        `RoutingError` for a record that cannot be sent.

        Example:
            delivery = producer.send("orders", b"bread", key=b"eve")
            metadata = delivery.result(timeout_s=10)
            print(metadata.partition, metadata.offset)
            #> 0 3
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
                # The topic may have more partitions by now. Checking takes a round trip, so the
                # slow path does it.
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
        """Buffers a record without waiting, or raises an error.

        Raises `BufferExhausted` when the buffer is full, `UnknownTopicYet` for a topic that this
        producer has not sent to before, and the errors of `send` for a record that cannot be sent.
        `partitions_for` makes a topic known.

        Example:
            producer.partitions_for("orders")
            delivery = producer.send_nowait("orders", b"bread")
        """
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
        """Sends every row of an Arrow table, or of any object that supports the Arrow protocols.

        The columns are `value` and, optionally, `key`, `headers`, `timestamp` and `partition`.
        Returns when all rows are buffered, and raises what `send` raises. `result()` of the
        delivery reports the offsets of the rows.

        Example:
            import pyarrow as pa

            table = pa.table({"key": ["eve", "kim"], "value": ["bread", "salt"]})
            delivery = producer.send_table("orders", table)
            print(delivery.result().records)
            #> 2
        """
        return self._life.call(self._async.send_table(topic, table))

    # -- transactions ---------------------------------------------------------------------------

    def transaction(self) -> Transaction:
        """Starts a transaction: read-committed consumers see all of its records or none.

        Leaving the block commits the transaction, and returns when the commit is decided. An error
        in the block aborts it. `transaction.send_offsets` adds a consumer's offsets. Requires the
        option `transactional_id`, or raises `OptionError`. The commit raises `TransactionAborted`
        if the work can be repeated, and `Fenced` if another producer has the same transactional id.

        Example:
            with Producer("localhost:9092", transactional_id="billing-1") as producer:
                with producer.transaction():
                    producer.send("orders", b"bread")
                    producer.send("payments", b"3.50")
        """
        return Transaction(self._life, self.start, self._async.transaction())

    # -- topics, flush, metrics -----------------------------------------------------------------

    def partitions_for(self, topic: str) -> int:
        """Returns the topic's number of partitions.

        Makes the topic known to `send_nowait`, and creates it if auto-creation is on. Raises
        `TopicNotFound`, or `DeadlineExceeded` after `max_block_ms`.
        """
        return self._life.call(self._async.partitions_for(topic))

    def flush(self, timeout_s: float | None = None) -> None:
        """Sends all buffered records without linger. Waits until each is delivered or has failed.

        Raises `DeadlineExceeded` after `timeout_s`; delivery of the records continues nevertheless.
        Without a timeout it waits at most `delivery_timeout_ms`. Failed records are reported by
        their deliveries, not here.

        Example:
            for value in (b"bread", b"salt"):
                producer.send("orders", value)
            producer.flush(timeout_s=10)
        """
        if self._life.is_started and not self._life.is_closed:
            self._life.call(self._async.flush(timeout_s), timeout_s)

    def metrics(self) -> ProducerMetrics:
        """Returns a snapshot of this producer's metrics."""
        return self._async.metrics()
