"""Routers, which choose the partition of a record. Pass one to a producer as `router=`.

    DefaultRouter      keys by Java's hash; others a batch at a time, avoiding slow partitions
    RoundRobinRouter   each record to the next partition
    Crc32Router        keys by librdkafka's hash
    KeyRangeRouter     sorted ranges of keys
    GeographicRouter   a header names the partitions
    LoadAwareRouter    the partition with the least queued data
    TimeWindowRouter   one partition per window of time, in turn
    CallableRouter     any function
    Router             the base class for custom routers

`PartitionView` is what a router sees of a topic, `Distribution` measures how evenly the records of
a topic are spread, and a bad choice raises `RoutingError`.
"""

from __future__ import annotations

from penstock.client.routers import (
    CallableRouter,
    Crc32Router,
    DefaultRouter,
    Distribution,
    GeographicRouter,
    KeyRangeRouter,
    LoadAwareRouter,
    PartitionView,
    RoundRobinRouter,
    Router,
    RoutingError,
    TimeWindowRouter,
)

__all__ = [
    "CallableRouter",
    "Crc32Router",
    "DefaultRouter",
    "Distribution",
    "GeographicRouter",
    "KeyRangeRouter",
    "LoadAwareRouter",
    "PartitionView",
    "RoundRobinRouter",
    "Router",
    "RoutingError",
    "TimeWindowRouter",
]
