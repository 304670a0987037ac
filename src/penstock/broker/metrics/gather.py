"""Collects a broker's metrics from its parts.

With thousands of partitions this takes a while, and produce requests must not wait for it. So the
work is done in slices (`cooperative_yield`), and the values are from within a few
milliseconds of each other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from penstock.broker.context import Services
from penstock.broker.cooperative_yield import Slices
from penstock.broker.metrics.group_lag import GroupLag, Lag
from penstock.broker.metrics.names import OTHER
from penstock.broker.metrics.top_topics import TopTopics, Traffic
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.shares.occupancy import GroupOccupancy, OccupancyTable
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.shard_state import GroupCounters
from penstock.metadata.model import Partition
from penstock.shares.state_shard import StateCounters
from penstock.txns.transaction import State as TransactionState

_IN_TURN: Final = 50
"""How many partitions are read before the clock is checked."""
HANGS_AFTER_MS: Final = 5 * 60_000
"""An open transaction hangs if it is idle this much longer than transaction.max.timeout.ms: its
coordinator should have ended it by then."""


@dataclass(slots=True)
class PartitionTotals:
    leads: int = 0
    follows: int = 0
    rests: int = 0
    offline: int = 0
    damaged: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    out_of_sync: int = 0
    lags: dict[int, int] = field(default_factory=dict)
    """The largest lag of each follower in any partition."""
    open_transactions: int = 0
    oldest_transaction_ms: int = 0
    """Of the producers with an open transaction, the longest time since one of them wrote."""
    hanging_transactions: int = 0


@dataclass(slots=True)
class ClusterTotals:
    topics: int = 0
    partitions: int = 0
    offline: int = 0


@dataclass(slots=True)
class CoordinatorTotals:
    groups: Counter[str] = field(default_factory=Counter)
    share_groups: Counter[str] = field(default_factory=Counter)
    share_members: int = 0
    consumer_groups: Counter[str] = field(default_factory=Counter)
    consumer_members: Counter[str] = field(default_factory=Counter)
    members: int = 0
    counted: GroupCounters = field(default_factory=GroupCounters)
    transactions: Counter[TransactionState] = field(default_factory=Counter)
    share_states: int = 0
    share_counters: StateCounters = field(default_factory=StateCounters)
    unknown_share_writes: int = 0
    lags: dict[tuple[str, str], Lag] = field(default_factory=dict)


@dataclass(slots=True)
class Gathered:
    partitions: PartitionTotals
    cluster: ClusterTotals
    coordinators: CoordinatorTotals
    shares: list[GroupOccupancy] = field(default_factory=list)


class Gatherer:
    """Collects metrics, and remembers each partition's counters as of the previous scrape."""

    def __init__(self, services: Services) -> None:
        config = services.config
        self._services = services
        self._counted: dict[HostedPartition, tuple[int, int, int, int]] = {}
        self._lag = GroupLag(services, config.metrics_groups_max)
        self.top_topics = TopTopics(config.metrics_topics_max)

    async def gather(self, slices: Slices) -> Gathered:
        partitions = await self._partitions(slices)
        cluster = await self._cluster(slices)
        coordinators = await self._coordinators(slices)
        return Gathered(partitions, cluster, coordinators, await self._shares(slices))

    async def _shares(self, slices: Slices) -> list[GroupOccupancy]:
        """Returns the share groups with the largest backlogs; the others are summed up."""
        table = OccupancyTable()
        for led in self._services.shares:
            table.add(led)
            await slices.give_way()
        return table.largest(self._services.config.metrics_groups_max, OTHER)

    def close(self) -> None:
        self._lag.close()

    # Partitions

    async def _partitions(self, slices: Slices) -> PartitionTotals:
        services, totals = self._services, PartitionTotals()
        image, broker_id = services.image, services.config.broker_id
        now_ms = services.wall_ms()
        hangs_ms = services.configs().int_value("transaction.max.timeout.ms") + HANGS_AFTER_MS
        counted: dict[HostedPartition, tuple[int, int, int, int]] = {}
        news: dict[str, Traffic] = {}
        for number, hosted in enumerate(services.replicas):
            news.setdefault(hosted.topic, Traffic()).add(self._traffic(hosted, counted))
            _count_transactions(totals, hosted, now_ms, hangs_ms)
            partition = image.partition(hosted.topic, hosted.index)
            if partition is not None:
                _count_replicas(totals, hosted, partition, broker_id)
            if number % _IN_TURN == 0:
                await slices.give_way()
        totals.offline = len(services.replicas.offline)
        self._counted = counted
        self.top_topics.update(news, services.env.clock.monotonic())
        return totals

    def _traffic(
        self, hosted: HostedPartition, counted: dict[HostedPartition, tuple[int, int, int, int]]
    ) -> Traffic:
        """Returns the traffic since the last scrape."""
        now = (
            hosted.appended_bytes,
            hosted.machine.appended_records,
            hosted.sent_bytes,
            hosted.replicated_bytes,
        )
        counted[hosted] = now
        before = self._counted.get(hosted, (0, 0, 0, 0))
        size = hosted.log.size
        if now == before:
            return Traffic(size_bytes=size)
        received, records, sent, replicated = map(int.__sub__, now, before)
        return Traffic(received, records, sent, replicated, size)

    # The cluster

    async def _cluster(self, slices: Slices) -> ClusterTotals:
        totals = ClusterTotals()
        topics = list(self._services.image.topics.values())
        totals.topics = len(topics)
        for number, topic in enumerate(topics):
            totals.partitions += len(topic.partitions)
            totals.offline += sum(partition.leader < 0 for partition in topic.partitions)
            if number % _IN_TURN == 0:
                await slices.give_way()
        return totals

    # Groups and transactions

    async def _coordinators(self, slices: Slices) -> CoordinatorTotals:
        services, totals = self._services, CoordinatorTotals()
        for groups in services.groups.loaded():
            for group in groups.shard.state.groups.values():
                state, members = group.state.value, len(group.members)
                totals.groups[state] += 1
                totals.members += members
                if isinstance(group, ConsumerGroup):
                    totals.consumer_groups[state] += 1
                    totals.consumer_members["classic"] += group.classic_members
                    totals.consumer_members["consumer"] += members - group.classic_members
            for share_group in groups.shard.state.share_groups.values():
                totals.share_groups[share_group.state.value] += 1
                totals.share_members += len(share_group.members)
            await slices.give_way()
        totals.counted = services.groups.counted
        for transactions in services.transactions.loaded():
            held = transactions.shard.state.image.transactions
            totals.transactions.update(each.state for each in held.values())
            await slices.give_way()
        for shares in services.share_coordinator.loaded():
            totals.share_states += shares.shard.states.live_count
        totals.share_counters = services.share_coordinator.counters
        totals.unknown_share_writes = services.share_state.unknown_writes
        totals.lags = await self._lag.measure(slices)
        return totals


