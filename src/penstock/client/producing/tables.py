"""Sends Arrow tables to topics, without a Python object per row.

A table is cut into slices of a few megabytes. Each slice is routed as a whole, encoded by compiled
code into sealed batches, one run for each partition, and queued in the lanes behind earlier
batches. From then on its batches are sent, numbered and retried like any others. A slice is encoded
only when the buffer has space for it, so a table of any size needs only bounded memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from penstock.client.environment import ClientEnv
from penstock.client.errors import ClientError, OptionError, RecordTooLarge, SerializationFailed
from penstock.client.options import ProducerOptions
from penstock.client.producing.accumulator import Accumulator
from penstock.client.producing.batch_outcome import NO_OFFSET, BatchOutcome
from penstock.client.producing.batches import BATCH_OVERHEAD, RECORD_OVERHEAD
from penstock.client.producing.buffer_memory import BufferMemory
from penstock.client.producing.deliveries import wait_in_thread, waiter
from penstock.client.producing.sender import Sender
from penstock.client.producing.topics import Topic
from penstock.client.routers import Router, assign_partitions
from penstock.records.batch import HEADER_SIZE, read_header
from penstock.records.columnar import BATCH_BYTES_MAX, BatchOptions, encode_partitions

SLICE_BYTES_MAX: Final = 4 << 20
"""Large enough to make the cost per slice negligible, small compared to the buffer."""
SLICE_ROWS_MAX: Final = 1 << 17
_BUFFER_SHARE: Final = 4
"""A slice takes at most this fraction of the buffer: 1/4."""
_COLUMNS: Final = ("key", "value", "headers", "timestamp", "partition")


class ArrowStream(Protocol):
    """The protocol by which pandas, polars, DuckDB and others export their tables."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


ArrowTable: TypeAlias = pa.Table | pa.RecordBatch | ArrowStream


class OffsetRange(NamedTuple):
    """A range of offsets. Both ends are included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """The positions of a table's rows. With acks=0 they are unknown, and there are no ranges."""

    topic: str
    records: int
    counts: Mapping[int, int]
    """The number of rows by partition."""
    ranges: Mapping[int, tuple[OffsetRange, ...]]
    """Offsets by partition; several ranges if other producers wrote in between."""


TableCallback = Callable[[TableMetadata | None, ClientError | None], object]


class TableDelivery:
    """Resolves to the table's metadata, or raises the first error.

    `await` it. If it raises an error, some of the rows may have been written nevertheless.
    """

    __slots__ = ("_counts", "_outcomes", "_topic")

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._outcomes: list[BatchOutcome] = []
        self._counts: dict[int, int] = {}

    def add(self, outcome: BatchOutcome, count: int) -> None:
        self._outcomes.append(outcome)
        partition = outcome.topic_partition.partition
        self._counts[partition] = self._counts.get(partition, 0) + count

    def done(self) -> bool:
        """Returns whether the outcome of every row is known."""
        return all(outcome.is_over for outcome in self._outcomes)

    def outcome(self) -> TableMetadata:
        """Returns the metadata or raises the first error. The delivery must be done."""
        if not self.done():
            raise RuntimeError("rows are still on their way: await the delivery first")
        if (error := self.error()) is not None:
            raise error
        return TableMetadata(
            self._topic, sum(self._counts.values()), dict(self._counts), self._ranges()
        )

    def error(self) -> ClientError | None:
        """Returns the first error, or None."""
        leaves = (leaf for outcome in self._outcomes for leaf in outcome.leaves())
        return next((leaf.error for leaf in leaves if leaf.error is not None), None)

    def _ranges(self) -> dict[int, tuple[OffsetRange, ...]]:
        ranges: dict[int, list[OffsetRange]] = {}
        for outcome in self._outcomes:
            for leaf in outcome.leaves():
                if leaf.base_offset == NO_OFFSET:
                    continue
                found = ranges.setdefault(leaf.topic_partition.partition, [])
                last = leaf.base_offset + leaf.count - 1
                if found and found[-1].last + 1 == leaf.base_offset:
                    found[-1] = OffsetRange(found[-1].first, last)
                else:
                    found.append(OffsetRange(leaf.base_offset, last))
        return {partition: tuple(found) for partition, found in ranges.items()}

    def add_callback(self, callback: TableCallback) -> None:
        """Registers a callback for the metadata or the first error. May be called from any
        thread."""
        waiting = [None] * len(self._outcomes)

        def tell() -> None:
            error = self.error()
            callback(None if error is not None else self.outcome(), error)

        def one_over() -> None:
            waiting.pop()
            if not waiting:
                tell()

        if not waiting:
            tell()
        for outcome in self._outcomes:
            outcome.watch_batch(one_over)

    def result(self, timeout_s: float | None = None) -> TableMetadata:
        """Blocks until all outcomes are known. Returns the metadata or raises the first error.

        This is for threads without an event loop. On an event loop, await the delivery instead.
        """
        if not self.done():
            wait_in_thread(lambda wake: self.add_callback(lambda *_: wake()), timeout_s)
        return self.outcome()

    def __await__(self) -> Generator[Any, None, TableMetadata]:
        if not self.done():
            told = waiter(lambda wake: self.add_callback(lambda *_: wake()))
            yield from told.__await__()
        return self.outcome()


