"""The async consumer: the public face of `consuming` and `processing`.

Records of a partition are returned in order; partitions take turns. A position moves when a record
is returned to the caller, not when it is prefetched. Auto-commit commits positions: the records of
one poll count as processed when the next poll begins. Every wait is bounded.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Self, Unpack, overload

from penstock.client.admin.offsets import FoundOffset
from penstock.client.consuming.core import ConsumerCore, OnCommit, Topics
from penstock.client.consuming.group_offsets import CommitOffsets, GroupOffsets
from penstock.client.consuming.log_offsets import LogOffsets
from penstock.client.consuming.partition_control import PartitionControl
from penstock.client.consuming.poller import Poller
from penstock.client.consuming.record_decoder import RecordMaker
from penstock.client.environment import ClientEnv, default_environment
from penstock.client.membership.steps import Identity
from penstock.client.metrics import ConsumerMetrics
from penstock.client.model import K, OffsetAndMetadata, Record, V
from penstock.client.option_help import with_help, with_options
from penstock.client.option_keywords import ConsumerKeywords
from penstock.client.options import ConsumerOptions
from penstock.client.processing.run_options import RunKeywords, RunOptions
from penstock.client.profiles import FromProfile
from penstock.client.serializers import Deserializer, deserialize_with
from penstock.topic_partition import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.consuming.ranges import Bound
    from penstock.client.processing.contracts import DeadLetterProducer, Handler, RunSummary
    from penstock.client.processing.delivery import AtLeastOnce, AtMostOnce
    from penstock.client.processing.stores import OffsetStore


Bootstrap = str | Sequence[str]


class ConsumerArguments(ConsumerKeywords, total=False):
    """The keyword arguments of both consumers, except the deserializers."""

    topics: Topics | None
    listener: object | None
    offset_store: OffsetStore | None
    env: ClientEnv | None


@with_help(ConsumerOptions)
class Consumer(Generic[K, V]):
    """Reads records from topics, as a member of a consumer group or on its own.

    `topics` and `listener` are as in `subscribe`. The deserializers convert keys and values from
    bytes (see `penstock.serializers`). `offset_store` keeps the offsets in a database, as
    `SqlOffsets` does. `env` is for tests without a network. The other keywords are options: see
    `help(aio.Consumer)` or docs/CLIENTS.md.

    A consumer belongs to one task. Calls that ask the cluster raise `DeadlineExceeded` after
    `default_api_timeout_ms`, one minute. Leaving the block commits offsets, if auto-commit is on,
    and leaves the group.

    Example:
        options = {"group_id": "billing", "auto_offset_reset": "earliest"}
        async with aio.Consumer("localhost:9092", topics=["orders"], **options) as consumer:
            async for record in consumer:
                print(record.offset, record.key, record.value)
                break
        #> 0 b'ann' b'tea'
    """

    @overload
    def __init__(
        self: Consumer[bytes | None, bytes | None],
        bootstrap_servers: Bootstrap = ...,
        **options: Unpack[ConsumerArguments],
    ) -> None: ...
    @overload
    def __init__(
        self: Consumer[K | None, bytes | None],
        bootstrap_servers: Bootstrap = ...,
        *,
        key_deserializer: Deserializer[K],
        **options: Unpack[ConsumerArguments],
    ) -> None: ...
    @overload
    def __init__(
        self: Consumer[bytes | None, V | None],
        bootstrap_servers: Bootstrap = ...,
        *,
        value_deserializer: Deserializer[V],
        **options: Unpack[ConsumerArguments],
    ) -> None: ...
    @overload
    def __init__(
        self: Consumer[K | None, V | None],
        bootstrap_servers: Bootstrap = ...,
        *,
        key_deserializer: Deserializer[K],
        value_deserializer: Deserializer[V],
        **options: Unpack[ConsumerArguments],
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
        self.options = ConsumerOptions.parse(bootstrap_servers, options)
        self.env = default_environment() if env is None else env
        key, value = deserialize_with(key_deserializer), deserialize_with(value_deserializer)
        self._core = ConsumerCore(self.options, self.env, RecordMaker(key, value))
        self._reading = self._core.reading
        self._poller: Poller[K, V] = Poller(self._core)
        self._control = PartitionControl(self._core)
        self._group_offsets = GroupOffsets(self._core, self._control)
        self._log_offsets = LogOffsets(self._core)
        self.bootstrap_servers = bootstrap_servers
        self.deserializes = key is not None or value is not None
        self._core.listeners.set_users(listener)
        if offset_store is not None:
            # `processing` imports this module, so it is imported only when it is needed.
            from penstock.client.processing.stores import StoreListener  # noqa: PLC0415

            self.hold_auto_commit()
            self.add_listener(StoreListener(self, offset_store))
        if topics is not None:
            self._core.begin_with(topics)

    # -- starting and closing -------------------------------------------------------------------

    async def start(self) -> None:
        """Connects to the cluster, or raises `ConnectFailed`, and starts to fetch."""
        await self._core.start()

    async def close(self, timeout_s: float | None = None) -> None:
        """Commits offsets if auto-commit is on, leaves the group and closes the connections."""
        await self._core.close(timeout_s)

    from_profile = FromProfile()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
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

        A pattern also covers topics that are created later; with group_protocol="consumer" the
        broker resolves one that is a string. With a `group_id`, the members of the
        group divide the partitions among them; without one, this consumer reads all partitions. The
        listener is any object that has some of the methods `on_assigned`, `on_revoked` and
        `on_lost`, plain or async.
        """
        await self._core.subscribe(topics, pattern, listener)

    async def unsubscribe(self) -> None:
        """Stops reading: leaves the group, or gives up the assigned partitions."""
        await self._core.unsubscribe()

    def assign(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions. Raises `ClientError` if it has subscribed to topics."""
        self._core.assign(topic_partitions)

    def subscription(self) -> frozenset[str]:
        """Returns the subscribed topics; with a pattern, the topics that match it at the moment."""
        return self._core.subscription.topics

    def assignment(self) -> frozenset[TopicPartition]:
        """Returns the partitions that this consumer reads at the moment."""
        return frozenset(self._core.subscription.states)

    @property
    def membership(self) -> tuple[str, Identity]:
        """The group, and this consumer's membership of it when it last returned records.
        A producer's transaction uses it to commit offsets."""
        return self._core.membership

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
        list. Raises `NoOffset`, `DeserializationFailed` or `BrokerError` when a partition cannot be
        read, and `Fenced` if another member has the same `group_instance_id`.

        Example:
            records = await consumer.poll(timeout_ms=10_000)
            print([record.value for record in records])
            #> [b'tea', b'milk', b'rice']
        """
        return await self._poller.poll(timeout_ms, max_records)

    def __aiter__(self) -> AsyncIterator[Record[K, V]]:
        return self

    async def __anext__(self) -> Record[K, V]:
        reading = self._reading
        at = reading.at
        if at == len(reading.run):
            if not await self._poller.next_run():
                raise StopAsyncIteration
            at = 0
        reading.at = at + 1
        return reading.run[at]

    def wakeup(self) -> None:
        """Ends the current `poll`, or the next one, at once. Call it on the event loop."""
        self._core.wakeup()

    # -- positions ------------------------------------------------------------------------------

    async def position(
        self, topic_partition: TopicPartition, *, timeout_ms: int | None = None
    ) -> int:
        """Returns the offset of the next record to be returned. Waits until it is known.

        The timeout is `default_api_timeout_ms` unless given. Raises `ClientError` for a partition
        that is not assigned, as all methods about positions do.
        """
        return await self._control.position(topic_partition, timeout_ms=timeout_ms)

    def known_position(self, topic_partition: TopicPartition) -> int | None:
        """Returns the position if it is known, and None otherwise. Does not wait."""
        return self._control.known_position(topic_partition)

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns all positions that are known. `commit()` commits these."""
        return self._control.positions()

    def seek(self, topic_partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Moves the position: the record at this offset is returned next, whatever was prefetched.

        Example:
            await consumer.poll(timeout_ms=10_000)
            consumer.seek(TopicPartition("orders", 0), 1)
            records = await consumer.poll(timeout_ms=10_000)
            print(records[0].value)
            #> b'milk'
        """
        self._control.seek(topic_partition, offset)

    def seek_to_beginning(self, *topic_partitions: TopicPartition) -> None:
        """Seeks to the first record of these partitions, or of all assigned partitions."""
        self._control.seek_to_beginning(*topic_partitions)

    def seek_to_end(self, *topic_partitions: TopicPartition) -> None:
        """Seeks to the end of these partitions, or of all assigned partitions."""
        self._control.seek_to_end(*topic_partitions)

    def seek_to_time(self, when: int | datetime, *topic_partitions: TopicPartition) -> None:
        """Seeks to the first record at or after a time: milliseconds since 1970, or a datetime."""
        self._control.seek_to_time(when, *topic_partitions)

    def pause(self, *topic_partitions: TopicPartition) -> None:
        """Pauses these partitions: none of their records are returned until `resume`.

        Their positions do not change.
        """
        self._control.pause(*topic_partitions)

    def resume(self, *topic_partitions: TopicPartition) -> None:
        """Resumes paused partitions."""
        self._control.resume(*topic_partitions)

    def paused(self) -> frozenset[TopicPartition]:
        """Returns the partitions that are paused."""
        return self._control.paused()

    def lag(self, topic_partition: TopicPartition) -> int | None:
        """Returns the number of offsets between the position and the end, or None while it is
        unknown."""
        return self._control.lag(topic_partition)

    # -- offsets --------------------------------------------------------------------------------

    async def commit(self, offsets: CommitOffsets | None = None) -> None:
        """Commits these offsets, or all positions, for the group, and waits for the answer.

        An offset is the next one to read. Raises `CommitFailed` if the group has rebalanced, and
        `ClientError` without a group.

        Example:
            for record in await consumer.poll(timeout_ms=10_000):
                await consumer.commit({record.topic_partition: record.offset + 1})
        """
        await self._group_offsets.commit(offsets)

    def commit_nowait(
        self, offsets: CommitOffsets | None = None, on_commit: OnCommit | None = None
    ) -> None:
        """Commits like `commit`, without waiting. Commits keep their order.

        A failure is passed to `on_commit`, or logged if there is none.
        """
        self._group_offsets.commit_nowait(offsets, on_commit)

    async def committed(
        self, *topic_partitions: TopicPartition
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Returns the group's committed offsets of these partitions, or of all assigned
        partitions."""
        return await self._group_offsets.committed(*topic_partitions)

    def hold_auto_commit(self) -> None:
        """Stops auto-commit until `release_auto_commit` has been called once for each hold."""
        self._core.auto_commit_holds += 1

    def release_auto_commit(self) -> None:
        """Undoes one `hold_auto_commit`."""
        self._core.auto_commit_holds -= 1

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int | datetime]
    ) -> dict[TopicPartition, FoundOffset | None]:
        """Returns the first record at or after each time, or None where there is no such record."""
        return await self._log_offsets.for_times(times)

    async def beginning_offsets(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Returns the log start offset of each partition."""
        return await self._log_offsets.beginnings(topic_partitions)

    async def end_offsets(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Returns the offset that the next record will get; with read_committed, the last stable
        offset."""
        return await self._log_offsets.ends(topic_partitions)

    # -- the cluster ----------------------------------------------------------------------------

    async def partitions_for(self, topic: str) -> int:
        """Returns the number of the topic's partitions, or raises `TopicNotFound`."""
        return await self._core.cluster.partitions(topic)

    async def topics(self) -> dict[str, int]:
        """Returns all topics with their numbers of partitions."""
        return await self._core.topics.counts()

    def metrics(self) -> ConsumerMetrics:
        """Returns a snapshot of this consumer's metrics."""
        return self._core.snapshot()

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

        The columns are topic, partition, offset, timestamp, timestamp_type, key, value, headers.
        Keys and values are the bytes as received; deserializers are not applied. `max_bytes` limits
        how much is taken from the buffers, counted as received, compressed or not. A single batch
        that is larger is returned nevertheless.
        """
        return await self._poller.poll_table(timeout_ms, max_rows, max_bytes, headers=headers)

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

        A bound is "earliest", "latest", a time (a datetime, or milliseconds since 1970), or an
        offset for each partition, such as `{0: 100, 1: 250}`. The end is exclusive. The bounds are
        determined when the first batch is requested: records that are written later are not part of
        the range. Raises `OutsideLog` if the log does not have it. Subscriptions and assignments do
        not matter, and positions do not change.
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
        """Reads a range, as `read_batches` does, into one Arrow table, which must fit into memory.

        Example:
            table = await consumer.read_table("orders", start={0: 1})
            print(table.column("value").to_pylist())
            #> [b'milk', b'rice']
        """
        from penstock.client.consuming.tables import table_of  # noqa: PLC0415 -- only when used

        batches = self.read_batches(topic, start, end, partitions=partitions, headers=headers)
        return table_of([batch async for batch in batches], headers=headers)

    # -- processing -----------------------------------------------------------------------------

    @with_options(RunOptions)
    async def run(
        self,
        handler: Handler[K, V],
        *,
        producer: DeadLetterProducer | None = None,
        stop: asyncio.Event | None = None,
        **options: Unpack[RunKeywords[K, V]],
    ) -> RunSummary:
        """Calls the handler for every record and commits only the records that it has finished.

        Records of the same partition or key (see `ordering`) are handled in order; others may be
        handled concurrently. The handler may be async. Returns after `stop` is set. Raises the
        handler's error if a record has failed for good and there is no dead-letter topic.

        Example:
            stop = asyncio.Event()

            def handle(record):
                if record.value == b"rice":
                    stop.set()

            summary = await consumer.run(handle, retries=2, dead_letter_topic="failed", stop=stop)
            print(summary.processed)
            #> 3
        """
        from penstock.client.processing.run import run  # noqa: PLC0415 -- only when used

        return await run(self, handler, RunOptions(**options, stop=stop), producer=producer)

    def at_least_once(
        self,
        *,
        max_records: int | None = None,
        idle_timeout_ms: int | None = None,
        commit_interval_ms: int = 1_000,
    ) -> AtLeastOnce[K, V]:
        """Returns a loop that commits each record after the loop body has processed it."""
        # See `__init__`.
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
        # See `__init__`.
        from penstock.client.processing.delivery import AtMostOnce  # noqa: PLC0415

        return AtMostOnce(self, max_records=max_records, idle_timeout_ms=idle_timeout_ms)
