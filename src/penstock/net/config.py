"""What a server allows its peers."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Times are kept to within `tick_s`; sizes are bytes."""

    host: str = "127.0.0.1"
    port: int = 9092
    frame_bytes_max: int = 100 << 20
    """Kafka's socket.request.max.bytes."""
    requests_in_flight_max: int = 64
    """Requests of one connection that wait for their answer; more are not read."""
    bytes_in_flight_max: int = 32 << 20
    """The same in bytes; a single larger request is taken when it is alone."""
    request_bytes_max: int = 256 << 20
    """Requests of all connections together until they are answered; small ones from their first
    bytes on, large ones when they have come whole."""
    large_request_bytes_max: int = 96 << 20
    """Large requests that have not come whole, of all connections together."""
    read_buffer_bytes: int = 256 << 10
    """The most one read takes, shared by all connections; a larger frame is read into place."""
    response_bytes_max: int = 128 << 20
    """Answers in memory that their peers have not taken, of all connections together."""
    write_buffer_bytes: int = 64 << 10
    """Unsent answer bytes beyond which a connection is neither read nor served."""
    connections_max: int = 10_000
    connections_per_address_max: int = 5_000
    idle_timeout_s: float = 600.0
    """Kafka's connections.max.idle.ms; a connection that waits for an answer is not idle."""
    frame_timeout_s: float = 60.0
    """From the first byte of a request to its last, not counting the time we did not read."""
    frame_stall_timeout_s: float = 10.0
    """How long a request that has begun, and holds memory, may go without progress."""
    write_stall_timeout_s: float = 30.0
    """How long a peer may take no byte of an answer that waits for it."""
    eof_timeout_s: float = 5.0
    """How long answers may still be waited for when the peer has said it sends no more."""
    tick_s: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("host", "port") and value <= 0:
                raise ValueError(f"{field.name} is {value}; it must be above 0")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}; it must be 0 (any free one) to 65535")
