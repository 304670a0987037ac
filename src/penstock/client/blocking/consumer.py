"""The sync Consumer: records cross from the event loop's thread in lists, never one by one.

Heartbeats, fetches and commits continue on the consumer's own thread while the body of the loop
runs. Iteration takes records, on the caller's thread, from the list that the async consumer has
prepared. The event loop touches that list only during calls of this same consumer, so it needs no
lock.

Listeners, offset stores and handlers of `run` are called on the thread that waits in the call.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, Self, Unpack, overload

from penstock.client.admin.offsets import FoundOffset
from penstock.client.blocking.caller_callbacks import (
    StoreOnCaller,
    listener_on_caller,
)
from penstock.client.blocking.caller_executor import CallerExecutor
from penstock.client.blocking.consumer_thread import ConsumerThread
from penstock.client.blocking.delivery import AtLeastOnce, AtMostOnce
from penstock.client.blocking.run import run_in_thread
from penstock.client.consumer import Bootstrap, ConsumerArguments
from penstock.client.consumer import Consumer as AsyncConsumer
from penstock.client.consuming.core import OnCommit, Topics
from penstock.client.consuming.group_offsets import CommitOffsets
from penstock.client.environment import ClientEnv
from penstock.client.membership.steps import Identity
from penstock.client.metrics import ConsumerMetrics
from penstock.client.model import K, OffsetAndMetadata, Record, V
from penstock.client.option_help import with_help, with_options
from penstock.client.options import ConsumerOptions
from penstock.client.processing.contracts import Handler, RunSummary
from penstock.client.processing.run_options import RunKeywords, RunOptions
from penstock.client.processing.stores import OffsetStore
from penstock.client.profiles import FromProfile
from penstock.client.serializers import Deserializer
from penstock.topic_partition import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.blocking.producer import Producer
    from penstock.client.consuming.ranges import Bound


@with_help(ConsumerOptions)
class Consumer(Generic[K, V]):
    """Reads records from topics, as a member of a consumer group or on its own.

    `topics` and `listener` are as in `subscribe`. The deserializers convert keys and values from
    bytes (see `penstock.serializers`). `offset_store` keeps the offsets in a database, as
    `SqlOffsets` does. `env` is for tests without a network. The other keywords are options: see
    `help(Consumer)` or docs/CLIENTS.md.

    Only one thread at a time may use it; `wakeup` and `close` may be called from any thread. Calls
    that ask the cluster raise `DeadlineExceeded` after `default_api_timeout_ms`, one minute.
    Leaving the block commits offsets, if auto-commit is on, and leaves the group.

    Example:
        options = {"group_id": "billing", "auto_offset_reset": "earliest"}
        with Consumer("localhost:9092", topics=["orders"], **options) as consumer:
            for record in consumer:
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
        self._async = core
        self._on_caller = on_caller
        self._thread = ConsumerThread(core, on_caller)
        self.bootstrap_servers = bootstrap_servers
        self.options = core.options
        self.env = core.env
        self.deserializes = core.deserializes
        self._reading = core._reading
        self._iterator: int | None = None

    # -- starting and closing -------------------------------------------------------------------

    def start(self) -> None:
        """Connects now, or raises `ConnectFailed`. Otherwise the first call connects."""
        self._thread.start()

    def close(self, timeout_s: float | None = None) -> None:
        """Commits offsets if auto-commit is on, leaves the group and closes the connections.

        May be called from any thread. A `poll` or `run` in another thread is ended first.
        """
        self._thread.close(timeout_s)

    from_profile = FromProfile()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
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

        A pattern also covers topics that are created later; with group_protocol="consumer" the
        broker resolves one that is a string. With a `group_id`, the members of the
        group divide the partitions among them; without one, this consumer reads all partitions. The
        listener is any object that has some of the methods `on_assigned`, `on_revoked` and
        `on_lost`. It is called inside `poll`, on the thread that polls.
        """
        wrapper = listener_on_caller(self._on_caller, listener)
        self._thread.wait(self._async.subscribe(topics, pattern=pattern, listener=wrapper))

    def unsubscribe(self) -> None:
        """Stops reading: leaves the group, or gives up the assigned partitions."""
        self._thread.wait(self._async.unsubscribe())

    def assign(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions. Raises `ClientError` if it has subscribed to topics."""
        self._thread.do(self._async.assign, topic_partitions)

    def subscription(self) -> frozenset[str]:
        """Returns the subscribed topics; with a pattern, the topics that match it at the moment."""
        return self._thread.do(self._async.subscription)

    def assignment(self) -> frozenset[TopicPartition]:
        """Returns the partitions that this consumer reads at the moment."""
        return self._thread.do(self._async.assignment)

    @property
    def membership(self) -> tuple[str, Identity]:
        """The group, and this consumer's membership of it when it last returned records.
        A producer's transaction uses it to commit offsets."""
        return self._thread.do(lambda: self._async.membership)

    def add_listener(self, listener: object) -> None:
        """Adds a rebalance listener. It is called before the listener given to `subscribe`."""
        self._thread.add_listener(listener)

    def remove_listener(self, listener: object) -> None:
        """Removes a listener that `add_listener` added."""
        self._thread.remove_listener(listener)

    # -- records --------------------------------------------------------------------------------

    def poll(self, timeout_ms: int = 500, max_records: int | None = None) -> list[Record[K, V]]:
        """Returns buffered records, at most `max_records` (default: `max_poll_records`).

        If none are buffered, waits up to the timeout for the first ones, and then returns an empty
        list. Raises `NoOffset`, `DeserializationFailed` or `BrokerError` when a partition cannot be
        read, and `Fenced` if another member has the same `group_instance_id`.

        Example:
            records = consumer.poll(timeout_ms=10_000)
            print([record.value for record in records])
            #> [b'tea', b'milk', b'rice']
        """
        return self._thread.poll(timeout_ms, max_records)

    def __iter__(self) -> Iterator[Record[K, V]]:
        return self

    def __next__(self) -> Record[K, V]:
        reading = self._reading
        at = reading.at
        if at == len(reading.run) or self._iterator != get_ident():
            self._thread.check_iterator(self._iterator)
            self._iterator = get_ident()
            at = self._thread.next_index()
        reading.at = at + 1
        record: Record[K, V] = reading.run[at]
        return record

    def wakeup(self) -> None:
        """Ends the current `poll`, or the next one, at once. May be called from any thread."""
        self._thread.wakeup()

    # -- positions ------------------------------------------------------------------------------

    def position(self, topic_partition: TopicPartition, *, timeout_ms: int | None = None) -> int:
        """Returns the offset of the next record to be returned. Waits until it is known.

        The timeout is `default_api_timeout_ms` unless given. Raises `ClientError` for a partition
        that is not assigned, as all methods about positions do.
        """
        return self._thread.wait(self._async.position(topic_partition, timeout_ms=timeout_ms))

    def known_position(self, topic_partition: TopicPartition) -> int | None:
        """Returns the position if it is known, and None otherwise. Does not wait."""
        return self._thread.do(self._async.known_position, topic_partition)

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns all positions that are known. `commit()` commits these."""
        return self._thread.do(self._async.positions)

    def seek(self, topic_partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Moves the position: the record at this offset is returned next, whatever was prefetched.

        Example:
            consumer.poll(timeout_ms=10_000)
            consumer.seek(TopicPartition("orders", 0), 1)
            records = consumer.poll(timeout_ms=10_000)
            print(records[0].value)
            #> b'milk'
        """
        self._thread.do(self._async.seek, topic_partition, offset)

    def seek_to_beginning(self, *topic_partitions: TopicPartition) -> None:
        """Seeks to the first record of these partitions, or of all assigned partitions."""
        self._thread.do(self._async.seek_to_beginning, *topic_partitions)

    def seek_to_end(self, *topic_partitions: TopicPartition) -> None:
        """Seeks to the end of these partitions, or of all assigned partitions."""
        self._thread.do(self._async.seek_to_end, *topic_partitions)

    def seek_to_time(self, when: int | datetime, *topic_partitions: TopicPartition) -> None:
        """Seeks to the first record at or after a time: milliseconds since 1970, or a datetime."""
        self._thread.do(self._async.seek_to_time, when, *topic_partitions)

    def pause(self, *topic_partitions: TopicPartition) -> None:
        """Pauses these partitions: none of their records are returned until `resume`.

        Their positions do not change.
        """
        self._thread.do(self._async.pause, *topic_partitions)

    def resume(self, *topic_partitions: TopicPartition) -> None:
        """Resumes paused partitions."""
        self._thread.do(self._async.resume, *topic_partitions)

    def paused(self) -> frozenset[TopicPartition]:
        """Returns the partitions that are paused."""
        return self._thread.do(self._async.paused)

    def lag(self, topic_partition: TopicPartition) -> int | None:
        """Returns the number of offsets between the position and the end, or None while it is
        unknown."""
        return self._thread.do(self._async.lag, topic_partition)

    # -- offsets --------------------------------------------------------------------------------

    def commit(self, offsets: CommitOffsets | None = None) -> None:
        """Commits these offsets, or all positions, for the group, and waits for the answer.

        An offset is the next one to read. Raises `CommitFailed` if the group has rebalanced, and
        `ClientError` without a group.

        Example:
            for record in consumer.poll(timeout_ms=10_000):
                consumer.commit({record.topic_partition: record.offset + 1})
        """
        self._thread.wait(self._async.commit(offsets))

    def commit_nowait(
        self, offsets: CommitOffsets | None = None, on_commit: OnCommit | None = None
    ) -> None:
        """Commits like `commit`, without waiting. Commits keep their order.

        A failure is passed to `on_commit`, on the consumer's own thread, or logged if there is
        none.
        """
        self._thread.do(self._async.commit_nowait, offsets, on_commit)

    def committed(
        self, *topic_partitions: TopicPartition
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Returns the group's committed offsets of these partitions, or of all assigned
        partitions."""
        return self._thread.wait(self._async.committed(*topic_partitions))

    def hold_auto_commit(self) -> None:
        """Stops auto-commit until `release_auto_commit` has been called once for each hold."""
        self._thread.do(self._async.hold_auto_commit)

    def release_auto_commit(self) -> None:
        """Undoes one `hold_auto_commit`."""
        self._thread.do(self._async.release_auto_commit)

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int | datetime]
    ) -> dict[TopicPartition, FoundOffset | None]:
        """Returns the first record at or after each time, or None where there is no such record."""
        return self._thread.wait(self._async.offsets_for_times(times))

    def beginning_offsets(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Returns the log start offset of each partition."""
        return self._thread.wait(self._async.beginning_offsets(topic_partitions))

    def end_offsets(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the offset that the next record will get; with read_committed, the last stable
        offset."""
        return self._thread.wait(self._async.end_offsets(topic_partitions))

    # -- the cluster ----------------------------------------------------------------------------

    def partitions_for(self, topic: str) -> int:
        """Returns the number of the topic's partitions, or raises `TopicNotFound`."""
        return self._thread.wait(self._async.partitions_for(topic))

    def topics(self) -> dict[str, int]:
        """Returns all topics with their numbers of partitions."""
        return self._thread.wait(self._async.topics())

    def metrics(self) -> ConsumerMetrics:
        """Returns a snapshot of this consumer's metrics."""
        return self._thread.do(self._async.metrics)

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

        The columns are topic, partition, offset, timestamp, timestamp_type, key, value, headers.
        Keys and values are the bytes as received; deserializers are not applied. `max_bytes` limits
        how much is taken from the buffers, counted as received, compressed or not. A single batch
        that is larger is returned nevertheless.
        """
        self._thread.check_open()
        return self._thread.wait(
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

        A bound is "earliest", "latest", a time (a datetime, or milliseconds since 1970), or an
        offset for each partition, such as `{0: 100, 1: 250}`. The end is exclusive. The bounds are
        determined when the first batch is requested: records that are written later are not part of
        the range. Raises `OutsideLog` if the log does not have it. Subscriptions and assignments do
        not matter, and positions do not change.
        """
        batches = self._thread.do(
            self._async.read_batches, topic, start, end, partitions=partitions, headers=headers
        )
        return self._thread.batches(batches)

    def read_table(
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
            table = consumer.read_table("orders", start={0: 1})
            print(table.column("value").to_pylist())
            #> [b'milk', b'rice']
        """
        return self._thread.wait(
            self._async.read_table(topic, start, end, partitions=partitions, headers=headers)
        )

    # -- processing -----------------------------------------------------------------------------

    @with_options(RunOptions)
    def run(
        self,
        handler: Handler[K, V],
        *,
        producer: Producer[Any, Any] | None = None,
        stop: threading.Event | None = None,
        **options: Unpack[RunKeywords[K, V]],
    ) -> RunSummary:
        """Calls the handler for every record and commits only the records that it has finished.

        Records of the same partition or key (see `ordering`) are handled in order; others may be
        handled concurrently. With a concurrency of 1 the handler is called on this thread,
        otherwise on a pool of threads. Returns after `stop` is set. Raises the handler's error if a
        record has failed for good and there is no dead-letter topic.

        Example:
            stop = threading.Event()

            def handle(record):
                if record.value == b"rice":
                    stop.set()

            summary = consumer.run(handle, retries=2, dead_letter_topic="failed", stop=stop)
            print(summary.processed)
            #> 3
        """
        return run_in_thread(self._thread, handler, RunOptions(**options), producer, stop)

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
