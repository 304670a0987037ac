"""Which partition a record goes to: give one of these to a producer as `router=`.

What each does is told in `penstock.client.routers`, where they live.
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
