"""The data source that Spark finds by the name `penstock`, for reads, writes and streams.

Spark creates this object wherever it needs one (in the session, in the planner's process) and
passes it on by pickling, so it holds only the options. Each process parses the options again, which
is cheap. `load()` asks for the schema, so mistakes in options are reported there first.

Each of those processes imports this module, most of them only to get the name or the schema.
Readers and writers import the clients and Arrow, so they are imported only when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from penstock.client.errors import OptionError
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
            # Spark asks before it is known whether this is a stream; the columns are the same.
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
            if options.share_group:
                raise OptionError("shareGroup is for streams: use spark.readStream")
        # Spark refuses a reader that accepts filters unless a setting of the session allows it.
        kind = FilteringBatchReader if options.filter_pushdown else BatchReader
        return kind(options, schema)

    # Spark calls it by this name.
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        # Options are parsed later: an error here would be replaced by a message of Spark.
        if any(name.lower() == "sharegroup" and given for name, given in self.options.items()):
            from penstock.spark.share_stream_reader import (  # noqa: PLC0415 -- only when used
                ShareStreamReader,
            )

            return ShareStreamReader(dict(self.options), schema)
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
