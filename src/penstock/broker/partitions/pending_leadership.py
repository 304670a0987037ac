"""Holds batches, in order, for partitions that this broker is about to lead.

A client may learn of a new leader before that leader does, or send a batch while the new leadership
still waits for its epoch to be synced. Refusing that one batch would do no harm, since the client
sends it again. But an idempotent producer has more batches in flight. If the leadership begins
between two of them, the first is refused and the second is out of order. librdkafka then begins a
new producer epoch and sends all unacknowledged batches again, with new sequence numbers. Batches
that an earlier leader had written are then in the log twice.

So a batch that would be refused only because the metadata is ahead of this broker waits here, and
so do the batches that arrive after it for the same partition. When the leadership begins, all of
them are processed before any other batch. If that takes too long, they are refused together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.replicas import Replicas
from penstock.topic_partition import TopicPartition

WAIT_S: Final = 2.0
"""How long batches wait for a leadership to begin."""

GoOn = Callable[[], None]


class PendingLeadership:
    """The batches that wait for a pending leadership, by topic partition."""

    def __init__(self, broker_id: int, cluster: ClusterView, replicas: Replicas) -> None:
        self._broker_id = broker_id
        self._cluster = cluster
        self._replicas = replicas
        self._waiting: dict[TopicPartition, list[GoOn]] = {}
        self._timers: dict[TopicPartition, asyncio.TimerHandle] = {}
        replicas.role_changes.on_any(self._on_role)

    def put_off(self, topic: str, index: int, go_on: GoOn) -> bool:
        """Returns whether this broker is about to lead the partition.

        If so, `go_on` is called once: when the leadership begins or is lost, or after `WAIT_S`."""
        if not self._is_due(topic, index):
            return False
        topic_partition = TopicPartition(topic, index)
        self._waiting.setdefault(topic_partition, []).append(go_on)
        if topic_partition not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[topic_partition] = loop.call_later(WAIT_S, self._release, topic_partition)
        return True

    def _is_due(self, topic: str, index: int) -> bool:
        partition = self._cluster.image.partition(topic, index)
        if (
            partition is None
            or partition.leader != self._broker_id
            or partition.leader_broker_epoch != self._replicas.broker_epoch
        ):
            return False
        hosted = self._replicas.get(topic, index)
        return hosted is None or (hosted.leadership is None and hosted.log.failure is None)

    def _on_role(self, hosted: HostedPartition) -> None:
        topic_partition = TopicPartition(hosted.topic, hosted.index)
        if topic_partition in self._waiting and not self._is_due(*topic_partition):
            self._release(topic_partition)

    def _release(self, topic_partition: TopicPartition) -> None:
        timer = self._timers.pop(topic_partition, None)
        if timer is not None:
            timer.cancel()
        for go_on in self._waiting.pop(topic_partition, ()):
            go_on()
