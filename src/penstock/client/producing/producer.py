"""The producer that users hold: records in, deliveries out.

`send` serializes, routes and packs a record, and is done: it waits only for room in the buffer,
or to learn of a topic that it never sent to. The rest happens beside it (`sending`). Whatever
becomes of a record is said by its `Delivery`; nothing is lost without a word.

What happens once per record is kept to a few microseconds: no task, no future, no copy but the one
into the batch. Everything else happens once per batch.

With a `lock` the producer may be fed from other threads than its loop's: `send_nowait` may then be
called from any, and takes the lock. This is what the blocking face is built on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Self, Unpack, overload

from penstock.client.cluster import Cluster
from penstock.client.environment import ClientEnv, default_environment
from penstock.client.errors import (
    ClientError,
    Closed,
    DeadlineExceeded,
    OptionError,
    RequestTimedOut,
    TopicNotFound,
    UnknownTopicYet,
)
from penstock.client.interceptors import producer_chain
from penstock.client.metrics import ProducerMeter, ProducerMetrics
from penstock.client.model import Headers, K, V
from penstock.client.options import ProducerKeywords, ProducerOptions
from penstock.client.producing.accumulator import Accumulator, AccumulatorConfig
from penstock.client.producing.batches import RECORD_OVERHEAD, Batch, record_bytes_max
from penstock.client.producing.deliveries import Delivery, all_over
from penstock.client.producing.inputs import Intercepted, as_bytes, checked_headers, serialized
from penstock.client.producing.lanes import Lane
from penstock.client.producing.room import Room
from penstock.client.producing.sending import Sender
from penstock.client.producing.sequences import Identity
from penstock.client.producing.tickets import DeliveryCallback
from penstock.client.producing.topics import Topic, Topics
from penstock.client.producing.transactions import Transaction, Transactions
from penstock.client.routers import DefaultRouter, checked, make_router
from penstock.client.serializers import Serializer, serialize_with

if TYPE_CHECKING:
    from penstock.client.producing.tables import ArrowTable, TableDelivery

ERROR_CLOSE_S: Final = 5.0
"""When the body of `async with` fails, what was sent before gets this long to arrive."""
_TIMESTAMP_MAX: Final = (1 << 63) - 1
_NO_TIMESTAMP: Final = -1
_IN_FLIGHT_PAUSE_S: Final = 0.005


class _Prepared(NamedTuple):
    """A record that only waits for room."""

    lane: Lane
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    bytes_max: int


class Producer(Generic[K, V]):
    """Sends records to topics.

        async with Producer("localhost:9092", linger_ms=5) as producer:
            delivery = await producer.send("payments", b"42", key=b"alice")
            metadata = await delivery

    Leaving the block waits until everything is delivered or has failed.
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
        self.bootstrap_servers = bootstrap_servers
        self.options = parsed = ProducerOptions.parse(bootstrap_servers, dict(options))
        self.env = env or default_environment()
        self._wall_ms = self.env.clock.wall_ms
        self._serialize_key: Callable[[Any], bytes | None] | None = serialize_with(key_serializer)
        self._serialize_value: Callable[[Any], bytes | None] | None = serialize_with(
            value_serializer
        )
        self._chain = producer_chain(parsed.interceptors)
        self._router = make_router(parsed)
        self._route = self._router.route
        self._trusts_router = type(self._router) is DefaultRouter
        self._lock: AbstractContextManager[Any] = lock or nullcontext()
        self._from_threads = lock is not None
        self._meter = ProducerMeter()
        self._accumulator = Accumulator(
            AccumulatorConfig(
                batch_size=parsed.batch_size,
                linger_s=parsed.linger_ms / 1000,
                buffer_memory=parsed.buffer_memory,
                max_request_size=parsed.max_request_size,
                delivery_timeout_s=parsed.delivery_timeout_ms / 1000,
                attempts_max=parsed.retries + 1,
                idempotent=parsed.enable_idempotence,
                transactional=parsed.transactional_id is not None,
            )
        )
        self._room = Room(self.env.clock, parsed.max_block_ms / 1000, parsed.buffer_memory)
        self._cluster: Cluster | None = None
        self._topics: Topics | None = None
        self._sender: Sender | None = None
        self._known: dict[str, Topic] = {}
        """Topics to which may be sent; empty when none may, so that no record pays for asking."""
        self._transactions: Transactions | None = None
        self._resting: dict[str, Topic] | None = {} if parsed.transactional_id else None
        """Those topics while no transaction is open; None while one is, or none are used."""
        self._learning: dict[str, asyncio.Lock] = {}
        self._error: ClientError | None = None
        self._closing = False

    # -- opening and closing --------------------------------------------------------------------

    async def start(self) -> None:
        """Connect. The loop that runs this is the producer's from now on."""
        if self._cluster is not None:
            raise RuntimeError("the producer was started before: make a new one")
        env = self.env
        self._cluster = Cluster(self.options.cluster_config(), env.network, env.clock, env.random)
        try:
            await self._cluster.__aenter__()
        except BaseException:
            self._cluster = None
            raise
        self._topics = Topics(self._cluster, self._accumulator, self.options.batch_size)
        self._sender = Sender(
            self._cluster,
            self._accumulator,
            self._topics,
            self.options,
            self._meter,
            self._lock,
            from_threads=self._from_threads,
            on_freed=self._room.on_freed,
            on_fatal=self._fail,
        )
        self._sender.wake()
        if self.options.transactional_id is not None:
            self._transactions = Transactions(self._cluster, self.options, _Host(self))
            try:
                await self._transactions.init()
            except BaseException:
                await self.close(0)
                raise

    async def close(self, timeout_s: float | None = None) -> None:
        """Take no more records, deliver what was sent, and disconnect.

        What is not delivered after `timeout_s` fails with `Closed`; without it, everything gets
        the `delivery_timeout_ms` that it was promised.
        """
        if self._closing:
            return
        self._closing = True
        self._known = {}
        if self._sender is None or self._cluster is None:
            return
        try:
            with self._lock:
                self._accumulator.set_hurry(True)
            if timeout_s is None or timeout_s > 0:
                await self.flush(timeout_s)
        except DeadlineExceeded:
            pass
        finally:
            self._fail(Closed("the producer was closed before the record was acknowledged"))
            await self._sender.close()
            self._cluster.close()
            # Requests that were cut off end in callbacks; let them.
            await asyncio.sleep(0)

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
        return self._sender is not None

    @property
    def is_closed(self) -> bool:
        return self._closing

    def _fail(self, error: ClientError) -> None:
        """Nothing more will be sent: everything that waits is told why."""
        if self._error is None:
            self._error = error
        self._known = {}
        with self._lock:
            batches = self._accumulator.fail_all()
        for batch in batches:
            self._meter.failed_records += batch.count
            batch.ticket.fail(error)
        self._room.on_freed()

    def _usable(self) -> Sender:
        """The sender, or why there is none (any more)."""
        if self._error is not None and not isinstance(self._error, Closed):
            raise self._error
        if self._closing:
            raise Closed("the producer is closed: nothing can be sent any more")
        if self._sender is None:
            raise Closed("the producer is not started: use `async with`, or await start()")
        if self._resting is not None:
            raise ClientError(
                "a producer with a transactional_id sends only inside of transactions: "
                "use `async with producer.transaction():`"
            )
        return self._sender

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
        """Buffer a record; waits only for room, or to learn of the topic.

        Without `partition` the router chooses one. `on_delivery` is called on the event loop with
        the metadata or the error, the other being None.
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
                known = await self._learn(topic)
            if partition is not None and partition >= known.view.count:
                known = await self._learn(topic, afresh=True)
            buffered = self._buffer(known, value, key, headers, partition, timestamp_ms, watch)
            if isinstance(buffered, _Prepared):
                buffered = await self._buffer_when_room(buffered, watch)
        except ClientError as error:
            if self._chain is not None:
                seen.on_refused(error)
            raise
        if self._accumulator.has_filled:
            # A caller in a tight loop would only ever fill the buffer: let the sender have a turn.
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
        """Buffer a record now or raise: `BufferExhausted` without room, `UnknownTopicYet` for a
        topic that was never sent to; `await producer.partitions_for(topic)` makes it known."""
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
                raise self._room.exhausted(0.0)
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
        """The delivery of a record now in the buffer; or the record, when that is full."""
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
                return self._place(topic, key, value, headers, partition, timestamp_ms, size, watch)
        return self._place(topic, key, value, headers, partition, timestamp_ms, size, watch)

    def _place(
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
        """Route and pack a record of at most `size` bytes, with the lock held if there is one."""
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
            batch = None if self._room.is_waited_for else self._append_new(record)
            if batch is None:
                accumulator.check_size(lane.place, size)
                accumulator.hurry()
                self._usable().wake()
                return record
        index = batch.count - 1
        if watch is not None:
            # Under the lock, so that it is there before the batch can end: it runs on the loop.
            batch.ticket.watch_record(index, timestamp_ms, watch)
        if accumulator.has_news:
            self._usable().wake()
        return Delivery(batch.ticket, index, timestamp_ms)

    def _append_new(self, record: _Prepared) -> Batch | None:
        return self._accumulator.append_new(*record, self.env.clock.monotonic())

    async def _buffer_when_room(
        self, record: _Prepared, watch: DeliveryCallback | None
    ) -> Delivery:
        deliveries: list[Delivery] = []

        def attempt() -> bool:
            sender = self._usable()
            with self._lock:
                self._accumulator.hurry()
                batch = self._accumulator.append_open(*record) or self._append_new(record)
                if batch is not None:
                    delivery = Delivery(batch.ticket, batch.count - 1, record.timestamp)
                    if watch is not None:
                        delivery.add_callback(watch)
                    deliveries.append(delivery)
            sender.wake()
            return batch is not None

        await self._room.wait_for(attempt)
        return deliveries[0]

    # -- transactions ---------------------------------------------------------------------------

    def transaction(self) -> Transaction:
        """What is sent in the block is read together by readers of committed records, or never.

            async with producer.transaction() as transaction:
                await producer.send("orders", b"42")
                await transaction.send_offsets({place: 43}, consumer)

        The end of the block commits, and returns when that is decided; an error in the block
        aborts. Needs `transactional_id`.
        """
        if self.options.transactional_id is None:
            raise OptionError("a producer needs a transactional_id for transactions: give one")
        return Transaction(self._transacting)

    def _transacting(self) -> Transactions:
        if self._error is not None and not isinstance(self._error, Closed):
            raise self._error
        if self._transactions is None or self._closing:
            raise Closed("the producer is not started, or closed: use `async with`")
        return self._transactions

    def _open_transaction(self) -> None:
        assert self._resting is not None and self._sender is not None
        self._known, self._resting = self._resting, None
        self._sender.take_failure()

    async def _close_transaction(self) -> ClientError | None:
        assert self._sender is not None
        self._resting, self._known = self._known, {}
        await self.flush()
        # Requests whose batches have run out of time: what they carry is of this transaction.
        while self._accumulator.has_in_flight:
            await self.env.clock.sleep(_IN_FLIGHT_PAUSE_S)
        return self._error or self._sender.take_failure()

    def _go_on(self, identity: Identity) -> None:
        with self._lock:
            self._accumulator.adopt(identity)

    # -- topics ---------------------------------------------------------------------------------

    async def partitions_for(self, topic: str) -> int:
        """How many partitions the topic has; makes it known, and creates it where that is on."""
        known = self._known.get(topic) or await self._learn(topic)
        return known.view.count

    async def _learn(self, name: str, *, afresh: bool = False) -> Topic:
        self._usable()
        assert self._cluster is not None and self._topics is not None
        async with self._learning.setdefault(name, asyncio.Lock()):
            known = self._known.get(name)
            if known is not None and not afresh:
                return known
            create = self.options.allow_auto_create_topics
            partitions = await self._cluster.partitions(name, auto_create=create)
            self._usable()
            self._meter.distribution.expect(name, partitions)
            with self._lock:
                known = self._known[name] = self._topics.open(name)
            return known

    # -- waiting --------------------------------------------------------------------------------

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything sent so far is delivered or has failed; send it without linger.

        After `timeout_s` this raises `DeadlineExceeded`; the records go on their way all the same.
        Failures are reported by the deliveries, not here.
        """
        sender = self._sender
        if sender is None:
            return
        with self._lock:
            self._accumulator.hurry()
            tickets = [batch.ticket for batch in self._accumulator.incomplete()]
        sender.wake()
        try:
            async with asyncio.timeout(timeout_s):
                await all_over(tickets)
                if self.options.acks == 0:
                    await sender.vouch()
        except TimeoutError:
            left = sum(not ticket.is_over for ticket in tickets)
            last = sender.last_error or RequestTimedOut(f"{left} batches wait for their answers")
            raise DeadlineExceeded("flush", timeout_s or 0.0, last) from None

    def add_room_listener(self, listener: Callable[[], None]) -> None:
        """Call it, on the event loop, whenever memory of the buffer was freed."""
        self._room.add_listener(listener)

    # -- the rest -------------------------------------------------------------------------------

    async def send_table(self, topic: str, table: ArrowTable) -> TableDelivery:
        """Send every row of an Arrow table, or of anything with the Arrow protocols.

        Columns: value, and optionally key, headers, timestamp, partition. Returns when all rows
        are buffered; await what it returns for where they are.
        """
        from penstock.client.producing import tables  # noqa: PLC0415 (imports pyarrow)

        self._usable()
        known = self._known.get(topic) or await self._learn(topic)
        intake = tables.Intake(
            self._accumulator, self._router, self._room, self.options, self.env, self._lock
        )
        return await intake.send(known, table, self._usable)

    def metrics(self) -> ProducerMetrics:
        """What was counted so far, frozen."""
        with self._lock:
            accumulator = self._accumulator
            return self._meter.snapshot(accumulator.buffered_bytes, accumulator.buffered_records)


class _Host:
    """A producer as its transactions see it."""

    def __init__(self, producer: Producer[Any, Any]) -> None:
        self._producer = producer
        self._batches_before = 0

    def open_transaction(self) -> None:
        self._batches_before = self._producer._accumulator.batches_made
        self._producer._open_transaction()

    async def close_transaction(self) -> tuple[bool, ClientError | None]:
        failure = await self._producer._close_transaction()
        return self._producer._accumulator.batches_made > self._batches_before, failure

    def go_on(self, identity: Identity) -> None:
        self._producer._go_on(identity)

    def give_up(self, error: ClientError) -> None:
        self._producer._fail(error)
