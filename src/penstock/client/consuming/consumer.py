"""The async consumer, as its users know it.

    async with Consumer("localhost:9092", topics=["orders"], group_id="billing") as consumer:
        async for record in consumer:
            ...

Records are handed out in the order of their partition; partitions take turns. A position moves
when a record is handed out, never when it is fetched ahead, and auto-commit commits positions: what
an earlier poll returned counts as dealt with once the next poll begins.

A consumer belongs to one task. Everything that waits has an end: `poll` its timeout, the rest
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
"""Iteration has no timeout of its own; it looks again now and then."""


class Consumer(Standing, Generic[K, V]):
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

    # -- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._core.start()

    async def close(self, timeout_s: float | None = None) -> None:
        """Commit if that is automatic, leave the group, close the connections."""
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

    # -- what to read ---------------------------------------------------------------------------

    async def subscribe(
        self,
        topics: Topics = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: object | None = None,
    ) -> None:
        """Read these topics, or all whose whole name matches the pattern, also those to come.

        In a group its members share the partitions; without a group all are read. The listener is
        any object with some of `on_assigned`, `on_revoked`, `on_lost`, plain or async."""
        names = _names(topics)
        if bool(names) == (pattern is not None):
            raise ClientError("subscribe to topics or to a pattern: give one of the two")
        if pattern is not None and isinstance(pattern, str):
            pattern = re.compile(pattern)
        if listener is not None:
            self._core.listeners.set_users(listener)
        await self._core.follow(names, pattern)

    async def unsubscribe(self) -> None:
        """Read nothing; a group is left, an assignment given up."""
        await self._core.unfollow()

    def assign(self, places: Iterable[TopicPartition]) -> None:
        """Read these partitions and no others, whatever a group says."""
        self._core.assign(places)

    def subscription(self) -> frozenset[str]:
        """The topics that are subscribed to; with a pattern those that match it at the moment."""
        return self._core.subscription.topics

    def add_listener(self, listener: object) -> None:
        """Also tell this one of rebalances, before the one that came with the subscription."""
        self._core.listeners.add(listener)

    def remove_listener(self, listener: object) -> None:
        self._core.listeners.remove(listener)

    # -- records --------------------------------------------------------------------------------

    async def poll(
        self, timeout_ms: int = 500, max_records: int | None = None
    ) -> list[Record[K, V]]:
        """The records at hand, at most `max_records` (`max_poll_records`); if there are none, what
        comes first within the timeout, and an empty list after it."""
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
        """More to iterate over; False once the consumer is closed."""
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
        """End the poll in progress, or else the next, at once. Call it on the event loop."""
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
        """What `poll` would return, as an Arrow table, without a Python object for any record:

            topic, partition, offset, timestamp, timestamp_type, key, value, headers

        Keys and values are the bytes they came in. `max_bytes` bounds what is taken from the
        buffers, compressed or not; a single larger batch comes nevertheless."""
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
        """All records of a range, in Arrow batches of a few megabytes; whatever is subscribed to
        or assigned does not matter, and positions stay where they are.

        A bound is "earliest", "latest", a time (a datetime, or milliseconds since 1970), or an
        offset for each partition, `{0: 100, 1: 250}`. The end is not part of the range; what is
        written later than the call does not belong to it either."""
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
        """The same as one table, which must fit into memory."""
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
        """Call the handler for every record, in order where that was asked for and side by side
        otherwise, and commit only what it has finished; until `stop` is set."""
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
        return await run(self, handler, options, producer=producer)

    def at_least_once(
        self,
        *,
        max_records: int | None = None,
        idle_timeout_ms: int | None = None,
        commit_interval_ms: int = 1_000,
    ) -> AtLeastOnce[K, V]:
        """A loop in which a record is committed after the body has had it."""
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
        """A loop in which a record is committed before the body has it."""
        from penstock.client.processing.delivery import AtMostOnce  # noqa: PLC0415

        return AtMostOnce(self, max_records=max_records, idle_timeout_ms=idle_timeout_ms)


def _names(topics: Topics) -> frozenset[str]:
    return frozenset([topics] if isinstance(topics, str) else topics)