class Intake:
    """Adds tables to the accumulator."""

    def __init__(
        self,
        accumulator: Accumulator,
        router: Router,
        memory: BufferMemory,
        options: ProducerOptions,
        env: ClientEnv,
        lock: AbstractContextManager[Any],
    ) -> None:
        self._accumulator = accumulator
        self._router = router
        self._memory = memory
        self._options = options
        self._env = env
        self._lock = lock

    async def send(
        self, topic: Topic, table: ArrowTable, usable: Callable[[], Sender]
    ) -> TableDelivery:
        delivery = TableDelivery(topic.name)
        slice_bytes = min(SLICE_BYTES_MAX, self._options.buffer_memory // _BUFFER_SHARE)
        for rows, bytes_max in slices(_record_batches(table), slice_bytes):
            needed = bytes_max + topic.view.count * (HEADER_SIZE + BATCH_OVERHEAD)

            def take(rows: pa.RecordBatch = rows, needed: int = needed) -> bool:
                sender = usable()
                with self._lock:
                    if not self._accumulator.has_room(needed):
                        self._accumulator.hurry()
                        sender.wake()
                        return False
                    self._take(topic, rows, delivery)
                sender.wake()
                return True

            if self._memory.is_waited_for or not take():
                await self._memory.wait_for(take)
            # Let the sender send what was added, and let other tasks run.
            await asyncio.sleep(0)
        return delivery

    def _take(self, topic: Topic, rows: pa.RecordBatch, delivery: TableDelivery) -> None:
        limit = min(self._accumulator.batch_limit(topic.name), BATCH_BYTES_MAX)
        view = replace(topic.view, batch_size=limit)
        now_ms = self._env.clock.wall_ms()
        options = BatchOptions(
            codec=self._options.compression_type,
            level=self._options.compression_level,
            batch_bytes_max=limit,
        )
        try:
            partitions = assign_partitions(self._router, topic.name, rows, view, now_ms=now_ms)
            names = rows.schema.names
            if "partition" in names:
                rows = rows.set_column(names.index("partition"), "partition", partitions)
            else:
                rows = rows.append_column("partition", partitions)
            encoded = encode_partitions(rows, options, now_ms=now_ms)
        except ClientError:
            raise
        except (ValueError, pa.ArrowException) as error:
            raise SerializationFailed(
                f"cannot encode a table for topic {topic.name}: {error}"
            ) from error
        self._check_sizes(topic, encoded)
        now = self._env.clock.monotonic()
        for partition, batches in encoded.items():
            lane = topic.lanes[partition]
            for data in batches:
                count = read_header(data).record_count
                batch = self._accumulator.append_sealed(lane, data, count, now)
                delivery.add(batch.outcome, count)

    def _check_sizes(self, topic: Topic, encoded: Mapping[int, Sequence[memoryview]]) -> None:
        largest = max((len(data) for batches in encoded.values() for data in batches), default=0)
        if largest > self._options.max_request_size:
            raise RecordTooLarge(
                f"a row for topic {topic.name} has {largest} bytes, more than this producer "
                f"allows: raise max_request_size (now {self._options.max_request_size})"
            )


def _record_batches(table: ArrowTable) -> Iterator[pa.RecordBatch]:
    if isinstance(table, pa.RecordBatch):
        batches: Iterator[pa.RecordBatch] = iter([table])
    elif isinstance(table, pa.Table):
        batches = iter(table.to_batches())
    elif hasattr(table, "__arrow_c_stream__"):
        batches = iter(pa.RecordBatchReader.from_stream(table))
    else:
        raise OptionError(
            f"{type(table).__name__} is not a table: give an Arrow table, or an object with "
            "__arrow_c_stream__ (pandas, polars, DuckDB)"
        )
    for batch in batches:
        unknown = [name for name in batch.schema.names if name not in _COLUMNS]
        if unknown or "value" not in batch.schema.names:
            raise OptionError(
                f"a table of records may have the columns {', '.join(_COLUMNS)}, of which only "
                f"value is required; this one has {', '.join(batch.schema.names)}"
            )
        yield batch


def slices(
    batches: Iterator[pa.RecordBatch], bytes_max: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yields the rows in order, in slices of about `bytes_max` bytes, each with its maximum
    size."""
    for batch in batches:
        if not len(batch):
            continue
        size = batch.nbytes + RECORD_OVERHEAD * len(batch)
        pieces = max(-(-size // bytes_max), -(-len(batch) // SLICE_ROWS_MAX))
        rows = max(-(-len(batch) // pieces), 1)
        for start in range(0, len(batch), rows):
            part = batch.slice(start, rows)
            part_size = part.nbytes + RECORD_OVERHEAD * len(part)
            if part_size > 2 * bytes_max and len(part) > 1:
                # The rows differ much in size: halve the slice until it fits.
                middle = len(part) // 2
                halves = iter([part.slice(0, middle), part.slice(middle)])
                yield from slices(halves, bytes_max)
            else:
                yield part, part_size
