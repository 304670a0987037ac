"""Knows which topics were switched to `durability=fsync` and may still count unsynced records.

A leader counts what a follower reports in its fetches. A follower that has not seen the switch yet
reports records that it has only written, and the leader may commit them after the switch. So a
topic is checked as under `replicated` until each replica has seen the switch, and has synced what
its log had at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.metadata.model import Topic
from penstock.sim.checkers.committed_log import CommittedLog
from penstock.sim.checkers.metadata_invariants import is_synced


class DurabilitySwitches:
    """The topics that were switched to `fsync`.

    `replica` returns a broker's replica of a partition; None if the broker does not run or has
    not opened it.
    """

    def __init__(self, replica: Callable[[int, tuple[str, int]], HostedPartition | None]) -> None:
        self._replica = replica
        self._durable: dict[str, tuple[bytes, bool]] = {}
        self._pending: dict[str, dict[tuple[int, int], tuple[HostedPartition, int]]] = {}
        """By topic, then by broker and partition: the replica, and where its log ended when it
        was first seen to count only synced records."""

    def on_topic(self, topic: Topic) -> None:
        """The topic was created, or has changed."""
        topic_id, durable = self._durable.get(topic.name, (topic.topic_id, True))
        self._durable[topic.name] = (topic.topic_id, is_synced(topic))
        if topic_id != topic.topic_id or not is_synced(topic):
            self._pending.pop(topic.name, None)
        elif not durable:
            self._pending[topic.name] = {}

    def is_pending(self, topic: Topic, truths: Mapping[str, CommittedLog]) -> bool:
        """Returns whether a record of the topic may count before every replica has synced it."""
        ends = self._pending.get(topic.name)
        if ends is None:
            return False
        for index in range(len(topic.partitions)):
            truth = truths.get(f"{topic.name}-{index}")
            if truth is None or not self._has_synced(topic, index, truth.end_offset, ends):
                return True
        del self._pending[topic.name]
        return False

    def _has_synced(
        self,
        topic: Topic,
        index: int,
        committed: int,
        ends: dict[tuple[int, int], tuple[HostedPartition, int]],
    ) -> bool:
        partition = topic.partitions[index]
        for broker_id in partition.replicas:
            is_member = broker_id in partition.isr or broker_id in partition.eligible_leaders
            hosted = self._replica(broker_id, (topic.name, index))
            if hosted is None or hosted.log.failure is not None:
                if is_member:
                    return False
                # Opening a log syncs it, and a failed one takes part in nothing.
                continue
            if hosted.topic_id != topic.topic_id or not hosted.machine.counts_synced:
                return False
            log = hosted.log
            seen, end = ends.get((broker_id, index), (None, 0))
            if seen is not hosted:
                end = log.end_offset
                ends[broker_id, index] = (hosted, end)
            # Truncation may have removed what was not synced.
            end = min(end, log.end_offset)
            if log.recovery_point < (max(end, committed) if is_member else end):
                return False
        return True
