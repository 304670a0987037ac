"""Reads topics as DataFrames and writes DataFrames to topics, on Spark's Python data source API."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.spark.expectations import Expectation, check, expect
    from penstock.spark.watching import watch

__all__ = ["Expectation", "check", "expect", "watch"]
_HOMES: Final = {
    "Expectation": "penstock.spark.expectations",
    "check": "penstock.spark.expectations",
    "expect": "penstock.spark.expectations",
    "watch": "penstock.spark.watching",
}


def __getattr__(name: str) -> object:
    """Imports a name on first use: Spark's workers import this package and need none of them."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
