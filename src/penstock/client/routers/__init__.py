"""Routers: they choose the partition of records that are sent without one. Pure.

`penstock.routers` lists them. pyarrow is imported only when a table is routed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.client.routers.base import Router
from penstock.client.routers.default import DefaultRouter
from penstock.client.routers.meter import Distribution, DistributionMeter
from penstock.client.routers.partition_view import PartitionView, RoutingError, checked
from penstock.client.routers.strategies import (
    CallableRouter,
    Crc32Router,
    GeographicRouter,
    KeyRangeRouter,
    LoadAwareRouter,
    RoundRobinRouter,
    TimeWindowRouter,
)

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = Any

__all__ = [
    "CallableRouter",
    "Crc32Router",
    "DefaultRouter",
    "Distribution",
    "DistributionMeter",
    "GeographicRouter",
    "KeyRangeRouter",
    "LoadAwareRouter",
    "PartitionView",
    "RoundRobinRouter",
    "Router",
    "RoutingError",
    "TimeWindowRouter",
    "assign_partitions",
    "checked",
]


def assign_partitions(
    router: Router, topic: str, rows: pa.RecordBatch, view: PartitionView, *, now_ms: int
) -> pa.Array:
    """Returns each row's partition: from its `partition` column, or from the router if it is null.

    Rows without a timestamp are routed with the timestamp they will get, `now_ms`.
    """
    from penstock.client.routers import partition_column  # noqa: PLC0415 (imports pyarrow)

    return partition_column.assign_partitions(router, topic, rows, view, now_ms)
