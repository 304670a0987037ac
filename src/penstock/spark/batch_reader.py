"""Reads a range of topics as one DataFrame.

The start and the end are fixed when the read is planned, so that a table that is read twice in one
query has the same rows both times. Filters of the query on topic, partition, offset and timestamp
can be pushed down, so that less is read. Spark applies them again, because a span ends at whole
offsets and a time maps to an offset only roughly.

Filter pushdown has a trap in Spark 4.3. Spark keeps the reader that has the filters in the loaded
DataFrame, and uses it again for the next query on that DataFrame, which may have other filters.
The reader is not called again and cannot notice: neither the planner's process nor a task knows
which query it works for. So pushdown must be requested with `filterPushdown=once`, by which the job
promises that each loaded DataFrame is used by one query, and once in that query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from penstock.spark.filters import Wanted, narrow
from penstock.spark.log_view import LogView, open_view
from penstock.spark.offsets import Span, spans, split
from penstock.spark.options import SourceOptions
from penstock.spark.schema import check_schema
from penstock.spark.span_partition import SpanPartition, read_span
from penstock.spark.telling import told_plainly

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        with told_plainly():
            check_schema(self._options, self._schema)
            with open_view(self._options) as view:
                whole = self._plan(view)
        pieces = split(
            whole,
            pieces_min=self._options.partitions_min,
            records_max=self._options.partition_records_max,
        )
        return [SpanPartition(piece) for piece in pieces]

    def _plan(self, view: LogView) -> list[Span]:
        options = self._options
        topic_partitions = view.topic_partitions()
        ends = view.resolve(options.ending, topic_partitions, starting=False)
        starts = view.resolve(options.starting, topic_partitions, starting=True)
        if "offsets" in (options.ending.kind, options.starting.kind):
            # Read last: an offset that is beyond the end now was beyond it before, too.
            latest = view.latest(topic_partitions)
            ends = view.check_within(ends, latest, "endingOffsets")
            starts = view.check_within(starts, latest, "startingOffsets")
        starts = view.check_not_before_start(starts, view.earliest(topic_partitions))
        return spans(starts, ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_span(self._options, self._schema, partition)


class FilteringBatchReader(BatchReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._wanted = Wanted()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 -- Spark's name
        self._wanted = self._wanted.narrowed(filters)
        return filters

    def _plan(self, view: LogView) -> list[Span]:
        return narrow(super()._plan(view), self._wanted, view)
