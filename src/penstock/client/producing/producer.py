"""The async producer: `send` buffers a record and returns its `Delivery`.

`send` serializes and routes the record, packs it into a batch and returns. It waits only for buffer
memory, or for the metadata of a topic that it has not sent to before. Sending happens in the
background (`sender`). Each record's `Delivery` reports its outcome, success or failure, so no
record is lost silently. `core` does everything that does not happen per record.

The work per record is kept to a few microseconds: no task, no future, and a single copy, into the
batch. Everything else happens once per batch.

With a `lock`, threads other than the event loop's may send: `send_nowait` takes the lock and may be
called from any thread. The sync producer is built on this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Self, Unpack, overload

from penstock.client.environment import ClientEnv, default_environment
from penstock.client.errors import ClientError, OptionError, TopicNotFound, UnknownTopicYet
from penstock.client.interceptors import producer_chain
from penstock.client.metrics import ProducerMetrics
from penstock.client.model import Headers, K, V
from penstock.client.option_help import with_help
from penstock.client.option_keywords import ProducerKeywords
from penstock.client.options import ProducerOptions
from penstock.client.producing.batch_outcome import DeliveryCallback
from penstock.client.producing.batches import RECORD_OVERHEAD, Batch, record_bytes_max
from penstock.client.producing.core import ProducerCore
from penstock.client.producing.deliveries import Delivery
from penstock.client.producing.lanes import Lane
from penstock.client.producing.record_input import (
    Intercepted,
    as_bytes,
    checked_headers,
    serialized,
)
from penstock.client.producing.topics import Topic
from penstock.client.producing.transactions import Transaction
from penstock.client.profiles import FromProfile
from penstock.client.routers import DefaultRouter, checked
from penstock.client.serializers import Serializer, serialize_with

if TYPE_CHECKING:
    from penstock.client.producing.tables import ArrowTable, TableDelivery

_TIMESTAMP_MAX: Final = (1 << 63) - 1
_NO_TIMESTAMP: Final = -1
ERROR_CLOSE_S: Final = 5.0
"""When the body of `async with` fails, records that were already sent get this long to be
delivered."""


class _Prepared(NamedTuple):
    """A record that is ready to be packed as soon as the buffer has space."""

    lane: Lane
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    bytes_max: int


@with_help(ProducerOptions)
class Producer(Generic[K, V]):
    """Sends records to topics, on the running event loop. Belongs to that loop.

    `bootstrap_servers` is "host:port", or a list of them. The serializers convert keys and values
    to bytes (see `penstock.serializers`); without them, give bytes. `env` is for tests without a
    network, `lock` for the sync producer. The other keywords are options: see `help(aio.Producer)`
    or docs/CLIENTS.md.

    Leaving the block waits until every record is delivered or has failed.

    Example:
        async with aio.Producer("localhost:9092", value_serializer=serializers.json) as producer:
            delivery = await producer.send("orders", {"sku": "bread", "count": 2}, key=b"eve")
            metadata = await delivery
            print(metadata.offset)
        #> 3
    """

    @overload
    def __init__(
        self: Producer[bytes | None, bytes | None],
        bootstrap_servers: str | Sequence[str] = ...,
        *,
        key_serializer: None = None,
        value_serializer: None = None,
        env: ClientEnv | None = None,
        lock: AbstractContextManager[Any] | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Producer[K, bytes | None],
        bootstrap_servers: str | Sequence[str] = ...,
        *,
        key_serializer: Serializer[K],
        value_serializer: None = None,
        env: ClientEnv | None = None,
        lock: AbstractContextManager[Any] | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Producer[bytes | None, V],
        bootstrap_servers: str | Sequence[str] = ...,
        *,
        key_serializer: None = None,
        value_serializer: Serializer[V],
        env: ClientEnv | None = None,
        lock: AbstractContextManager[Any] | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = ...,
        *,
        key_serializer: Serializer[K],
        value_serializer: Serializer[V],
        env: ClientEnv | None = None,
        lock: AbstractContextManager[Any] | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None: ...

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        *,
        key_serializer: Serializer[Any] | None = None,
        value_serializer: Serializer[Any] | None = None,
        env: ClientEnv | None = None,
        lock: AbstractContextManager[Any] | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        parsed = ProducerOptions.parse(bootstrap_servers, dict(options))
        self.bootstrap_servers = bootstrap_servers
        self.options = parsed
        self.env = env or default_environment()
        self._core = core = ProducerCore(parsed, self.env, lock)
        self._accumulator = core.accumulator
        self._memory = core.memory
        self._known = core.known
        self._usable = core.usable
        self._lock = core.lock
        self._from_threads = lock is not None
        self._wall_ms = self.env.clock.wall_ms
        self._serialize_key: Callable[[Any], bytes | None] | None = serialize_with(key_serializer)
        self._serialize_value: Callable[[Any], bytes | None] | None = serialize_with(
            value_serializer
        )
        self._chain = producer_chain(parsed.interceptors)
        self._router = parsed.make_router()
        self._route = self._router.route
        self._trusts_router = type(self._router) is DefaultRouter

    # -- starting and closing -------------------------------------------------------------------

    async def start(self) -> None:
        """Connects to the cluster. The producer belongs to the running event loop from now on.

        Raises `ConnectFailed` if no broker can be reached, and `Closed` after `close`.
        """
        await self._core.start()

    async def close(self, timeout_s: float | None = None) -> None:
        """Delivers the buffered records and disconnects. No more records are accepted.

        Records that are not delivered within `timeout_s` fail with `Closed`. Without a timeout,
        each record gets its full `delivery_timeout_ms`. An open transaction is aborted, except with
        a timeout of 0: then the coordinator aborts it when its transaction timeout is over.
        """
        await self._core.close(timeout_s)

    from_profile = FromProfile()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close(None if error is None else ERROR_CLOSE_S)

    @property
    def is_started(self) -> bool:
        """Whether the producer has connected."""
        return self._core.is_started

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._core.is_closed

    # -- records --------------------------------------------------------------------------------

    async def send(
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
        the event loop with `(metadata, error)`; one of the two is None.

        Raises `BufferExhausted` if the buffer stays full, `TopicNotFound` or `DeadlineExceeded` if
        the topic's metadata cannot be had, and `RecordTooLarge`, `SerializationFailed` or
        `RoutingError` for a record that cannot be sent.

        Example:
            delivery = await producer.send("orders", b"bread", key=b"eve")
            metadata = await delivery
            print(metadata.partition, metadata.offset)
            #> 0 3
        """
        watch = on_delivery
        if self._chain is not None:
            watch = seen = Intercepted(
                self._chain, topic, value, key, headers, partition, timestamp_ms, on_delivery
            )
            topic, value, key, headers, partition, timestamp_ms = seen.fields()
        try:
            known = self._known.get(topic)
            if known is None:
                known = await self._core.learn(topic)
            if partition is not None and partition >= known.view.count:
                known = await self._core.learn(topic, afresh=True)
            buffered = self._buffer(known, value, key, headers, partition, timestamp_ms, watch)
            if isinstance(buffered, _Prepared):
                buffered = await self._buffer_when_free(buffered, watch)
        except ClientError as error:
            if self._chain is not None:
                seen.on_refused(error)
            raise
        if self._accumulator.has_filled:
            # A caller in a tight loop would keep the event loop busy until the buffer is full. Let
            # the sender run.
            self._accumulator.has_filled = False
            await asyncio.sleep(0)
        return buffered

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
            await producer.partitions_for("orders")
            delivery = producer.send_nowait("orders", b"bread")
        """
        watch = on_delivery
        if self._chain is not None:
            watch = seen = Intercepted(
                self._chain, topic, value, key, headers, partition, timestamp_ms, on_delivery
            )
            topic, value, key, headers, partition, timestamp_ms = seen.fields()
        try:
            known = self._known.get(topic)
            if known is None:
                raise self._not_known(topic)
            buffered = self._buffer(known, value, key, headers, partition, timestamp_ms, watch)
            if isinstance(buffered, _Prepared):
                raise self._memory.exhausted(0.0)
        except ClientError as error:
            if self._chain is not None:
                seen.on_refused(error)
            raise
        return buffered

    def _not_known(self, topic: str) -> ClientError:
        self._usable()
        return UnknownTopicYet(
            f"topic {topic} is not known yet: await partitions_for({topic!r}) first"
        )

    def _buffer(
        self,
        topic: Topic,
        value: Any,
        key: Any,
        headers: Iterable[tuple[str, bytes | None]],
        partition: int | None,
        timestamp_ms: int | None,
        watch: DeliveryCallback | None,
    ) -> Delivery | _Prepared:
        """Returns the delivery of the buffered record, or the prepared record if the buffer is
        full."""
        size = RECORD_OVERHEAD
        if value is not None:
            if self._serialize_value is not None:
                value = serialized(self._serialize_value, value, "value", topic.name)
            if type(value) is not bytes:
                value = as_bytes(value, "value")
            size += len(value)
        if key is not None:
            if self._serialize_key is not None:
                key = serialized(self._serialize_key, key, "key", topic.name)
            if type(key) is not bytes:
                key = as_bytes(key, "key")
            size += len(key)
        if headers:
            headers = checked_headers(headers)
            size = record_bytes_max(key, value, headers)
        else:
            headers = ()
        if timestamp_ms is None:
            timestamp_ms = self._wall_ms()
        elif not _NO_TIMESTAMP <= timestamp_ms <= _TIMESTAMP_MAX:
            raise OptionError(f"timestamp_ms is {timestamp_ms}: give milliseconds since 1970")
        if self._from_threads:
            with self._lock:
                return self._topic_partition(
                    topic, key, value, headers, partition, timestamp_ms, size, watch
                )
        return self._topic_partition(
            topic, key, value, headers, partition, timestamp_ms, size, watch
        )

    def _topic_partition(
        self,
        topic: Topic,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int,
        size: int,
        watch: DeliveryCallback | None,
    ) -> Delivery | _Prepared:
        """Routes and packs a record of at most `size` bytes. The caller holds the lock, if there is
        one."""
        if partition is None:
            view = topic.view
            partition = self._route(topic.name, key, headers, timestamp_ms, size, view)
            if not self._trusts_router:
                checked(self._router, partition, view)
        elif not 0 <= partition < topic.view.count:
            raise TopicNotFound(topic.name, partition)
        lane = topic.lanes[partition]
        accumulator = self._accumulator
        batch = accumulator.append_open(lane, timestamp_ms, key, value, headers, size)
        if batch is None:
            record = _Prepared(lane, timestamp_ms, key, value, headers, size)
            batch = None if self._memory.is_waited_for else self._append_new(record)
            if batch is None:
                accumulator.config.check_size(lane.topic_partition, size)
                accumulator.hurry()
                self._usable().wake()
                return record
        index = batch.count - 1
        if watch is not None:
            # Registered under the lock, because the batch can complete on the event loop at any
            # time after.
            batch.outcome.watch_record(index, timestamp_ms, watch)
        if accumulator.has_news:
            self._usable().wake()
        return Delivery(batch.outcome, index, timestamp_ms)

    def _append_new(self, record: _Prepared) -> Batch | None:
        return self._accumulator.append_new(*record, self.env.clock.monotonic())

    async def _buffer_when_free(
        self, record: _Prepared, watch: DeliveryCallback | None
    ) -> Delivery:
        deliveries: list[Delivery] = []

        def attempt() -> bool:
            sender = self._usable()
            with self._lock:
                self._accumulator.hurry()
                batch = self._accumulator.append_open(*record) or self._append_new(record)
                if batch is not None:
                    delivery = Delivery(batch.outcome, batch.count - 1, record.timestamp)
                    if watch is not None:
                        delivery.add_callback(watch)
                    deliveries.append(delivery)
            sender.wake()
            return batch is not None

        await self._memory.wait_for(attempt)
        return deliveries[0]

    # -- tables ---------------------------------------------------------------------------------

    async def send_table(self, topic: str, table: ArrowTable) -> TableDelivery:
        """Sends every row of an Arrow table, or of any object that supports the Arrow protocols.

        The columns are `value` and, optionally, `key`, `headers`, `timestamp` and `partition`.
        Returns when all rows are buffered, and raises what `send` raises. Await the delivery: it
        reports the offsets of the rows.

        Example:
            import pyarrow as pa

            table = pa.table({"key": ["eve", "kim"], "value": ["bread", "salt"]})
            delivery = await producer.send_table("orders", table)
            print((await delivery).records)
            #> 2
        """
        from penstock.client.producing import tables  # noqa: PLC0415 (imports pyarrow)

        self._usable()
        known = self._known.get(topic) or await self._core.learn(topic)
        intake = tables.Intake(
            self._accumulator, self._router, self._memory, self.options, self.env, self._lock
        )
        return await intake.send(known, table, self._usable)

    # -- transactions ---------------------------------------------------------------------------

    def transaction(self) -> Transaction:
        """Starts a transaction: read-committed consumers see all of its records or none.

        Leaving the block commits the transaction, and returns when the commit is decided. An error
        in the block aborts it. `transaction.send_offsets` adds a consumer's offsets. Requires the
        option `transactional_id`, or raises `OptionError`. The commit raises `TransactionAborted`
        if the work can be repeated, and `Fenced` if another producer has the same transactional id.

        Example:
            async with aio.Producer("localhost:9092", transactional_id="billing-1") as producer:
                async with producer.transaction():
                    await producer.send("orders", b"bread")
                    await producer.send("payments", b"3.50")
        """
        return self._core.transaction()

    # -- topics, flush, metrics -----------------------------------------------------------------

    async def partitions_for(self, topic: str) -> int:
        """Returns the topic's number of partitions.

        Makes the topic known to `send_nowait`, and creates it if auto-creation is on. Raises
        `TopicNotFound`, or `DeadlineExceeded` after `max_block_ms`.
        """
        known = self._known.get(topic) or await self._core.learn(topic)
        return known.view.count

    async def flush(self, timeout_s: float | None = None) -> None:
        """Sends all buffered records without linger. Waits until each is delivered or has failed.

        Raises `DeadlineExceeded` after `timeout_s`; delivery of the records continues nevertheless.
        Without a timeout it waits at most `delivery_timeout_ms`. Failed records are reported by
        their deliveries, not here.

        Example:
            for value in (b"bread", b"salt"):
                await producer.send("orders", value)
            await producer.flush(timeout_s=10)
        """
        await self._core.flush(timeout_s)

    def add_room_listener(self, listener: Callable[[], None]) -> None:
        """Registers a function that is called on the event loop whenever buffer memory is freed."""
        self._memory.add_listener(listener)

    def metrics(self) -> ProducerMetrics:
        """Returns a snapshot of this producer's metrics."""
        return self._core.metrics()
