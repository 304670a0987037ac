"""The console's snapshot of a cluster, and the values that are computed from it. Pure.

`Watch` replaces parts of it as it polls the cluster. Pages are made from the snapshot, so a list of
ten thousand topics sends no requests to the cluster.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, pairwise
from typing import Any, Final

from penstock.client.admin.groups import GroupListing
from penstock.client.admin.inspection import LogDirInfo
from penstock.client.admin.operations import BrokerInfo, ClusterInfo, PartitionInfo, TopicInfo
from penstock.client.admin.reassignment import Reassignment
from penstock.console.history import BROKERS, CLUSTER, History
from penstock.console.lag_times import LagTimes
from penstock.console.problems import SEVERITIES, DiskSpace, Lagging, Problem, find_problems
from penstock.topic_partition import TopicPartition

DETAILED_MAX: Final = 100
"""If a cluster has at most this many topics, all of them have a history. Otherwise only those that
a page has shown in the last hour. If it has more groups, only those have more than their lag."""
_LINES_RECORDED: Final = 8
EVENTS_KEPT: Final = 100
_JUDGED_MS: Final = 10_000
"""A count of problems holds for this time at most."""
_REMEMBERED_MS: Final = 60_000
_LAG_MIN: Final = 1_000
_GROWTH_SAMPLES: Final = 6


@dataclass(slots=True)
class GroupLag:
    """The lag of a group, and its last changes."""

    listing: GroupListing
    members: int = 0
    lag: int = 0
    partitions: dict[TopicPartition, int] = field(default_factory=dict)
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    totals: deque[int] = field(default_factory=lambda: deque(maxlen=_GROWTH_SAMPLES))

    def add(self, lags: dict[TopicPartition, int], committed: dict[TopicPartition, int]) -> int:
        """Returns how many records the group has read since the last call."""
        self.partitions = lags
        self.lag = sum(lags.values())
        self.totals.append(self.lag)
        read = sum(
            max(0, at - self.committed.get(topic_partition, at))
            for topic_partition, at in committed.items()
        )
        self.committed = committed
        return read

    @property
    def growing(self) -> bool:
        """Whether the lag is large and has grown in each of the last samples."""
        rises = all(one < other for one, other in pairwise(self.totals))
        return len(self.totals) == _GROWTH_SAMPLES and rises and self.lag >= _LAG_MIN


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
    byte_rate: float = 0.0
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
    history: History = field(default_factory=History)
    lag_times: LagTimes = field(default_factory=LagTimes)
    looked_ms: int = 0
    """When the brokers were last found. 0: the last attempt failed."""
    judged_ms: int = 0
    """When the problems were last counted."""
    pipeline_problems: Callable[[], list[Problem]] = list
    """Returns the problems of deployed pipelines."""

    # -- updates --------------------------------------------------------------------------------

    def tell(self, now_ms: int, text: str) -> None:
        self.events.append({"at": now_ms, "text": text})

    def on_unreachable(self, now_ms: int, reason: str) -> None:
        if not self.unreachable:
            self.tell(now_ms, f"no broker can be reached: {reason}")
        self.unreachable = reason
        self.looked_ms = 0
        self._count_problems(now_ms)

    def _count_problems(self, now_ms: int) -> None:
        counts = Counter(each.severity for each in self.problems())
        problems = {each: counts[each] for each in SEVERITIES}
        since_ms = max(self.judged_ms, now_ms - _JUDGED_MS)
        self.history.record(CLUSTER, since_ms, now_ms, {"problems": problems})
        self.judged_ms = now_ms

    def on_brokers(
        self,
        now_ms: int,
        info: ClusterInfo,
        silent: frozenset[int],
        answer_ms: Mapping[int, float] | None = None,
    ) -> None:
        """Stores the brokers, and adds an event for each change since the last time.

        `answer_ms` has the time that each broker took to answer.
        """
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
        since_ms = self.looked_ms or now_ms
        self.looked_ms = now_ms
        self._count_problems(now_ms)
        if answer_ms:
            self.history.record(BROKERS, since_ms, now_ms, {"answer_ms": _named(answer_ms)})
            slowest = {"slowest broker": max(answer_ms.values())}
            self.history.record(CLUSTER, since_ms, now_ms, {"answer_ms": slowest})

    def _tell_changes(self, now_ms: int, info: ClusterInfo, silent: frozenset[int]) -> None:
        assert self.info is not None
        if self.unreachable:
            self.tell(now_ms, "the cluster can be reached again")
        before = {broker.id for broker in self.info.brokers}
        now = {broker.id for broker in info.brokers}
        for each in sorted(silent - self.silent):
            self.tell(now_ms, f"broker {each} is not responding")
        for each in sorted(before - now):
            self.tell(now_ms, f"broker {each} has left the cluster")
        for each in sorted(now - before):
            self.tell(now_ms, f"broker {each} has joined the cluster")
        for each in sorted((self.silent - silent) & now):
            self.tell(now_ms, f"broker {each} is responding again")
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
            if before is not None:
                written[topic_partition.topic] += max(0, end - before)
        if seconds > 0 and (written or not self.topics):
            self.topic_rates = {topic: count / seconds for topic, count in written.items() if count}
            self._record_rates(now_ms - int(seconds * 1000), now_ms, written.keys())
        self.ends = ends
        read = {each for group in self.groups.values() for each in group.committed}
        self.lag_times.add(now_ms, ends, read)

    def _record_rates(self, since_ms: int, now_ms: int, measured: Collection[str]) -> None:
        """Records the rates. `measured` has the topics for which some partition was answered."""
        total = {"written": sum(self.topic_rates.values())}
        self.history.record(CLUSTER, since_ms, now_ms, {"records": total})
        led = self._led_rates()
        rates = {each: led.get(each, 0.0) for each in self._answering()}
        self.history.record(BROKERS, since_ms, now_ms, {"records": _named(rates)})
        for topic in self._recorded_topics(now_ms):
            if topic in measured:
                rate = {"written": self.topic_rates.get(topic, 0.0)}
                self.history.record(("topic", topic), since_ms, now_ms, {"records": rate})

    def _answering(self) -> set[int]:
        here = {broker.id for broker in self.info.brokers} if self.info else set()
        return here - self.silent

    def _recorded_topics(self, now_ms: int) -> list[str]:
        few = len(self.topics) <= DETAILED_MAX
        return [
            each.name
            for each in self.topics
            if few or self.history.is_followed(("topic", each.name), now_ms)
        ]

    def on_lags(
        self,
        now_ms: int,
        seconds: float,
        groups: Mapping[str, tuple[dict[TopicPartition, int], dict[TopicPartition, int]]],
    ) -> None:
        """Stores the lags and the committed offsets of groups.

        `seconds` is the time since the last call; 0 at first.
        """
        since_ms = now_ms - int(seconds * 1000)
        read_total = 0
        for name, (lags, committed) in groups.items():
            group = self.groups.get(name)
            if group is None:
                continue  # deleted meanwhile
            is_new = not group.totals
            read = group.add(lags, committed)
            read_total += read
            values: dict[str, dict[str, float]] = {}
            # If the end of a partition is not known, its lag is unknown, not 0.
            wanted = [each for each in committed if each.topic in self.by_name]
            is_known = self.surveyed and all(each in lags for each in wanted)
            if is_known:
                values["lag"] = {"all partitions": group.lag}
            followed = self.history.is_followed(("group", name), now_ms)
            if followed or len(self.groups) <= DETAILED_MAX:
                lag_s = self.lag_times.lag_s(now_ms, {each: committed[each] for each in wanted})
                if is_known and lag_s is not None:
                    values["lag_s"] = {"oldest unread record": lag_s}
                if seconds > 0 and not is_new:
                    values["records"] = {"read": read / seconds}
            if followed:
                largest = sorted(lags, key=lambda each: -lags[each])[:_LINES_RECORDED]
                values["partitions"] = {str(each): lags[each] for each in largest}
            self.history.record(("group", name), since_ms, now_ms, values)
        if seconds > 0:
            records = {"read by groups": read_total / seconds}
            self.history.record(CLUSTER, since_ms, now_ms, {"records": records})

    def on_log_dirs(self, now_ms: int, found: list[LogDirInfo], seconds: float) -> None:
        """Stores the log directories. `seconds` is the time since the last call; 0 at first."""
        since_ms = now_ms - int(seconds * 1000)
        if self.log_dirs and seconds > 0:
            self._rate_bytes(since_ms, now_ms, found, seconds)
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
        self._record_sizes(since_ms, now_ms)

    def _record_sizes(self, since_ms: int, now_ms: int) -> None:
        used: Counter[int] = Counter()
        for each in self.log_dirs:
            if 0 <= each.usable_bytes <= each.total_bytes:
                used[each.broker] += each.total_bytes - each.usable_bytes
        logs = {each.broker: self.broker_bytes[each.broker] for each in self.log_dirs}
        values = {"disk": _named(used), "logs": _named(logs)}
        self.history.record(BROKERS, since_ms, now_ms, values)
        # The largest replica of each partition: the sum over all replicas would drop while a
        # broker is away.
        for topic in self._recorded_topics(now_ms):
            parts = [TopicPartition(topic, each.index) for each in self.by_name[topic].partitions]
            sizes = [self.sizes[each] for each in parts if each in self.sizes]
            if sizes and len(sizes) == len(parts):
                size = {"one replica": sum(sizes)}
                self.history.record(("topic", topic), since_ms, now_ms, {"size": size})

    def _rate_bytes(
        self, since_ms: int, now_ms: int, found: list[LogDirInfo], seconds: float
    ) -> None:
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
                size_before = before.get((each.broker, topic_partition))
                if size_before is not None:
                    growth = max(0, replica.size_bytes - size_before)
                    grown[each.broker] += growth
                    most[topic_partition] = max(most.get(topic_partition, 0), growth)
        self.broker_byte_rates = {broker: size / seconds for broker, size in grown.items()}
        self.byte_rate = sum(most.values()) / seconds
        self.history.record(CLUSTER, since_ms, now_ms, {"bytes": {"written": self.byte_rate}})
        answered = {each.broker for each in self.log_dirs} & {each.broker for each in found}
        rates = {each: grown[each] / seconds for each in answered}
        self.history.record(BROKERS, since_ms, now_ms, {"bytes": _named(rates)})
        topics: Counter[str] = Counter()
        for topic_partition, growth in most.items():
            topics[topic_partition.topic] += growth
        for topic in self._recorded_topics(now_ms):
            if topic not in topics:
                continue  # no broker with a replica answered
            rate = {"written": topics[topic] / seconds}
            self.history.record(("topic", topic), since_ms, now_ms, {"bytes": rate})

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
        found = find_problems(
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
        if not self.unreachable:
            found += self.pipeline_problems()
        return sorted(found, key=lambda each: SEVERITIES.index(each.severity))

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
            "records_per_s": sum(self.topic_rates.values()),
            "bytes_per_s": self.byte_rate,
            "problems": [asdict(problem) for problem in self.problems()],
            "events": list(self.events)[-20:],
            "jobs": list(jobs),
        }

    def _led_rates(self) -> dict[int, float]:
        """Returns the records that are written per second to the partitions that a broker leads.

        Assumes that a topic's writes are spread evenly over its partitions.
        """
        rates: dict[int, float] = {}
        for name, rate in self.topic_rates.items():
            parts = self.by_name[name].partitions if name in self.by_name else ()
            for partition in parts:
                rates[partition.leader] = rates.get(partition.leader, 0.0) + rate / len(parts)
        return rates

    def brokers(self) -> list[dict[str, Any]]:
        rates = self._led_rates()
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


def _named(values: Mapping[int, float]) -> dict[str, float]:
    return {f"broker {broker}": value for broker, value in values.items()}
