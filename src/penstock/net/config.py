"""The limits that a server imposes on its peers."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Times are accurate to within `tick_s`. Sizes are in bytes."""

    host: str = "127.0.0.1"
    port: int = 9092
    frame_bytes_max: int = 100 << 20
    """Kafka's socket.request.max.bytes."""
    requests_in_flight_max: int = 64
    """How many requests of one connection may wait for their answer. No more are read."""
    bytes_in_flight_max: int = 32 << 20
    """The same limit in bytes. A single larger request is accepted if it is the only one."""
    request_bytes_max: int = 256 << 20
    """Requests of all connections together until they are answered. Small requests count from their
    first byte, large ones once they are complete."""
    large_request_bytes_max: int = 96 << 20
    """Incomplete large requests, of all connections together."""
    read_buffer_bytes: int = 256 << 10
    """The size of the read buffer that all connections share. A larger frame is read directly into
    its own buffer."""
    response_bytes_max: int = 128 << 20
    """Answers in memory that their peers have not accepted, of all connections together."""
    write_buffer_bytes: int = 64 << 10
    """With more unsent answer bytes than this, a connection is neither read nor served."""
    connections_max: int = 10_000
    connections_per_address_max: int = 5_000
    idle_timeout_s: float = 600.0
    """Kafka's connections.max.idle.ms. A connection that waits for an answer is not idle."""
    frame_timeout_s: float = 60.0
    """From the first byte of a request to its last, not counting the time when reading was
    paused."""
    frame_stall_timeout_s: float = 10.0
    """How long an incomplete request that holds memory may make no progress."""
    write_stall_timeout_s: float = 30.0
    """How long a peer may accept no byte of a waiting answer."""
    eof_timeout_s: float = 5.0
    """How long pending answers may still take after the peer has sent EOF."""
    tick_s: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("host", "port") and value <= 0:
                raise ValueError(f"{field.name} is {value}; it must be above 0")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}; it must be between 0 (any free port) and 65535")