def _count_replicas(
    totals: PartitionTotals, hosted: HostedPartition, partition: Partition, broker_id: int
) -> None:
    held = hosted.leadership
    if hosted.log.damage:
        totals.damaged += 1
    if broker_id not in partition.isr:
        totals.out_of_sync += 1
    if held is None:
        totals.follows += hosted.follower is not None
        totals.rests += hosted.follower is None
        return
    totals.leads += 1
    in_sync = len(partition.isr)
    totals.under_replicated += in_sync < len(partition.replicas)
    totals.under_min_isr += in_sync < min(
        hosted.settings.min_insync_replicas, len(partition.replicas)
    )
    if len(partition.replicas) > 1:
        end = hosted.log.end_offset
        for follower, reached in held.ends().items():
            if follower != broker_id:
                # A follower that has not fetched yet in this leader epoch may have everything.
                behind = max(0, end - reached) if reached >= 0 else 0
                totals.lags[follower] = max(behind, totals.lags.get(follower, 0))


def _count_transactions(
    totals: PartitionTotals, hosted: HostedPartition, now_ms: int, hangs_ms: int
) -> None:
    if hosted.leadership is None:
        return
    for written_ms in hosted.log.producers.open_since():
        age_ms = now_ms - written_ms
        totals.open_transactions += 1
        totals.oldest_transaction_ms = max(totals.oldest_transaction_ms, age_ms)
        totals.hanging_transactions += age_ms > hangs_ms
