"""Reads topics as a stream of micro-batches.

The driver plans: where the stream begins, how far the next batch goes, which tasks read it. The
executors read (`reading`). Spark pickles this object for its executors, so the clients that the
driver has open are left out of the pickle.

When Spark asks how far the next batch may go, it passes where the last one ended, and it asks only
when that one is done. At that moment the progress is committed to the group. So the group's lag is
right even after the last batch of a run, for which Spark does not call `commit`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.runtime import SystemClock
from penstock.spark.backfill_file import RequestFile
from penstock.spark.backfill_planning import BackfillPlan
from penstock.spark.log_view import open_view
from penstock.spark.offsets import (
    Offsets,
    Span,
    SparkOffsets,
    advance,
    spans,
    split,
    to_spark,
    waiting,
)
from penstock.spark.options import SourceOptions, parse_source
from penstock.spark.schema import check_schema
from penstock.spark.span_partition import SpanPartition, read_span
from penstock.spark.stream_position import (
    Position,
    forget,
    live_start,
    position_from_spark,
    position_to_spark,
)
from penstock.spark.telling import told_plainly
from penstock.topic_partition import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = given
        self._schema = schema
        self._driver: _Driver | None = None

    @cached_property
    def _options(self) -> SourceOptions:
        """Parsed on first use: if a reader raises while it is created, Spark replaces the error by
        a message of its own."""
        options = parse_source(self._given, streaming=True)
        check_schema(options, self._schema)
        return options

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}

    def _open(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 -- Spark's name
        with told_plainly():
            return position_to_spark(self._open().begin())

    # Spark calls it by this name.
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        unlimited = isinstance(limit, ReadAllAvailable)
        with told_plainly():
            end = self._open().advance(position_from_spark(start), unlimited=unlimited)
            return position_to_spark(end)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 -- Spark's name
        """Returns one of the limits. Spark passes it back to `latestOffset`, which then applies all
        the limits that were set."""
        with told_plainly():
            options = self._options
        if options.trigger_offsets_max is not None:
            return ReadMaxRows(options.trigger_offsets_max)
        if options.trigger_bytes_max is not None:
            return ReadMaxBytes(options.trigger_bytes_max)
        if options.trigger_offsets_min is not None:
            return ReadMinRows(options.trigger_offsets_min)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> SparkOffsets | None:  # noqa: N802 -- Spark's name
        with told_plainly():
            latest = self._open().latest
        return to_spark(latest) if latest else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 -- Spark's name
        with told_plainly():
            self._open().stop_at_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with told_plainly():
            whole = self._open().plan(position_from_spark(start), position_from_spark(end))
        pieces = split(
            whole,
            pieces_min=self._options.partitions_min,
            records_max=self._options.partition_records_max,
        )
        return [SpanPartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_span(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        with told_plainly():
            self._open().commit(position_from_spark(end).live)

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None


class _Driver:
    """Plans the batches; holds the clients of the planning process."""

    def __init__(self, options: SourceOptions) -> None:
        self.latest: Offsets = {}
        """The log end offsets when they were last read."""
        self._options = options
        self._clock = SystemClock()
        self._view = open_view(options)
        self._backfill = BackfillPlan(options, self._view, self._clock, RequestFile(options.flow))
        self._target: Offsets | None = None
        """Where a run with the trigger availableNow ends; None for other runs."""
        self._committed: Offsets = {}
        self._advanced_at: float | None = None

    def close(self) -> None:
        self._view.close()

    def begin(self) -> Position:
        topic_partitions = self._view.topic_partitions()
        found = self._view.resolve(self._options.starting, topic_partitions, starting=True)
        return replace(self._backfill.begun(found), topics=self._view.ids(found))

    def stop_at_now(self) -> None:
        self._backfill.stop_at_now()
        self._target = self._view.latest(self._view.topic_partitions_left())

    def advance(self, start: Position, *, unlimited: bool) -> Position:
        self._view.recall(start.topics)
        end = self._end(start, unlimited=unlimited)
        return replace(end, topics=self._view.ids(end.live))

    def _end(self, start: Position, *, unlimited: bool) -> Position:
        self.commit(start.live)
        begun, latest = self._look(start.live)
        self.latest = latest
        known = forget(start, set(start.live) - set(begun))
        if renewed := self._renewed(begun, latest):
            return replace(forget(known, renewed), live=begun | renewed)
        live = self._advanced(start.live, begun, latest, unlimited=unlimited)
        followed = self._backfill.follow(known)
        return self._backfill.advance(followed, begun, live, unlimited=unlimited)

    def _advanced(
        self, start: Offsets, begun: Offsets, latest: Offsets, *, unlimited: bool
    ) -> Offsets:
        if not unlimited and self._too_few(waiting(begun, latest)):
            return {
                topic_partition: offset
                for topic_partition, offset in begun.items()
                if topic_partition in start
            }
        self._advanced_at = self._clock.monotonic()
        if unlimited:
            return advance(begun, latest)
        options = self._options
        return advance(
            begun,
            latest,
            records_max=options.trigger_offsets_max,
            bytes_max=options.trigger_bytes_max,
            record_bytes=self._record_bytes(latest),
        )

    def _look(self, start: Offsets) -> tuple[Offsets, Offsets]:
        """Returns from where each partition is to be read, and where its log ends."""
        if self._target is None:
            latest = self._view.latest(self._view.topic_partitions_left())
        else:
            latest = self._target
        begun = self._view.check_still_there(start, latest)
        return {**self._starts_of_new(begun, latest), **begun}, latest

    def _renewed(self, begun: Offsets, latest: Offsets) -> Offsets:
        """Returns where to begin again in logs that are not those that were read so far.

        Going back is a separate batch that reads nothing. So the checkpoint contains the offsets
        from which the next batch reads, whichever driver plans it."""
        other = set(self._view.check_not_past_end(begun, latest))
        for topic in sorted(self._view.take_renewed()):
            topic_partitions = {
                topic_partition for topic_partition in begun if topic_partition.topic == topic
            }
            if topic_partitions and not topic_partitions <= other:
                self._view.lose(
                    f"topic {topic} was deleted and created again; some of its records may not "
                    "have been read"
                )
            other |= topic_partitions
        earliest = self._view.earliest(sorted(other))
        return {
            topic_partition: offset
            for topic_partition, offset in earliest.items()
            if offset < begun[topic_partition]
        }

    def _too_few(self, count: int) -> bool:
        """Returns whether to wait for more records. The first batch does not wait, nor does a run
        that ends at a target."""
        least = self._options.trigger_offsets_min
        if least is None or count >= least or self._target is not None:
            return False
        if self._advanced_at is None:
            return False
        waited_ms = (self._clock.monotonic() - self._advanced_at) * 1000
        return waited_ms < self._options.trigger_delay_max_ms

    def _record_bytes(self, latest: Offsets) -> Mapping[TopicPartition, float] | None:
        if self._options.trigger_bytes_max is None:
            return None
        earliest = self._view.earliest(latest)
        return self._view.record_bytes(
            {
                topic_partition: (earliest[topic_partition], latest[topic_partition])
                for topic_partition in latest
            }
        )

    def _starts_of_new(self, start: Offsets, latest: Offsets) -> Offsets:
        """Returns the start offsets of new partitions: they are read from their beginning."""
        return self._view.earliest(
            [topic_partition for topic_partition in latest if topic_partition not in start]
        )

    def plan(self, start: Position, end: Position) -> list[Span]:
        self._view.recall(end.topics)
        there = self._view.topic_partitions_left()
        # The offsets of the batch are those of other records now.
        renewed = self._view.check_same()
        left = {each for each in there if each.topic not in renewed}
        live = self._plan(live_start(start, end), self._view.check_still_there(end.live, left))
        return [*live, *self._backfill.spans(start, end, left)]

    def _plan(self, start: Offsets, end: Offsets) -> list[Span]:
        new = self._starts_of_new(start, end)
        for topic_partition, offset in new.items():
            if offset:
                self._view.lose(
                    f"the new partition {topic_partition} already starts at offset {offset}, not "
                    "at 0"
                )
        begun = {
            topic_partition: offset
            for topic_partition, offset in {**new, **start}.items()
            if topic_partition in end
        }
        whole = spans(begun, end)
        if not whole:
            return []
        earliest = self._view.earliest([span.topic_partition for span in whole])
        return spans(self._view.check_not_before_start(begun, earliest), end)

    def commit(self, offsets: Offsets) -> None:
        group = self._options.group_id
        if group is None or not offsets or offsets == self._committed:
            return
        if self._view.commit(group, offsets):
            self._committed = offsets
