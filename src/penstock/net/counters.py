"""What a server has done since it started, for whoever publishes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    connections: int = 0
    """Open now."""
    connections_accepted: int = 0
    connections_rejected: int = 0
    connections_dropped: int = 0
    """Closed by us for being idle, too slow to send or too slow to read."""
    connections_evicted: int = 0
    """How many of those because memory for responses was short."""
    connections_failed: int = 0
    """Closed by us for bytes that are not the protocol, or an error of our own."""
    requests: int = 0
    responses: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
