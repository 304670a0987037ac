"""Measures how evenly records are distributed over a topic's partitions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log


@dataclass(frozen=True, slots=True)
class Distribution:
    """Records per partition, for partitions that received records or are known to exist.

    `Producer.metrics()` has one for each topic. It shows whether keys or a router spread the
    records evenly.

    Example:
        for name in ("ann", "bob", "eve"):
            producer.send("payments", b"10", key=name.encode(), partition=1)
        producer.flush()
        spread = producer.metrics().distribution["payments"]
        print(spread.counts, spread.skew, spread.evenness)
        #> {0: 0, 1: 3, 2: 0} 3.0 0.0
    """

    counts: Mapping[int, int]

    @property
    def skew(self) -> float:
        """The largest partition relative to the mean: 1.0 is even, n means all records in one of
        n."""
        total = sum(self.counts.values())
        return max(self.counts.values()) * len(self.counts) / total if total else 1.0

    @property
    def evenness(self) -> float:
        """The entropy of the distribution relative to the maximum: 1.0 is even, 0.0 is all in
        one."""
        total = sum(self.counts.values())
        if not total or len(self.counts) == 1:
            return 1.0
        shares = [count / total for count in self.counts.values() if count]
        return max(0.0, -sum(share * log(share) for share in shares) / log(len(self.counts)))

    def as_dict(self) -> dict[str, object]:
        """Returns the counts and both measures, for JSON."""
        return {"counts": dict(self.counts), "skew": self.skew, "evenness": self.evenness}


class DistributionMeter:
    """Counts records per partition. It is updated once per batch, so it costs nothing per
    record."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[int, int]] = {}

    def expect(self, topic: str, partitions: int) -> None:
        """Sets the topic's number of partitions. Partitions that receive nothing count as empty."""
        counts = self._topics.setdefault(topic, {})
        for partition in range(partitions):
            counts.setdefault(partition, 0)

    def add(self, topic: str, partition: int, records: int = 1) -> None:
        counts = self._topics.get(topic)
        if counts is None:
            counts = self._topics[topic] = {}
        counts[partition] = counts.get(partition, 0) + records

    def snapshot(self) -> dict[str, Distribution]:
        return {
            topic: Distribution(dict(sorted(counts.items())))
            for topic, counts in self._topics.items()
            if counts
        }
