"""A cluster of two brokers with one partition, written, synced and committed by hand."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from penstock.metadata.cluster_values import encode_broker
from penstock.metadata.image import ClusterImage
from penstock.metadata.keys import broker_key, topic_key
from penstock.metadata.model import BrokerInfo, Partition, Topic
from penstock.metadata.topic_values import encode_topic
from penstock.ports import WatchEvent
from penstock.records.record import (
    ControlMarker,
    ControlType,
    Record,
    build_batch,
    control_batch,
)
from penstock.sim.checkers.invariants import Invariants
from penstock.sim.checkers.metadata_invariants import InvariantBroken
from penstock.sim.disk.disk import SimDisk
from penstock.storage.log import Log
from storage.log_bench import NOW_MS, LogBench

TOPIC_ID = bytes(15) + b"\x07"
WHOLE = Partition((0, 1), (0, 1), (), 0, 0, 0, 1, (1, 2))


class Term:
    """The part of a leadership that the invariants look at."""

    def __init__(self, broker_id: int, epoch: int, high_watermark: int, isr: set[int]) -> None:
        self.broker_id = broker_id
        self.broker_epoch = broker_id + 1
        self.epoch = epoch
        self.high_watermark = high_watermark
        self.start_offset = 0
        self.isr = frozenset(isr)
        self.maximal_isr = frozenset(isr)


class Hosted:
    def __init__(self, log: Log) -> None:
        self.log = log
        self.topic_id = TOPIC_ID
        self.leadership: Term | None = None
        self.known = 0
        self.machine = self
        self.counts_synced = True

    @property
    def high_watermark(self) -> int:
        return self.known if self.leadership is None else self.leadership.high_watermark

    @property
    def last_stable_offset(self) -> int:
        log = self.log
        return log.producers.last_stable_offset(self.high_watermark, log.log_start_offset)


class Node:
    """A broker with one replica."""

    def __init__(self, broker_id: int) -> None:
        self.id = broker_id
        self.bench = LogBench(SimDisk(Random(1), Random(2)))
        self.log = self.bench.create()
        self.hosted = Hosted(self.log)
        self.replicas = self
        self._hosted = {("t", 0): self.hosted}
        self.controller = self
        self.broker_epoch = broker_id + 1
        self.cluster = self
        self.image = ClusterImage()

    @property
    def broker(self) -> Any:
        return self


class Cluster:
    """Two brokers with replicas of `t-0`, led by broker 0. Tests write, sync and commit by hand."""

    def __init__(self) -> None:
        self.nodes = [Node(0), Node(1)]
        self.revision = 0
        self.fences: dict[int, int] = {}
        self.invariants = Invariants(
            lambda: self.nodes,
            lambda broker_id: self.nodes[broker_id].bench.sim.peek,
            fences=self.fences,
        )
        for node in self.nodes:
            info = BrokerInfo(node.id, f"host{node.id}", 9092, None, bytes(16), -1, 0)
            self.put(broker_key(node.id), encode_broker(info))
        self.lead(0, epoch=0)

    def put(self, key: str, value: bytes | None) -> None:
        self.revision += 1
        self.invariants.on_store([WatchEvent(key, value, self.revision)])

    def partition(self, partition: Partition, durability: str = "fsync") -> None:
        configs = {"min.insync.replicas": "2", "durability": durability}
        self.put(topic_key("t"), encode_topic(Topic("t", TOPIC_ID, (partition,), configs)))

    def lead(self, broker_id: int, epoch: int, high_watermark: int = 0) -> Term:
        for node in self.nodes:
            node.hosted.leadership = None
        term = self.nodes[broker_id].hosted.leadership = Term(
            broker_id, epoch, high_watermark, {0, 1}
        )
        return term

    def write(self, broker_id: int, *values: bytes, epoch: int = 0, **more: Any) -> None:
        for value in values:
            self.write_unsynced(broker_id, value, epoch, **more)
        self.nodes[broker_id].log.flush()

    def write_unsynced(self, broker_id: int, value: bytes, epoch: int = 0, **more: Any) -> None:
        batch = build_batch([Record(0, NOW_MS, None, value)], **more)
        self.nodes[broker_id].log.append(batch, epoch, NOW_MS)

    def mark(self, broker_id: int, kind: ControlType, producer_id: int, epoch: int) -> None:
        batch = control_batch(
            ControlMarker(kind, 0), producer_id=producer_id, producer_epoch=epoch, timestamp=NOW_MS
        )
        log = self.nodes[broker_id].log
        log.append(batch, 0, NOW_MS)
        log.flush()

    def commit(self, high_watermark: int) -> None:
        for node in self.nodes:
            if node.hosted.leadership is not None:
                node.hosted.leadership.high_watermark = high_watermark

    def check(self) -> None:
        self.invariants.check()


def sound_cluster() -> Cluster:
    """Returns a cluster that breaks no invariant and has two committed records."""
    made = Cluster()
    made.partition(WHOLE)
    for broker_id in (0, 1):
        made.write(broker_id, b"a", b"b")
    made.check()
    made.commit(2)
    made.check()
    return made


def breaks(cluster: Cluster) -> str:
    with pytest.raises(InvariantBroken) as caught:
        cluster.check()
    return caught.value.violation.rule
