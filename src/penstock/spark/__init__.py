"""Topics as DataFrames and DataFrames as topics, on Spark's Python data source API."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.spark.watching import watch

__all__ = ["watch"]


def __getattr__(name: str) -> object:
    """`watch` is loaded when it is asked for: Spark's workers import this package all the time."""
    if name == "watch":
        from penstock.spark.watching import watch  # noqa: PLC0415 -- as said

        return watch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
