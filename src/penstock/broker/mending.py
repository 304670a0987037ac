"""Replicas that were found damaged are mended from their leader.

What recovery or the scrubber finds bad is quarantined: never served, never sent to a follower. Then

    1. A damaged follower stops to fetch, so that no leader takes it for a full copy.
    2. It asks to be taken out of those that count (`metadata.withdrawal`); a damaged leader is
       succeeded by another that is in sync, and follows. Both under a new leader epoch.
    3. In that epoch, before its first fetch, it cuts its log to where the damage begins, and so
       fetches again all that follows. Everything it is sent is checked by CRC.
    4. It joins the in-sync set again as any other that has caught up.

Where nobody else is in sync nothing of this is done: what is sound here is still served, and the
damaged range stays as it is, as evidence and for whoever can restore it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from penstock.broker.cluster import ClusterView
from penstock.broker.controller import ControllerRuntime
from penstock.broker.failures import EXPECTED
from penstock.broker.following import is_damaged
from penstock.broker.hosted import HostedPartition
from penstock.broker.replica_fetcher import ReplicaFetchers
from penstock.broker.replicas import Replicas
from penstock.metadata.decisions import Decision
from penstock.metadata.image import ClusterImage
from penstock.metadata.withdrawal import Place, withdraw
from penstock.ports import Env
from penstock.storage.errors import StorageError

LOOK_S: Final = 1.0
_log = logging.getLogger(__name__)


class Mending:
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
        self._alone: dict[Place, None] = {}
        """Partitions of which it was said already that nobody else can mend them."""

    async def run(self) -> None:
        """Look for damaged logs until cancelled."""
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
            except EXPECTED as error:
                _log.warning("damaged logs could not be mended as yet: %r", error)

    # Leaving those that count

    async def _withdraw(self, damaged: Sequence[HostedPartition]) -> None:
        places = [(each.topic, each.index) for each in damaged if self._is_of_the_present(each)]
        if not places or self._replicas.broker_epoch < 0:
            return
        static = self._controller.static

        def make(image: ClusterImage) -> Decision[tuple[Place, ...]]:
            return withdraw(image, self._broker_id, places, stopping=image.stopping, static=static)

        done = await self._controller.decide(make)
        for topic, index in places:
            place = (topic, index)
            if place in done:
                self._alone.pop(place, None)
                _log.warning("%s-%d is damaged here: it counts no more until mended", *place)
            elif place not in self._alone:
                self._alone[place] = None
                _log.error(
                    "%s-%d is damaged here and nobody else is in sync: what is sound is served on; "
                    "start its other replicas, or restore the files",
                    *place,
                )

    def _is_of_the_present(self, hosted: HostedPartition) -> bool:
        """Its role is what the metadata says by now."""
        partition = self._cluster.image.partition(hosted.topic, hosted.index)
        role = hosted.leadership or hosted.follower
        return (
            partition is not None
            and role is not None
            and role.epoch == partition.leader_epoch
            and len(partition.replicas) > 1
        )

    # Cutting

    def _may_cut(self, hosted: HostedPartition) -> bool:
        """Nobody counts on this copy, and no leader knows of a fetch by which it could."""
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
                "%s-%d was damaged: it is cut to %d, and fetched again from there from broker %d",
                hosted.topic,
                hosted.index,
                log.end_offset,
                follower.leader,
            )
            self._fetchers.retry(hosted)
            await self._env.executor.run(log.purge)
        except StorageError as error:
            _log.warning("%s-%d: %s", hosted.topic, hosted.index, error)
