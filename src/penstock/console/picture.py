"""The console's snapshot of a cluster, and the values that are computed from it. Pure.

`Watch` replaces parts of it as it polls the cluster. Pages are made from the snapshot, so a list of
ten thousand topics sends no requests to the cluster.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, pairwise
from typing import Any, Final

from penstock.client.admin.groups import GroupListing
from penstock.client.admin.inspection import LogDirInfo
from penstock.client.admin.operations import BrokerInfo, ClusterInfo, PartitionInfo, TopicInfo
from penstock.client.admin.reassignment import Reassignment
from penstock.console.problems import DiskSpace, Lagging, Problem, find_problems
from penstock.topic_partition import TopicPartition

RATES_KEPT: Final = 150
LAGS_KEPT: Final = 360
EVENTS_KEPT: Final = 100
_REMEMBERED_MS: Final = 60_000
_LAG_MIN: Final = 1_000
_GROWTH_SAMPLES: Final = 6


@dataclass(slots=True)
class GroupLag:
    """The lag of a group, sampled over time."""

    listing: GroupListing
    members: int = 0
    lag: int = 0
    partitions: dict[TopicPartition, int] = field(default_factory=dict)
    history: deque[tuple[int, dict[TopicPartition, int]]] = field(
        default_factory=lambda: deque(maxlen=LAGS_KEPT)
    )

    def add(self, now_ms: int, lags: dict[TopicPartition, int]) -> None:
        self.partitions = lags
        self.lag = sum(lags.values())
        self.history.append((now_ms, lags))

    @property
    def growing(self) -> bool:
        """Whether the lag is large and has grown in each of the last samples."""
        totals = [sum(lags.values()) for _, lags in list(self.history)[-_GROWTH_SAMPLES:]]
        rises = all(one < other for one, other in pairwise(totals))
        return len(totals) == _GROWTH_SAMPLES and rises and self.lag >= _LAG_MIN


@dataclass(frozen=True, slots=True)
class Tally:
    """Counters that are computed once per survey of the topics, and shown many times."""

    partitions: int = 0
    replicas: Counter[int] = field(default_factory=Counter)
    leads: Counter[int] = field(default_factory=Counter)
    unwell: tuple[TopicInfo, ...] = ()
    """Topics with a partition that lacks replicas or a leader."""

    @classmethod
    def of(cls, topics: Sequence[TopicInfo]) -> Tally:
        parts = [partition for topic in topics for partition in topic.partitions]
        return cls(
            len(parts),
            Counter(chain.from_iterable(part.replicas for part in parts)),
            Counter(part.leader for part in parts),
            tuple(
                topic
                for topic in topics
                if any(part.leader < 0 or part.under_replicated for part in topic.partitions)
            ),
        )


@dataclass(slots=True)
class Picture:
    bootstrap: str
    read_only: bool = False
    unreachable: str = "not connected yet"
    """Why the cluster cannot be reached; empty if it can."""
    hidden: set[str] = field(default_factory=set)
    """What the cluster does not show to this user, such as "sizes and disks"."""
    info: ClusterInfo | None = None
    silent: frozenset[int] = frozenset()
    """Brokers that are in the cluster's metadata but do not answer."""
    cordoned: frozenset[int] = frozenset()
    """Drained brokers, which get no new partitions."""
    seen: dict[int, tuple[BrokerInfo, int]] = field(default_factory=dict)
    """Every broker that was seen, and when it was last seen."""
    topics: list[TopicInfo] = field(default_factory=list)
    by_name: dict[str, TopicInfo] = field(default_factory=dict)
    tally: Tally = Tally()
    surveyed: bool = False
    moving: dict[TopicPartition, Reassignment] = field(default_factory=dict)
    least_in_sync: dict[str, int] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    topic_rates: dict[str, float] = field(default_factory=dict)
    rates: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RATES_KEPT))
    """Records written per second, over all topics."""
    byte_rates: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RATES_KEPT))
    """Bytes written per second, over all topics: compressed as on disk, counted once for all
    replicas. Retention can hide some of them, so this is a lower bound."""
    broker_byte_rates: dict[int, float] = field(default_factory=dict)
    """The same per broker, for all replicas on it."""
    log_dirs: list[LogDirInfo] = field(default_factory=list)
    sizes: dict[TopicPartition, int] = field(default_factory=dict)
    topic_bytes: Counter[str] = field(default_factory=Counter)
    broker_bytes: Counter[int] = field(default_factory=Counter)
    groups: dict[str, GroupLag] = field(default_factory=dict)
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))

    # -- updates --------------------------------------------------------------------------------

    def tell(self, now_ms: int, text: str) -> None:
        self.events.append({"at": now_ms, "text": text})

    def on_unreachable(self, now_ms: int, reason: str) -> None:
        if not self.unreachable:
            self.tell(now_ms, f"no broker can be reached: {reason}")
        self.unreachable = reason

    def on_brokers(self, now_ms: int, info: ClusterInfo, silent: frozenset[int]) -> None:
        """Stores the brokers, and adds an event for each change since the last time."""
        if self.info is not None:
            self._tell_changes(now_ms, info, silent)
        self.unreachable = ""
        self.info = info
        self.silent = silent
        for broker in info.brokers:
            self.seen[broker.id] = broker, now_ms
        for each, (_, last_ms) in [*self.seen.items()]:
            if each not in self.tally.replicas and now_ms - last_ms > _REMEMBERED_MS:
                del self.seen[each]

    def _tell_changes(self, now_ms: int, info: ClusterInfo, silent: frozenset[int]) -> None:
        assert self.info is not None
        if self.unreachable:
            self.tell(now_ms, "the cluster can be reached again")
        before = {broker.id for broker in self.info.brokers}
        now = {broker.id for broker in info.brokers}
        for each in sorted(silent - self.silent):
            self.tell(now_ms, f"broker {each} does not answer")
        for each in sorted(before - now):
            self.tell(now_ms, f"broker {each} has left the cluster")
        for each in sorted(now - before):
            self.tell(now_ms, f"broker {each} has joined the cluster")
        for each in sorted((self.silent - silent) & now):
            self.tell(now_ms, f"broker {each} answers again")
        if info.controller_id != self.info.controller_id and info.controller_id >= 0:
            self.tell(now_ms, f"broker {info.controller_id} is the controller now")

    def on_topics(self, topics: list[TopicInfo]) -> None:
        self.topics = topics
        self.by_name = {topic.name: topic for topic in topics}
        self.tally = Tally.of(topics)
        self.surveyed = True

    def on_ends(self, now_ms: int, ends: dict[TopicPartition, int], seconds: float) -> None:
        """Stores the end offsets, and computes rates from their growth since the last time."""
        written: Counter[str] = Counter()
        for topic_partition, end in ends.items():
            before = self.ends.get(topic_partition)
            if before is not None and end > before:
                written[topic_partition.topic] += end - before
        if self.ends and seconds > 0:
            self.topic_rates = {topic: count / seconds for topic, count in written.items()}
            self.rates.append((now_ms, sum(self.topic_rates.values())))
        self.ends = ends

    def on_log_dirs(self, now_ms: int, found: list[LogDirInfo], seconds: float) -> None:
        """Stores the log directories. `seconds` is the time since the last call; 0 at first."""
        if self.log_dirs and seconds > 0:
            self._rate_bytes(now_ms, found, seconds)
        self.log_dirs = found
        self.sizes = {}
        self.topic_bytes = Counter()
        self.broker_bytes = Counter()
        for directory in found:
            for topic_partition, replica in directory.replicas.items():
                self.sizes[topic_partition] = max(
                    self.sizes.get(topic_partition, 0), replica.size_bytes
                )
                self.topic_bytes[topic_partition.topic] += replica.size_bytes
                self.broker_bytes[directory.broker] += replica.size_bytes

    def _rate_bytes(self, now_ms: int, found: list[LogDirInfo], seconds: float) -> None:
        """Computes rates from the logs' growth. Ignores logs that shrank, due to retention."""
        before = {
            (each.broker, topic_partition): replica.size_bytes
            for each in self.log_dirs
            for topic_partition, replica in each.replicas.items()
        }
        grown: Counter[int] = Counter()
        most: dict[TopicPartition, int] = {}
        for each in found:
            for topic_partition, replica in each.replicas.items():
                growth = replica.size_bytes - before.get(
                    (each.broker, topic_partition), replica.size_bytes
                )
                if growth > 0:
                    grown[each.broker] += growth
                    most[topic_partition] = max(most.get(topic_partition, 0), growth)
        self.broker_byte_rates = {broker: size / seconds for broker, size in grown.items()}
        self.byte_rates.append((now_ms, sum(most.values()) / seconds))

    # -- queries --------------------------------------------------------------------------------

    @property
    def missing(self) -> frozenset[int]:
        """Brokers that were seen or have replicas, but are not in the cluster now."""
        here = {broker.id for broker in self.info.brokers} if self.info else set()
        return frozenset((self.tally.replicas.keys() | self.seen.keys()) - here)

    def topic_partitions(self) -> Iterator[tuple[TopicPartition, PartitionInfo]]:
        for topic in self.topics:
            for partition in topic.partitions:
                yield TopicPartition(topic.name, partition.index), partition

    def disks(self) -> list[DiskSpace]:
        return [
            DiskSpace(
                each.broker,
                each.path,
                each.total_bytes,
                each.usable_bytes,
                "" if each.error is None else str(each.error),
            )
            for each in self.log_dirs
        ]

    def problems(self) -> list[Problem]:
        return find_problems(
            unreachable=self.unreachable,
            silent=self.silent,
            missing=self.missing,
            topics=self.tally.unwell,
            least_in_sync=self.least_in_sync,
            disks=self.disks(),
            growing=[
                Lagging(name, group.lag, group.members)
                for name, group in sorted(self.groups.items())
                if group.growing
            ],
            moving=len(self.moving),
        )

    def summary(self, jobs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Returns what every page shows. It is sent repeatedly."""
        return {
            "bootstrap": self.bootstrap,
            "read_only": self.read_only,
            "reachable": not self.unreachable,
            "hidden": sorted(self.hidden),
            "cluster_id": None if self.info is None else self.info.cluster_id,
            "controller": None if self.info is None else self.info.controller_id,
            "brokers": self.brokers(),
            "topics": len(self.topics),
            "partitions": self.tally.partitions,
            "groups": len(self.groups),
            "moving": len(self.moving),
            "rates": list(self.rates),
            "byte_rates": list(self.byte_rates),
            "problems": [asdict(problem) for problem in self.problems()],
            "events": list(self.events)[-20:],
            "jobs": list(jobs),
        }

    def brokers(self) -> list[dict[str, Any]]:
        # Assumes that a topic's writes are spread evenly over its partitions.
        rates: dict[int, float] = {}
        for name, rate in self.topic_rates.items():
            parts = self.by_name[name].partitions if name in self.by_name else ()
            for partition in parts:
                rates[partition.leader] = rates.get(partition.leader, 0.0) + rate / len(parts)
        missing = self.missing
        rows = []
        for each in sorted(self.seen.keys() | missing):
            known = self.seen.get(each)
            state = "missing" if each in missing else "silent" if each in self.silent else "up"
            rows.append(
                {
                    "id": each,
                    "address": "" if known is None else str(known[0].address),
                    "rack": None if known is None else known[0].rack,
                    "state": "unknown" if self.unreachable else state,
                    "controller": self.info is not None and self.info.controller_id == each,
                    "cordoned": each in self.cordoned,
                    "replicas": self.tally.replicas[each],
                    "leads": self.tally.leads[each],
                    "records_per_s": rates.get(each, 0.0),
                    "bytes_per_s": self.broker_byte_rates.get(each, 0.0),
                    "size_bytes": self.broker_bytes[each],
                    "disks": [asdict(disk) for disk in self.disks() if disk.broker == each],
                }
            )
        return rows
