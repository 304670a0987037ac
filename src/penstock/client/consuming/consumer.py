"""The async consumer.

    async with Consumer("localhost:9092", topics=["orders"], group_id="billing") as consumer:
        async for record in consumer:
            ...

Records of a partition are returned in order; partitions take turns. A position moves when a record
is returned to the caller, not when it is prefetched. Auto-commit commits positions: the records of
one poll count as processed when the next poll begins.

A consumer belongs to one task. Every wait is bounded: `poll` by its timeout, everything else by
`default_api_timeout_ms`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, Unpack, overload

from penstock.client.consuming.core import ConsumerCore
from penstock.client.consuming.decoding import RecordMaker
from penstock.client.consuming.fetching import let_fetches_start
from penstock.client.consuming.standing import Standing
from penstock.client.environment import ClientEnv, default_environment
from penstock.client.errors import ClientError, Closed, OptionError
from penstock.client.model import K, Record, TopicPartition, V
from penstock.client.options import ConsumerKeywords, ConsumerOptions
from penstock.client.serializers import Deserializer, deserialize_with

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.consuming.ranges import Bound
    from penstock.client.processing.contracts import (
        DeadLetterProducer,
        Handler,
        OnError,
        Ordering,
        RunSummary,
    )
    from penstock.client.processing.delivery import AtLeastOnce, AtMostOnce
    from penstock.client.processing.stores import OffsetStore

Bootstrap = str | Sequence[str]
Topics = str | Iterable[str]
_FOREVER_S: Final = 3600.0
"""Iteration has no timeout. It wakes up this often to check again."""


class Consumer(Standing, Generic[K, V]):
    """Reads records from topics, as a member of a consumer group or on its own.

        async with Consumer("localhost:9092", topics=["orders"], group_id="billing") as consumer:
            async for record in consumer:
                ...

    A consumer belongs to one task. Leaving the block commits offsets, if auto-commit is on, and
    leaves the group.
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
        parsed = ConsumerOptions.parse(bootstrap_servers, options)
        env = default_environment() if env is None else env
        key, value = deserialize_with(key_deserializer), deserialize_with(value_deserializer)
        super().__init__(parsed, env, ConsumerCore(parsed, env, RecordMaker(key, value)))
        self.bootstrap_servers = bootstrap_servers
        self.deserializes = key is not None or value is not None
        self._polling = False
        self._core.listeners.set_users(listener)
        if offset_store is not None:
            from penstock.client.processing.stores import StoreListener  # noqa: PLC0415

            self.hold_auto_commit()
            self.add_listener(StoreListener(self, offset_store))
        if topics is not None:
            self._core.begin_with(_names(topics))

    # -- starting and closing -------------------------------------------------------------------

    async def start(self) -> None:
        """Connects to the cluster and starts to fetch."""
        await self._core.start()

    async def close(self, timeout_s: float | None = None) -> None:
        """Commits offsets if auto-commit is on, leaves the group and closes the connections."""
        await self._core.close(timeout_s)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # -- subscriptions --------------------------------------------------------------------------

    async def subscribe(
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
        `on_lost`, plain or async.
        """
        names = _names(topics)
        if bool(names) == (pattern is not None):
            raise ClientError(
                "subscribe needs either topics or a pattern: give exactly one of them"
            )
        if pattern is not None and isinstance(pattern, str):
            pattern = re.compile(pattern)
        if listener is not None:
            self._core.listeners.set_users(listener)
        await self._core.follow(names, pattern)

    async def unsubscribe(self) -> None:
        """Stops reading: leaves the group, or gives up the assigned partitions."""
        await self._core.unfollow()

    def assign(self, places: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions, independently of any group assignment."""
        self._core.assign(places)

    def subscription(self) -> frozenset[str]:
        """Returns the subscribed topics; with a pattern, the topics that match it at the moment."""
        return self._core.subscription.topics

    def add_listener(self, listener: object) -> None:
        """Adds a rebalance listener. It is called before the listener given to `subscribe`."""
        self._core.listeners.add(listener)

    def remove_listener(self, listener: object) -> None:
        """Removes a listener that `add_listener` added."""
        self._core.listeners.remove(listener)

    # -- records --------------------------------------------------------------------------------

    async def poll(
        self, timeout_ms: int = 500, max_records: int | None = None
    ) -> list[Record[K, V]]:
        """Returns buffered records, at most `max_records` (default: `max_poll_records`).

        If none are buffered, waits up to the timeout for the first ones, and then returns an empty
        list.
        """
        limit = self.options.max_poll_records if max_records is None else max_records
        if limit < 1:
            raise OptionError(f"max_records is {limit}: give 1 or more")
        core = self._core
        deadline = self.env.clock.monotonic() + timeout_ms / 1000
        self._begin_poll()
        try:
            while True:
                core.news.clear()
                await core.attend()
                records: list[Record[K, V]] = self._reading.collect(limit)
                if records:
                    return self._handed_out(records)
                core.raise_error(again=True)
                if not await core.wait(deadline):
                    return []
        finally:
            self._polling = False

    def __aiter__(self) -> AsyncIterator[Record[K, V]]:
        return self

    async def __anext__(self) -> Record[K, V]:
        reading = self._reading
        at = reading.at
        if at == len(reading.run):
            if not await self._next_run():
                raise StopAsyncIteration
            at = 0
        reading.at = at + 1
        return reading.run[at]

    async def _next_run(self) -> bool:
        """Prepares the next records to iterate over. Returns False once the consumer is closed."""
        core, reading = self._core, self._reading
        self._begin_poll()
        try:
            while True:
                core.news.clear()
                reading.drop_run()
                await core.attend()
                if reading.begin_run(self.options.max_poll_records):
                    core.wake_fetcher()
                    reading.run = self._handed_out(reading.run)
                    if reading.run:
                        return True
                    reading.skip_run()
                    continue
                core.raise_error(again=True)
                await core.wait(self.env.clock.monotonic() + _FOREVER_S)
        except Closed:
            return False
        finally:
            self._polling = False

    def _begin_poll(self) -> None:
        if self._polling:
            raise ClientError(
                "this consumer is being polled by another task: give each task its own consumer"
            )
        self._polling = True
        self._core.meter.polls += 1

    def _handed_out(self, records: list[Record[K, V]]) -> list[Record[K, V]]:
        core = self._core
        core.meter.records += len(records)
        core.note_handed_out()
        core.wake_fetcher()
        return records if core.chain is None else core.chain.on_consume(records)

    def wakeup(self) -> None:
        """Ends the current `poll`, or the next one, at once. Call it on the event loop."""
        self._core.wakeup()

    # -- tables ---------------------------------------------------------------------------------

    async def poll_table(
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
        from penstock.client.consuming.tables import (  # noqa: PLC0415 -- only when used
            PARTITION_BYTES,
            TablePoll,
        )

        core = self._core
        core.fetch_for_tables(PARTITION_BYTES)
        tables = TablePoll(core.subscription, self._reading, self.options, headers=headers)
        deadline = self.env.clock.monotonic() + timeout_ms / 1000
        self._begin_poll()
        try:
            while True:
                core.news.clear()
                await core.attend()
                await let_fetches_start()
                table = tables.take(max_rows, max_bytes)
                if table.num_rows:
                    core.meter.records += table.num_rows
                    core.note_handed_out()
                    core.wake_fetcher()
                    return table
                core.raise_error(again=True)
                if not await core.wait(deadline):
                    return table
        finally:
            self._polling = False

    def read_batches(
        self,
        topic: str,
        start: Bound = "earliest",
        end: Bound = "latest",
        *,
        partitions: Iterable[int] | None = None,
        headers: bool = True,
    ) -> AsyncIterator[pa.RecordBatch]:
        """Reads all records of a range, as Arrow record batches of a few megabytes each.

        Subscriptions and assignments do not matter, and positions do not change.

        A bound is "earliest", "latest", a time (a datetime, or milliseconds since 1970), or an
        offset for each partition, such as `{0: 100, 1: 250}`. The end is exclusive. The bounds are
        determined when the first batch is requested: records that are written later are not part of
        the range.
        """
        from penstock.client.consuming.ranges import RangeReader  # noqa: PLC0415 -- only when used

        reader = RangeReader(self._core.cluster, self.options, headers=headers)
        return reader.read(topic, start, end, partitions)

    async def read_table(
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
        from penstock.client.consuming.tables import table_of  # noqa: PLC0415 -- only when used

        batches = self.read_batches(topic, start, end, partitions=partitions, headers=headers)
        return table_of([batch async for batch in batches], headers=headers)

    # -- processing -----------------------------------------------------------------------------

    async def run(
        self,
        handler: Handler[K, V],
        *,
        ordering: Ordering = "partition",
        concurrency: int = 1,
        retries: int = 3,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 10_000,
        dead_letter_topic: str | None = None,
        producer: DeadLetterProducer | None = None,
        on_error: OnError[K, V] | None = None,
        commit_interval_ms: int = 1_000,
        in_progress_max: int = 1_000,
        drain_timeout_ms: int = 30_000,
        stop: asyncio.Event | None = None,
    ) -> RunSummary:
        """Calls the handler for every record and commits only the records that it has finished.

        Records of the same partition or key (see `ordering`) are handled in order; others may be
        handled concurrently. Returns after `stop` is set.
        """
        from penstock.client.processing.run import run  # noqa: PLC0415 -- only when used
        from penstock.client.processing.run_options import RunOptions  # noqa: PLC0415

        options = RunOptions(
            ordering=ordering,
            concurrency=concurrency,
            retries=retries,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
            dead_letter_topic=dead_letter_topic,
            on_error=on_error,
            commit_interval_ms=commit_interval_ms,
            in_progress_max=in_progress_max,
            drain_timeout_ms=drain_timeout_ms,
            stop=stop,
        )
        open_reader = open_raw_reader if self.deserializes else None
        return await run(self, handler, options, open_reader=open_reader, producer=producer)

    def at_least_once(
        self,
        *,
        max_records: int | None = None,
        idle_timeout_ms: int | None = None,
        commit_interval_ms: int = 1_000,
    ) -> AtLeastOnce[K, V]:
        """Returns a loop that commits each record after the loop body has processed it."""
        from penstock.client.processing.delivery import AtLeastOnce  # noqa: PLC0415

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
        from penstock.client.processing.delivery import AtMostOnce  # noqa: PLC0415

        return AtMostOnce(self, max_records=max_records, idle_timeout_ms=idle_timeout_ms)


def open_raw_reader(
    options: ConsumerOptions, env: ClientEnv
) -> Consumer[bytes | None, bytes | None]:
    """Returns a consumer that reads single records as bytes, from the cluster of these options."""
    return Consumer(
        [str(address) for address in options.bootstrap],
        env=env,
        client_id=options.client_id,
        auto_offset_reset="none",
        max_poll_records=1,
    )


def _names(topics: Topics) -> frozenset[str]:
    return frozenset([topics] if isinstance(topics, str) else topics)
