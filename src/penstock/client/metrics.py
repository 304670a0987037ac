"""The metrics of the clients.

Meters are plain numbers that their owner updates once per batch or request, never per record. A
snapshot is a frozen copy with derived values: means, quantiles, skew. They are computed only when a
snapshot is taken. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import log2
from typing import Any, Final

from penstock.client.routers.meter import Distribution, DistributionMeter
from penstock.topic_partition import TopicPartition

_FINEST_S: Final = 1e-5
_STEPS_PER_DOUBLING: Final = 4
_BUCKETS: Final = 4 * 27
"""From ten microseconds, in steps of about a fifth, to more than twenty minutes."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Frozen numbers that can be converted to nested dicts, for instance for JSON."""

    def as_dict(self) -> dict[str, Any]:
        return {item.name: _simple(getattr(self, item.name)) for item in fields(self)}


@dataclass(frozen=True, slots=True)
class Latency(Snapshot):
    """Times in milliseconds. Quantiles are accurate to about ten percent."""

    count: int
    mean_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float


class LatencyMeter:
    """Counts durations in buckets that grow with the duration. Takes a few hundred bytes."""

    __slots__ = ("_buckets", "_count", "_max_s", "_total_s")

    def __init__(self) -> None:
        self._buckets = [0] * _BUCKETS
        self._count = 0
        self._total_s = 0.0
        self._max_s = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        seconds = max(seconds, 0.0)
        self._buckets[_bucket(seconds)] += count
        self._count += count
        self._total_s += seconds * count
        self._max_s = max(self._max_s, seconds)

    def snapshot(self) -> Latency:
        mean_s = self._total_s / self._count if self._count else 0.0
        return Latency(
            self._count,
            mean_s * 1000,
            self._quantile(0.5) * 1000,
            self._quantile(0.99) * 1000,
            self._max_s * 1000,
        )

    def _quantile(self, share: float) -> float:
        left = self._count * share
        for number, count in enumerate(self._buckets):
            left -= count
            if count and left <= 0:
                return min(_FINEST_S * 2 ** ((number + 0.5) / _STEPS_PER_DOUBLING), self._max_s)
        return self._max_s


@dataclass(frozen=True, slots=True)
class ProducerMetrics(Snapshot):
    """A snapshot of a producer's metrics. Counters start at 0 when the producer is created."""

    records: int
    """Acknowledged records; with acks=0, records handed to the operating system."""
    record_bytes: int
    batches: int
    wire_bytes: int
    """The size of the batches on the wire. Compare it with `record_bytes` to see the
    compression."""
    requests: int
    retries: int
    splits: int
    failed_records: int
    requests_in_flight: int
    buffered_records: int
    buffered_bytes: int
    queue_latency: Latency
    """The time from a batch's first record to its first request."""
    request_latency: Latency
    distribution: Mapping[str, Distribution]
    """By topic: the distribution of records over its partitions."""


@dataclass(slots=True)
class ProducerMeter:
    records: int = 0
    record_bytes: int = 0
    batches: int = 0
    wire_bytes: int = 0
    requests: int = 0
    retries: int = 0
    splits: int = 0
    failed_records: int = 0
    requests_in_flight: int = 0
    queue_latency: LatencyMeter = field(default_factory=LatencyMeter)
    request_latency: LatencyMeter = field(default_factory=LatencyMeter)
    distribution: DistributionMeter = field(default_factory=DistributionMeter)

    def snapshot(self, buffered_bytes: int, buffered_records: int = 0) -> ProducerMetrics:
        return ProducerMetrics(
            records=self.records,
            record_bytes=self.record_bytes,
            batches=self.batches,
            wire_bytes=self.wire_bytes,
            requests=self.requests,
            retries=self.retries,
            splits=self.splits,
            failed_records=self.failed_records,
            requests_in_flight=self.requests_in_flight,
            buffered_records=buffered_records,
            buffered_bytes=buffered_bytes,
            queue_latency=self.queue_latency.snapshot(),
            request_latency=self.request_latency.snapshot(),
            distribution=self.distribution.snapshot(),
        )


@dataclass(frozen=True, slots=True)
class ConsumerMetrics(Snapshot):
    """A snapshot of a consumer's metrics. Counters start at 0 when the consumer is created."""

    records: int
    """Records returned to the caller."""
    record_bytes: int
    batches: int
    fetches: int
    polls: int
    rebalances: int
    commits: int
    failed_commits: int
    resets: int
    """How often the reset policy had to determine a position."""
    queued_bytes: int
    lag: Mapping[TopicPartition, int]
    """Records between the position and the end of each assigned partition, where known."""
    fetch_latency: Latency
    commit_latency: Latency


@dataclass(slots=True)
class ConsumerMeter:
    records: int = 0
    record_bytes: int = 0
    batches: int = 0
    fetches: int = 0
    polls: int = 0
    rebalances: int = 0
    commits: int = 0
    failed_commits: int = 0
    resets: int = 0
    fetch_latency: LatencyMeter = field(default_factory=LatencyMeter)
    commit_latency: LatencyMeter = field(default_factory=LatencyMeter)

    def snapshot(self, queued_bytes: int, lag: Mapping[TopicPartition, int]) -> ConsumerMetrics:
        return ConsumerMetrics(
            records=self.records,
            record_bytes=self.record_bytes,
            batches=self.batches,
            fetches=self.fetches,
            polls=self.polls,
            rebalances=self.rebalances,
            commits=self.commits,
            failed_commits=self.failed_commits,
            resets=self.resets,
            queued_bytes=queued_bytes,
            lag=dict(lag),
            fetch_latency=self.fetch_latency.snapshot(),
            commit_latency=self.commit_latency.snapshot(),
        )


def _bucket(seconds: float) -> int:
    if seconds <= _FINEST_S:
        return 0
    return min(int(log2(seconds / _FINEST_S) * _STEPS_PER_DOUBLING), _BUCKETS - 1)


def _simple(value: Any) -> Any:
    if isinstance(value, Snapshot | Distribution):
        return value.as_dict()
    if isinstance(value, Mapping):
        return {
            str(key) if isinstance(key, TopicPartition) else key: _simple(item)
            for key, item in value.items()
        }
    return value
