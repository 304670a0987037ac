"""Counters of what a server has done since it started, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Plain numbers, incremented on the hot paths."""

    connections: int = 0
    """Open now."""
    connections_muted: int = 0
    """Open, and not read from at the moment because the client is over a quota."""
    connections_accepted: int = 0
    connections_rejected: int = 0
    connections_dropped: int = 0
    """Closed by the server because they were idle, too slow to send or too slow to read."""
    connections_evicted: int = 0
    """How many of those were closed because memory for responses was short."""
    connections_displaced: int = 0
    """How many of those were closed because a broker needed the place."""
    connections_failed: int = 0
    """Closed by the server because of invalid protocol bytes, or an internal error."""
    requests: int = 0
    responses: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
