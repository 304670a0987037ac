"""The work of one task: a span of a topic partition.

The driver only makes spans. The module that reads them, and pyarrow's functions with it, is loaded
by the first task of a worker process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from penstock.spark.offsets import Span
from penstock.spark.options import SourceOptions
from penstock.spark.telling import told_plainly

if TYPE_CHECKING:
    import pyarrow as pa


class SpanPartition(InputPartition):
    """The work of one task."""

    def __init__(self, span: Span) -> None:
        super().__init__(span)
        self.span = span


def read_span(
    options: SourceOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    # Spark needs at least one partition, so it passes an empty one if there is no span.
    if isinstance(partition, SpanPartition):
        from penstock.spark.reading import read  # noqa: PLC0415 -- see the docstring

        with told_plainly():
            yield from read(options, schema, partition.span)
