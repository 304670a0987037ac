"""Reads a share group as a stream of micro-batches, so that several queries can drain one queue.

The driver acquires records when Spark asks how far the next batch goes, and holds their locks while
the batch runs. The executors read the same offsets from the log. When Spark goes on from the end of
the batch, it is committed, and the driver acknowledges its records. `share_batches` decides,
`share_session` talks to the brokers, and docs/SPARK.md has what happens when one of them dies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.runtime import SystemClock
from penstock.spark.offsets import Offsets, Span
from penstock.spark.options import SourceOptions, parse_source
from penstock.spark.schema import check_schema
from penstock.spark.share_batches import ShareBatches, SharePosition, Taken
from penstock.spark.share_session import ShareSession, has_any_below
from penstock.spark.span_partition import SpanPartition, read_span
from penstock.spark.telling import told_plainly

if TYPE_CHECKING:
    import pyarrow as pa

_WAIT_S: Final = 0.5
_LAST_S: Final = 60.0
"""A run with the trigger availableNow waits so long for records that nobody works on."""


class ShareSpans(InputPartition):
    """The work of one task: the records of one partition."""

    def __init__(self, spans: tuple[Span, ...]) -> None:
        super().__init__(spans)
        self.spans = spans


class ShareStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = given
        self._schema = schema
        self._driver: _Driver | None = None

    @cached_property
    def _options(self) -> SourceOptions:
        """Parsed on first use, as in `StreamReader`."""
        options = parse_source(self._given, streaming=True)
        check_schema(options, self._schema)
        return options

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}

    def _open(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver

    def _position(self, offset: Mapping[str, Any]) -> SharePosition:
        return SharePosition.from_spark(offset, self._options.share_group)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 -- Spark's name
        with told_plainly():
            return SharePosition(self._options.share_group).to_spark()

    # Spark calls it by this name.
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        with told_plainly():
            return self._open().advance(self._position(start)).to_spark()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 -- Spark's name
        with told_plainly():
            return ReadMaxRows(self._options.trigger_offsets_max or 1)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 -- Spark's name
        with told_plainly():
            self._open().stop_at_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        with told_plainly():
            ranges = self._position(end).ranges
        return [
            ShareSpans(tuple(Span(*where, first, last) for first, last in ranges[where]))
            for where in sorted(ranges)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, ShareSpans):
            for span in partition.spans:
                yield from read_span(self._options, self._schema, SpanPartition(span))

    def commit(self, end: dict[str, Any]) -> None:
        with told_plainly():
            self._open().on_committed(self._position(end))

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None


class _Driver:
    """Holds the session of the planning process."""

    def __init__(self, options: SourceOptions) -> None:
        self._limit = options.trigger_offsets_max or 1
        self._clock = SystemClock()
        self._batches = ShareBatches()
        self._session = ShareSession(options)
        self._target: Offsets | None = None
        """Where a run with the trigger availableNow ends; None for other runs."""

    def close(self) -> None:
        self._session.close()

    def stop_at_now(self) -> None:
        self._target = self._session.ends()

    def on_committed(self, position: SharePosition) -> None:
        taken = self._batches.on_committed(position)
        if taken:
            self._batches.on_lost(self._session.acknowledge(taken))

    def advance(self, start: SharePosition) -> SharePosition:
        self.on_committed(start)
        if self._batches.planned is not None:
            return self._batches.planned
        new = self._new() if self._target is None else self._new_below(self._target)
        return self._batches.plan(start, new) if new else start

    def _new(self) -> list[Taken]:
        """Returns records that were not processed before. Acknowledges others at once."""
        new, repeated = self._batches.divide(self._session.acquire(self._limit, _WAIT_S))
        if repeated:
            self._session.acknowledge(repeated)
        return new

    def _new_below(self, target: Offsets) -> list[Taken]:
        """Waits until there are records for this run, or none are left for it."""
        end = self._clock.monotonic() + _LAST_S
        while True:
            new = self._new()
            if has_any_below(new, target):
                return new
            if new:
                self._session.release(new)
            is_over = self._clock.monotonic() >= end
            if is_over or not self._session.has_waiting(target):
                return []
