"""The sync Consumer: records cross from the event loop's thread in lists, never one by one.

    with Consumer("localhost:9092", topics=["orders"], group_id="billing") as consumer:
        for record in consumer:
            ...

Heartbeats, fetches and commits continue on the consumer's own thread while the body of the loop
runs. Iteration takes records, on the caller's thread, from the list that the async consumer has
prepared. The event loop touches that list only during calls of this same consumer, so it needs no
lock.

Listeners, offset stores and handlers of `run` are called on the thread that waits in the call.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
)
from contextlib import suppress
from dataclasses import replace
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, Unpack, overload

from penstock.client.blocking.caller_executor import CallerExecutor
from penstock.client.blocking.delivery import AtLeastOnce, AtMostOnce
from penstock.client.blocking.on_caller import (
    StoreOnCaller,
    SyncProducer,
    listener_on_caller,
    wrapped,
)
from penstock.client.blocking.standing import Standing
from penstock.client.consuming.consumer import Bootstrap, Topics, open_raw_reader
from penstock.client.consuming.consumer import Consumer as AsyncConsumer
from penstock.client.environment import ClientEnv
from penstock.client.errors import ClientError, Closed
from penstock.client.model import K, Record, TopicPartition, V
from penstock.client.options import ConsumerKeywords
from penstock.client.processing.contracts import Handler, OnError, Ordering, RunSummary
from penstock.client.processing.run import run
from penstock.client.processing.run_options import RunOptions
from penstock.client.processing.stores import OffsetStore
from penstock.client.serializers import Deserializer

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.blocking.producer import Producer
    from penstock.client.consuming.ranges import Bound

_CLOSE_TURN_S: Final = 30.0
"""How long `close` waits for another thread to return from its call."""


class Consumer(Standing, Generic[K, V]):
    """Reads records from topics, as a member of a consumer group or on its own.

        with Consumer("localhost:9092", topics=["orders"], group_id="billing") as consumer:
            for record in consumer:
                ...

    Only one thread at a time may use it; `wakeup` and `close` may be called from any thread.
    """

    @overload
    def __init__(
        self: Consumer[bytes | None, bytes | None],
        bootstrap_servers: Bootstrap = ...,
        *,
        topics: Topics | None = ...,
        listener: object | None = ...,
        offset_store: OffsetStore | None = ...,
        env: ClientEnv | None = ...,
        **options: Unpack[ConsumerKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Consumer[K | None, bytes | None],
        bootstrap_servers: Bootstrap = ...,
        *,
        key_deserializer: Deserializer[K],
        topics: Topics | None = ...,
        listener: object | None = ...,
        offset_store: OffsetStore | None = ...,
        env: ClientEnv | None = ...,
        **options: Unpack[ConsumerKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Consumer[bytes | None, V | None],
        bootstrap_servers: Bootstrap = ...,
        *,
        value_deserializer: Deserializer[V],
        topics: Topics | None = ...,
        listener: object | None = ...,
        offset_store: OffsetStore | None = ...,
        env: ClientEnv | None = ...,
        **options: Unpack[ConsumerKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Consumer[K | None, V | None],
        bootstrap_servers: Bootstrap = ...,
        *,
        key_deserializer: Deserializer[K],
        value_deserializer: Deserializer[V],
        topics: Topics | None = ...,
        listener: object | None = ...,
        offset_store: OffsetStore | None = ...,
        env: ClientEnv | None = ...,
        **options: Unpack[ConsumerKeywords],
    ) -> None: ...
    def __init__(
        self,
        bootstrap_servers: Bootstrap = "localhost:9092",
        *,
        topics: Topics | None = None,
        key_deserializer: Any = None,
        value_deserializer: Any = None,
        listener: object | None = None,
        offset_store: OffsetStore | None = None,
        env: ClientEnv | None = None,
        **options: Any,
    ) -> None:
        on_caller = CallerExecutor()
        core: AsyncConsumer[Any, Any] = AsyncConsumer(
            bootstrap_servers,
            topics=topics,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            listener=listener_on_caller(on_caller, listener),
            offset_store=None if offset_store is None else StoreOnCaller(on_caller, offset_store),
            env=env,
            **options,
        )
        super().__init__(core, on_caller)
        self.bootstrap_servers = bootstrap_servers
        self.options = core.options
        self.env = core.env
        self.deserializes = core.deserializes
        self._reading = core._reading
        self._iterator: int | None = None
        self._iteration: asyncio.Task[Any] | None = None
        self._closing = threading.Event()
        self._listeners: list[tuple[object, object]] = []
        self._life.watch(self)

    # -- starting and closing -------------------------------------------------------------------

    def start(self) -> None:
        """Connects now. Otherwise the first call connects."""
        self._life.portal()

    def close(self, timeout_s: float | None = None) -> None:
        """Commits offsets if auto-commit is on, leaves the group and closes the connections.

        May be called from any thread. A `poll` or `run` in another thread is ended first.
        """
        if self._turns.is_mine:
            raise ClientError(
                "close() was called from a listener or handler of this consumer, which is still "
                "running: return from it first"
            )
        self._closing.set()
        if self._life.is_closed or not self._life.is_started or self._life.is_forked:
            self._life.close()
            return
        self._life.portal().tell(self._interrupt)
        outermost = self._turns.wait(_CLOSE_TURN_S if timeout_s is None else timeout_s)
        try:
            self._life.close(timeout_s, on_caller=self._on_caller if outermost else None)
        finally:
            self._turns.end(outermost)

    def _interrupt(self) -> None:
        self._async.wakeup()
        if self._iteration is not None:
            self._iteration.cancel()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- subscriptions --------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Topics = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: object | None = None,
    ) -> None:
        """Subscribes to these topics, or to all topics whose whole name matches the pattern.

        A pattern also covers topics that are created later. With a `group_id`, the members of the
        group divide the partitions among them; without one, this consumer reads all partitions. The
        listener is any object that has some of the methods `on_assigned`, `on_revoked` and
        `on_lost`. It is called inside `poll`, on the thread that polls.
        """
        wrapper = listener_on_caller(self._on_caller, listener)
        self._wait(self._async.subscribe(topics, pattern=pattern, listener=wrapper))

    def unsubscribe(self) -> None:
        """Stops reading: leaves the group, or gives up the assigned partitions."""
        self._wait(self._async.unsubscribe())

    def assign(self, places: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions, independently of any group assignment."""
        self._do(self._async.assign, places)

    def subscription(self) -> frozenset[str]:
        """Returns the subscribed topics; with a pattern, the topics that match it at the moment."""
        return self._do(self._async.subscription)

    def add_listener(self, listener: object) -> None:
        """Adds a rebalance listener. It is called before the listener given to `subscribe`."""
        wrapper = listener_on_caller(self._on_caller, listener)
        assert wrapper is not None
        self._listeners.append((listener, wrapper))
        self._do(self._async.add_listener, wrapper)

    def remove_listener(self, listener: object) -> None:
        """Removes a listener that `add_listener` added."""
        for pair in [pair for pair in self._listeners if pair[0] is listener]:
            self._listeners.remove(pair)
            self._do(self._async.remove_listener, pair[1])

    # -- records --------------------------------------------------------------------------------

    def poll(self, timeout_ms: int = 500, max_records: int | None = None) -> list[Record[K, V]]:
        """Returns buffered records, at most `max_records` (default: `max_poll_records`).

        If none are buffered, waits up to the timeout for the first ones, and then returns an empty
        list.
        """
        self._check_open()
        self._wait(self._poll(timeout_ms, max_records))
        records, self._kept.records = self._kept.records, []
        return records

    async def _poll(self, timeout_ms: int, max_records: int | None) -> None:
        # Kept in an attribute rather than returned, because Ctrl-C may interrupt the caller between
        # the end of this coroutine and the arrival of its result.
        self._kept.records = await self._async.poll(timeout_ms, max_records)

    def __iter__(self) -> Iterator[Record[K, V]]:
        return self

    def __next__(self) -> Record[K, V]:
        reading = self._reading
        at = reading.at
        if at == len(reading.run) or self._iterator != get_ident():
            at = self._next_run()
        reading.at = at + 1
        record: Record[K, V] = reading.run[at]
        return record

    def _next_run(self) -> int:
        if self._closing.is_set():
            raise StopIteration
        reading = self._reading
        if reading.at < len(reading.run) and self._iterator is not None:
            raise ClientError(
                "another thread is iterating over this consumer: give each thread its own consumer"
            )
        self._iterator = get_ident()
        if reading.at < len(reading.run):
            return reading.at
        if not self._wait(self._iterate()):
            raise StopIteration
        return 0

    async def _iterate(self) -> bool:
        if self._closing.is_set():
            return False
        self._iteration = asyncio.current_task()
        try:
            return await self._async._next_run()
        except asyncio.CancelledError:
            if self._closing.is_set():
                return False
            raise
        finally:
            self._iteration = None

    def wakeup(self) -> None:
        """Ends the current `poll`, or the next one, at once. May be called from any thread."""
        if self._life.is_started and not self._life.is_closed:
            self._life.portal().tell(self._async.wakeup)

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise Closed("the consumer has been closed: make a new one")

    # -- tables ---------------------------------------------------------------------------------

    def poll_table(
        self,
        timeout_ms: int = 500,
        *,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        headers: bool = True,
    ) -> pa.Table:
        """Returns what `poll` would return, as an Arrow table, without an object per record.

        The columns of the table are:

            topic, partition, offset, timestamp, timestamp_type, key, value, headers

        Keys and values are the bytes as received; deserializers are not applied. `max_bytes` limits
        how much is taken from the buffers, counted as received, compressed or not. A single batch
        that is larger is returned nevertheless.
        """
        self._check_open()
        return self._wait(
            self._async.poll_table(
                timeout_ms, max_rows=max_rows, max_bytes=max_bytes, headers=headers
            )
        )

    def read_batches(
        self,
        topic: str,
        start: Bound = "earliest",
        end: Bound = "latest",
        *,
        partitions: Iterable[int] | None = None,
        headers: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """Reads all records of a range, as Arrow record batches of a few megabytes each.

        Subscriptions and assignments do not matter, and positions do not change.

        A bound is "earliest", "latest", a time (a datetime, or milliseconds since 1970), or an
        offset for each partition, such as `{0: 100, 1: 250}`. The end is exclusive. The bounds are
        determined when the first batch is requested: records that are written later are not part of
        the range.
        """
        batches = self._do(
            self._async.read_batches, topic, start, end, partitions=partitions, headers=headers
        )
        return self._each(batches)

    def _each(self, batches: AsyncIterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        async def following() -> pa.RecordBatch | None:
            return await anext(batches, None)

        async def end() -> None:
            if isinstance(batches, AsyncGenerator):
                await batches.aclose()

        try:
            while (batch := self._wait(following())) is not None:
                yield batch
        finally:
            # The generator may be closed early, perhaps by the garbage collector while another call
            # is running. `_wait` would refuse that, so this call bypasses it.
            with suppress(Closed, RuntimeError):
                self._life.call(end())

    def read_table(
        self,
        topic: str,
        start: Bound = "earliest",
        end: Bound = "latest",
        *,
        partitions: Iterable[int] | None = None,
        headers: bool = True,
    ) -> pa.Table:
        """Reads all records of a range into one Arrow table, which must fit into memory. See
        `read_batches`."""
        return self._wait(
            self._async.read_table(topic, start, end, partitions=partitions, headers=headers)
        )

    # -- processing -----------------------------------------------------------------------------

    def run(
        self,
        handler: Handler[K, V],
        *,
        ordering: Ordering = "partition",
        concurrency: int = 1,
        retries: int = 3,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 10_000,
        dead_letter_topic: str | None = None,
        producer: Producer[Any, Any] | None = None,
        on_error: OnError[K, V] | None = None,
        commit_interval_ms: int = 1_000,
        in_progress_max: int = 1_000,
        drain_timeout_ms: int = 30_000,
        stop: threading.Event | None = None,
    ) -> RunSummary:
        """Calls the handler for every record and commits only the records that it has finished.

        Records of the same partition or key (see `ordering`) are handled in order; others may be
        handled concurrently. Returns after `stop` is set.

        With a concurrency of 1 the handler is called on this thread, otherwise on a pool of
        `concurrency` threads.
        """
        options = RunOptions(
            ordering=ordering,
            concurrency=concurrency,
            retries=retries,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
            dead_letter_topic=dead_letter_topic,
            on_error=None if on_error is None else wrapped(self._on_caller, on_error),
            commit_interval_ms=commit_interval_ms,
            in_progress_max=in_progress_max,
            drain_timeout_ms=drain_timeout_ms,
        )
        return self._until(
            stop,
            lambda stopping: run(
                self._async,
                handler,
                replace(options, stop=stopping),
                open_reader=open_raw_reader if self.deserializes else None,
                producer=None if producer is None else SyncProducer(producer),
                executor=self._on_caller if concurrency == 1 else None,
            ),
        )

    def _until(
        self,
        stop: threading.Event | None,
        work: Callable[[asyncio.Event], Coroutine[Any, Any, RunSummary]],
    ) -> RunSummary:
        """Waits for work that ends some time after it was asked to stop, by `stop` or by
        `close`."""
        self._check_open()
        stopping = asyncio.Event()
        portal = self._life.portal()

        def look() -> None:
            if self._closing.is_set() or (stop is not None and stop.is_set()):
                portal.tell(stopping.set)

        return self._wait(work(stopping), watch=look)

    def at_least_once(
        self,
        *,
        max_records: int | None = None,
        idle_timeout_ms: int | None = None,
        commit_interval_ms: int = 1_000,
    ) -> AtLeastOnce[K, V]:
        """Returns a loop that commits each record after the loop body has processed it."""
        return AtLeastOnce(
            self,
            max_records=max_records,
            idle_timeout_ms=idle_timeout_ms,
            commit_interval_ms=commit_interval_ms,
        )

    def at_most_once(
        self, *, max_records: int | None = None, idle_timeout_ms: int | None = None
    ) -> AtMostOnce[K, V]:
        """Returns a loop that commits each record before the loop body receives it."""
        return AtMostOnce(self, max_records=max_records, idle_timeout_ms=idle_timeout_ms)
