"""Registers the data source with Spark.

Spark looks for modules named `pyspark_*` and registers the `DefaultSource` of each. So
`spark.read.format("penstock")` works after a pip install, without further setup.
"""

from penstock.spark.source import PenstockDataSource


class DefaultSource(PenstockDataSource):
    pass


__all__ = ["DefaultSource"]
