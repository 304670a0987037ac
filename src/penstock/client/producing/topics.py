"""The producer's view of its topics: their lanes, their leaders, and what routers see.

The cluster's metadata is read when it has changed and not for every record. Each topic keeps a list
of leaders by partition and a `PartitionView`, rebuilt from the latest metadata.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.client.address import Address
from penstock.client.cluster import Cluster
from penstock.client.errors import BrokerError, ClientError
from penstock.client.producing.accumulator import Accumulator
from penstock.client.producing.lanes import NOBODY, Lane
from penstock.client.routers import PartitionView
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import MetadataResponse


class Topic:
    __slots__ = ("lanes", "leaders", "name", "source", "view")

    def __init__(self, name: str) -> None:
        self.name = name
        self.lanes: list[Lane] = []
        self.leaders: list[int] = []
        """The leader of each partition; NOBODY if there is none."""
        self.source: MetadataResponse.Topic | None = None
        self.view = PartitionView(0, (), self.queued_bytes, _nothing_to_choose, 1)

    def queued_bytes(self, partition: int) -> int:
        return self.lanes[partition].queued_bytes


def _nothing_to_choose(bound: int) -> int:
    raise AssertionError(f"cannot choose one of {bound} partitions: the topic has none")


class Topics:
    def __init__(self, cluster: Cluster, accumulator: Accumulator, batch_size: int) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._batch_size = batch_size
        self._topics: dict[str, Topic] = {}

    def names(self) -> list[str]:
        return list(self._topics)

    def open(self, name: str) -> Topic:
        """Returns the topic. The cluster has just received its metadata."""
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = Topic(name)
        self._update(topic)
        return topic

    def sync(self) -> None:
        """Updates all topics from the cluster's current metadata."""
        for topic in self._topics.values():
            self._update(topic)

    def leader(self, lane: Lane) -> int:
        topic_partition = lane.topic_partition
        leader = self._topics[topic_partition.topic].leaders[topic_partition.partition]
        return leader if leader in self._cluster.brokers else NOBODY

    def why_leaderless(self, lane: Lane) -> ClientError:
        """Returns the cluster's error for a lane without a leader."""
        known = self._topics[lane.topic_partition.topic].source
        if known is not None and known.error_code != ErrorCode.NONE:
            return BrokerError(known.error_code, subject=f"topic {lane.topic_partition.topic}")
        return BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, subject=str(lane.topic_partition))

    def follow(self, topic_partition: TopicPartition, leader_id: int, leader_epoch: int) -> bool:
        """Applies the new leader that a former leader reported. Returns False if it is not new or
        unusable."""
        known = self._cluster.known_topic(topic_partition.topic)
        if known is None or leader_id not in self._cluster.brokers:
            return False
        for partition in known.partitions:
            if (
                partition.partition_index == topic_partition.partition
                and partition.leader_epoch < leader_epoch
            ):
                partition.leader_id = leader_id
                partition.leader_epoch = leader_epoch
                topic = self._topics[topic_partition.topic]
                topic.source = None
                self._update(topic)
                return True
        return False

    def meet(self, brokers: Iterable[tuple[int, Address]]) -> None:
        """Adds brokers that a response mentioned."""
        self._cluster.brokers.update(brokers)

    def _update(self, topic: Topic) -> None:
        known = self._cluster.known_topic(topic.name)
        if known is None or known is topic.source:
            return
        topic.source = known
        if known.error_code != ErrorCode.NONE:
            topic.leaders = [NOBODY] * len(topic.lanes)
        else:
            # Partitions are only ever added. If the topic was created again with fewer, the other
            # lanes have no leader.
            count = max(len(known.partitions), len(topic.lanes))
            for partition in range(len(topic.lanes), count):
                topic_partition = TopicPartition(topic.name, partition)
                topic.lanes.append(self._accumulator.lane(topic_partition))
            topic.leaders = [NOBODY] * count
            for heard in known.partitions:
                if 0 <= heard.partition_index < count:
                    topic.leaders[heard.partition_index] = heard.leader_id
        topic.view = PartitionView(
            count=len(known.partitions) or len(topic.lanes),
            available=tuple(
                partition
                for partition, leader in enumerate(topic.leaders[: len(known.partitions)])
                if leader in self._cluster.brokers
            ),
            queued_bytes=topic.queued_bytes,
            below=self._cluster.random.below,
            batch_size=self._batch_size,
        )
