"""Measures the lag of the groups that this broker coordinates.

The coordinator has a group's committed offsets. This broker knows the ends of the partitions it
hosts. It asks the leaders of the other partitions, all in parallel and with a short timeout. If a
leader does not answer in time, its previous answer is used.

Each pair of group and topic is a time series, so their number is limited: the pairs with the
largest lags are reported, and all others are added up in one series.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.broker.context import Services
from penstock.broker.cooperative_yield import Slices
from penstock.broker.metrics.names import OTHER
from penstock.broker.peers.connection import Peer, PeerLost
from penstock.broker.replication.replica_requests import LIST_OFFSETS_VERSION, read_offsets
from penstock.topic_partition import TopicPartition
from penstock.wire.messages import ListOffsetsRequest, ListOffsetsResponse

ANSWER_S: Final = 0.25
"""How long to wait for other brokers: a scrape should take no longer than half a second."""
_CONSUMER: Final = -1
_LATEST: Final = -1
_RESPONSE_BYTES_MAX: Final = 16 << 20


class Lag(NamedTuple):
    records: int
    worst: int
    """The lag of the partition that is furthest behind."""


class GroupLag:
    def __init__(self, services: Services, pairs_max: int) -> None:
        self._services = services
        self._pairs_max = pairs_max
        self._far = FarEnds(services)

    async def measure(self, slices: Slices) -> dict[tuple[str, str], Lag]:
        """Returns the lags by group and topic."""
        lags: dict[tuple[str, str], Lag] = {}
        far: list[tuple[str, TopicPartition, int]] = []
        find = self._services.replicas.get
        for runtime in self._services.groups.loaded():
            # A copy, because groups may commit between two slices.
            for group, offsets in list(runtime.shard.state.image.offsets.items()):
                for topic_partition, committed in offsets.items():
                    hosted = find(*topic_partition)
                    if hosted is None:
                        far.append((group, topic_partition, committed.offset))
                    else:
                        _add(
                            lags,
                            group,
                            topic_partition[0],
                            hosted.high_watermark - committed.offset,
                        )
                await slices.give_way()
        if far:
            ends = await self._far.ask({topic_partition for _, topic_partition, _ in far})
            for group, topic_partition, offset in far:
                if topic_partition in ends:
                    _add(lags, group, topic_partition[0], ends[topic_partition] - offset)
        return limited(lags, self._pairs_max)

    def close(self) -> None:
        self._far.close()


def _add(lags: dict[tuple[str, str], Lag], group: str, topic: str, behind: int) -> None:
    behind = max(0, behind)
    known = lags.get((group, topic))
    if known is None:
        lags[group, topic] = Lag(behind, behind)
    else:
        lags[group, topic] = Lag(known.records + behind, max(known.worst, behind))


def limited(lags: Mapping[tuple[str, str], Lag], pairs_max: int) -> dict[tuple[str, str], Lag]:
    """Returns the pairs that are furthest behind, and one entry for all others together."""
    if len(lags) <= pairs_max:
        return dict(lags)
    ordered = sorted(lags.items(), key=lambda item: item[1], reverse=True)
    rest = [lag for _, lag in ordered[pairs_max:]]
    together = Lag(sum(lag.records for lag in rest), max(lag.worst for lag in rest))
    return {**dict(ordered[:pairs_max]), (OTHER, OTHER): together}


class FarEnds:
    """The end offsets of partitions that this broker does not host."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._peers: dict[int, Peer] = {}
        self._ends: dict[TopicPartition, int] = {}

    async def ask(self, topic_partitions: set[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Asks the leaders. For a leader that does not answer, uses its previous answer."""
        known, self._ends = self._ends, {}
        leaders: dict[int, list[TopicPartition]] = {}
        for topic_partition in topic_partitions:
            partition = self._services.image.partition(*topic_partition)
            if partition is None:
                continue  # The topic was deleted.
            if topic_partition in known:
                self._ends[topic_partition] = known[topic_partition]
            if partition.leader >= 0:
                leaders.setdefault(partition.leader, []).append(topic_partition)
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S), asyncio.TaskGroup() as asking:
                for leader, wanted in leaders.items():
                    asking.create_task(self._ask_one(leader, wanted))
        return self._ends

    async def _ask_one(self, leader: int, topic_partitions: list[TopicPartition]) -> None:
        topics: dict[str, ListOffsetsRequest.Topic] = {}
        for name, index in topic_partitions:
            topic = topics.setdefault(name, ListOffsetsRequest.Topic(name))
            topic.partitions.append(ListOffsetsRequest.Partition(index, timestamp=_LATEST))
        request = ListOffsetsRequest(replica_id=_CONSUMER, topics=list(topics.values()))
        with suppress(PeerLost):
            peer = await self._peer(leader)
            answer = await peer.ask(request, LIST_OFFSETS_VERSION, ListOffsetsResponse, ANSWER_S)
            self._ends |= read_offsets(answer)

    async def _peer(self, leader: int) -> Peer:
        peer = self._peers.get(leader)
        if peer is not None and peer.is_open:
            return peer
        broker = self._services.image.brokers.get(leader)
        if broker is None:
            raise PeerLost(f"broker {leader} is not registered")
        peer = self._peers[leader] = await self._services.connector.connect(
            broker,
            client_id="metrics",
            timeout_s=ANSWER_S,
            response_bytes_max=_RESPONSE_BYTES_MAX,
        )
        return peer

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()
