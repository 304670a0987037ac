"""What the fetcher needs from options and metrics. A test may pass something smaller. Pure."""

from __future__ import annotations

from typing import Protocol


class FetchOptions(Protocol):
    """The consumer options that fetching uses."""

    @property
    def fetch_min_bytes(self) -> int: ...
    @property
    def fetch_max_bytes(self) -> int: ...
    @property
    def max_partition_fetch_bytes(self) -> int: ...
    @property
    def fetch_max_wait_ms(self) -> int: ...
    @property
    def queued_bytes_max(self) -> int: ...
    @property
    def isolation_level(self) -> int: ...
    @property
    def client_rack(self) -> str: ...
    @property
    def metadata_max_age_ms(self) -> int: ...
    @property
    def request_timeout_ms(self) -> int: ...


class FetchMeter(Protocol):
    """Counters that are updated once per response."""

    fetches: int
    batches: int
    record_bytes: int

    @property
    def fetch_latency(self) -> LatencyMeter: ...


class LatencyMeter(Protocol):
    def add(self, seconds: float, count: int = 1) -> None: ...
