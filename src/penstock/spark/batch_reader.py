"""A range of topics as one DataFrame.

Where it begins and ends is settled when the read is planned, so that a table that is read twice in
one query is the same twice. Filters on where a record lies (topic, partition, offset, timestamp)
can be taken over from the query: then less is read. Spark applies them again, since a span is cut
at whole offsets and a time is only roughly an offset.

Taking filters over has a trap that lies in Spark 4.3: it keeps the reader that was given filters
with the loaded DataFrame, and uses it again for the next query on it, whose filters may be others.
We are not asked and cannot notice: neither the planner's process nor a task is told which query it
works for. So it is had only by a word that says what is promised, `filterPushdown=once`: each
DataFrame that is loaded serves one query, in which it stands once.
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
from penstock.spark.reading import SpanPartition, read_span
from penstock.spark.schema import check_schema
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
        places = view.places()
        ends = view.resolve(options.ending, places, starting=False)
        starts = view.resolve(options.starting, places, starting=True)
        if "offsets" in (options.ending.kind, options.starting.kind):
            # Looked at last: whatever is beyond it now was so all the time.
            latest = view.latest(places)
            ends = view.check_within(ends, latest, "endingOffsets")
            starts = view.check_within(starts, latest, "startingOffsets")
        starts = view.check_not_before_start(starts, view.earliest(places))
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
