"""Which partition a record goes to: the routers, and what they are told. Pure.

    DefaultRouter      keys by Java's hash; the rest a batch at a time, away from slow partitions
    RoundRobinRouter   each record to the next partition
    Crc32Router        keys by librdkafka's hash
    KeyRangeRouter     sorted ranges of keys
    GeographicRouter   a header names the partitions
    LoadAwareRouter    where least waits
    TimeWindowRouter   a stretch of time to each partition in turn
    CallableRouter     any function
    Router             write your own

Nothing here imports pyarrow before a table is routed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.client.routers.base import PartitionView, Router, RoutingError, checked
from penstock.client.routers.default import DefaultRouter
from penstock.client.routers.meter import Distribution, DistributionMeter
from penstock.client.routers.placing import (
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

    from penstock.client.options import ProducerOptions
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
    "make_router",
]


def make_router(options: ProducerOptions) -> Router:
    """The router that the options ask for."""
    return options.router or DefaultRouter(
        ignore_keys=options.partitioner_ignore_keys,
        adaptive=options.partitioner_adaptive_partitioning_enable,
    )


def assign_partitions(
    router: Router, topic: str, rows: pa.RecordBatch, view: PartitionView, *, now_ms: int
) -> pa.Array:
    """Each row's partition: what its `partition` column says, or where that is null the router.

    Rows without a timestamp are routed by the one they will get, `now_ms`.
    """
    from penstock.client.routers import columns  # noqa: PLC0415 (imports pyarrow)

    return columns.assign_partitions(router, topic, rows, view, now_ms)
