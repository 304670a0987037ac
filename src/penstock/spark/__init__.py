"""Reads topics as DataFrames and writes DataFrames to topics, on Spark's Python data source API."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.spark.watching import watch

__all__ = ["watch"]


def __getattr__(name: str) -> object:
    """Imports `watch` on first use: Spark's workers import this package and do not need it."""
    if name == "watch":
        from penstock.spark.watching import watch  # noqa: PLC0415 -- see above

        return watch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
