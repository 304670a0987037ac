"""Spark looks for modules named `pyspark_*` and registers their `DefaultSource`: this is how
`spark.read.format("penstock")` works after nothing but a pip install."""

from penstock.spark.source import PenstockDataSource


class DefaultSource(PenstockDataSource):
    pass


__all__ = ["DefaultSource"]
