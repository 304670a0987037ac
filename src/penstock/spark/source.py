"""`spark.read.format("penstock")` and the other three ways in: what Spark finds by name.

Spark makes this object wherever it needs one (the session, the planner's process) and hands it
about by pickling, so it holds the options and nothing else. Options are parsed in each place that
needs them: that is cheap. `load()` asks for the schema, so that is where mistakes are told first.

Each of those places is a process of its own that imports this module, most of them only to ask for
the name or the schema. Readers and writers bring the clients and Arrow along, and are imported by
who uses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from penstock.spark.options import parse_sink, parse_source
from penstock.spark.telling import told_plainly

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class PenstockDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> str:
        from penstock.spark.client_options import check_client  # noqa: PLC0415 -- see above
        from penstock.spark.schema import source_ddl  # noqa: PLC0415 -- only when used

        with told_plainly():
            # Asked before it is known whether a stream is read; the columns are the same.
            options = parse_source(self.options, streaming=False)
            check_client(options)
            return source_ddl(options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark.batch_reader import (  # noqa: PLC0415 -- only when used
            BatchReader,
            FilteringBatchReader,
        )

        with told_plainly():
            options = parse_source(self.options, streaming=False)
        # Spark refuses a reader that takes filters unless a setting of the session allows it.
        kind = FilteringBatchReader if options.filter_pushdown else BatchReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from penstock.spark.stream_reader import StreamReader  # noqa: PLC0415 -- only when used

        return StreamReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.writers import BatchWriter  # noqa: PLC0415 -- only when used

        with told_plainly():
            return BatchWriter(parse_sink(self.options), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 -- Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from penstock.spark.once.writers import OnceWriter  # noqa: PLC0415 -- only when used
        from penstock.spark.writers import StreamWriter  # noqa: PLC0415 -- only when used

        with told_plainly():
            options = parse_sink(self.options)
            kind = OnceWriter if options.delivery == "exactly_once" else StreamWriter
            return kind(options, schema, overwrite=overwrite)
