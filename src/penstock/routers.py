"""Routers, which choose the partition of a record. Pass one to a producer as `router=`.

The docstring of `penstock.client.routers`, which defines them, describes each one.
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
