"""Repairs damaged replicas from their leader.

What recovery or the scrubber finds damaged is quarantined: it is never served and never sent to a
follower. The repair works as follows.

    1. A damaged follower stops fetching, so that no leader takes it for a complete copy.
    2. It withdraws from the ISR and from the eligible leaders (`metadata.withdrawal`). If it is the
       leader, another in-sync replica is elected and it becomes a follower. Both happen under a new
       leader epoch.
    3. In that leader epoch, before its first fetch, it truncates its log to where the damage
       begins, and so fetches everything after that again. The CRC of every batch is checked.
    4. It joins the ISR again once it has caught up, like any other follower.

If no other replica is in sync, none of this is done. This replica still serves its undamaged
part. The damaged range is kept as it is, as evidence and so that an operator can restore it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.control.controller import ControllerRuntime
from penstock.broker.error_codes import EXPECTED_ERRORS
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.replicas import Replicas
from penstock.broker.replication.follower_shell import is_damaged
from penstock.broker.replication.replica_fetcher import ReplicaFetchers
from penstock.metadata.decisions import Decision
from penstock.metadata.image import ClusterImage
from penstock.metadata.withdrawal import withdraw
from penstock.ports import Env
from penstock.storage.errors import StorageError
from penstock.topic_partition import TopicPartition

LOOK_S: Final = 1.0
_log = logging.getLogger(__name__)


class ReplicaRepair:
    def __init__(
        self,
        env: Env,
        broker_id: int,
        cluster: ClusterView,
        replicas: Replicas,
        controller: ControllerRuntime,
        fetchers: ReplicaFetchers,
    ) -> None:
        self._env = env
        self._broker_id = broker_id
        self._cluster = cluster
        self._replicas = replicas
        self._controller = controller
        self._fetchers = fetchers
        self._alone: dict[TopicPartition, None] = {}
        """Partitions for which it has been logged that no other replica can repair them."""

    async def run(self) -> None:
        """Looks for damaged logs until cancelled."""
        while True:
            await self._env.clock.sleep(LOOK_S)
            damaged = await self._replicas.where(
                lambda hosted: is_damaged(hosted.log) and hosted.log.failure is None
            )
            if not damaged:
                continue
            try:
                for hosted in damaged:
                    await self._cut(hosted)
                await self._withdraw([each for each in damaged if is_damaged(each.log)])
            except EXPECTED_ERRORS as error:
                _log.warning("could not repair damaged logs, retrying: %r", error)

    # Withdrawal

    async def _withdraw(self, damaged: Sequence[HostedPartition]) -> None:
        topic_partitions = [
            TopicPartition(each.topic, each.index)
            for each in damaged
            if self._is_of_the_present(each)
        ]
        if not topic_partitions or self._replicas.broker_epoch < 0:
            return
        static = self._controller.static

        def make(image: ClusterImage) -> Decision[tuple[TopicPartition, ...]]:
            return withdraw(
                image, self._broker_id, topic_partitions, stopping=image.stopping, static=static
            )

        done = await self._controller.decide(make)
        for topic_partition in topic_partitions:
            if topic_partition in done:
                self._alone.pop(topic_partition, None)
                _log.warning(
                    "%s-%d is damaged on this broker: the replica left the ISR until it is "
                    "repaired from its leader",
                    *topic_partition,
                )
            elif topic_partition not in self._alone:
                self._alone[topic_partition] = None
                _log.error(
                    "%s-%d is damaged on this broker and no other replica is in sync: undamaged "
                    "records are still served; start its other replicas, or restore the files",
                    *topic_partition,
                )

    def _is_of_the_present(self, hosted: HostedPartition) -> bool:
        """Whether the partition has other replicas, and its role is that of the current leader
        epoch."""
        partition = self._cluster.image.partition(hosted.topic, hosted.index)
        role = hosted.leadership or hosted.follower
        return (
            partition is not None
            and role is not None
            and role.epoch == partition.leader_epoch
            and len(partition.replicas) > 1
        )

    # Truncation

    def _may_cut(self, hosted: HostedPartition) -> bool:
        """Whether the log may be truncated: this replica is neither in the ISR nor an eligible
        leader, and the current leader has received no fetch from it, by which it could join the
        ISR."""
        partition = self._cluster.image.partition(hosted.topic, hosted.index)
        follower = hosted.follower
        return (
            partition is not None
            and follower is not None
            and follower.epoch == partition.leader_epoch
            and not follower.has_asked
            and self._broker_id not in partition.isr + partition.eligible_leaders
        )

    async def _cut(self, hosted: HostedPartition) -> None:
        if not self._may_cut(hosted):
            return
        log = hosted.log
        try:
            async with self._replicas.flusher.exclusive(log):
                if not is_damaged(log) or not self._may_cut(hosted) or log.failure is not None:
                    return
                start = log.log_start_offset
                first = min(held.start_offset for held in log.damage if held.end_offset > start)
                if first <= start:
                    log.start_at(start)
                else:
                    log.truncate_to(first)
                follower = hosted.follower
                assert follower is not None
                follower.on_cut(hosted.log_view())
                hosted.on_replicated()
            _log.warning(
                "%s-%d is damaged: truncated it to offset %d, and fetching the rest from broker %d",
                hosted.topic,
                hosted.index,
                log.end_offset,
                follower.leader,
            )
            self._fetchers.retry(hosted)
            await self._env.executor.run(log.purge)
        except StorageError as error:
            _log.warning("%s-%d: %s", hosted.topic, hosted.index, error)
