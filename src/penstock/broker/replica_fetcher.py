"""Followers at work: one link to each broker that leads something which is followed here.

A link asks for all its partitions in one request, over and over. A request that finds nothing new
is kept by the leader for a while, and a partition must not wait for that: whatever becomes ready
in the meantime (its records were flushed, it was assigned here just now, its backoff is over) goes
by a second connection, the express lane, whose requests are kept only for a moment, until the main
lane is back and takes them all again. So what `acks=all` costs beside the flushes is round trips.

With `durability=fsync` a follower may ask for more only when what it has is on disk. After each
answer the lane waits a little for the flushes it has caused, so that the next request has all
partitions in it; a flush that takes longer holds nobody up, its partition goes by express.

Fairness: an answer is limited in bytes and filled in the order of the request, so partitions that
were given nothing go to the front of the next one.

The leader of a partition, the address of a broker: the newest metadata counts. A partition whose
role changes is taken out at once, and an answer that still comes for it is dropped by its follower.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from penstock.broker.cluster import ClusterView
from penstock.broker.following import Following
from penstock.broker.hosted import HostedPartition
from penstock.broker.leader_link import Followed, LeaderLink, LinkParts
from penstock.broker.replica_throttle import ReplicaThrottle
from penstock.broker.replicas import Replicas
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.image import Changed
from penstock.partition.follower import Effect
from penstock.ports import Buffer, Env

_log = logging.getLogger(__name__)

_Key = tuple[str, int]


class ReplicaFetchers:
    """All links of this broker; `run` owns them."""

    def __init__(
        self,
        env: Env,
        broker_id: int,
        cluster: ClusterView,
        replicas: Replicas,
        configs: Callable[[], BrokerConfigs],
    ) -> None:
        self._env = env
        self._broker_id = broker_id
        self._cluster = cluster
        self._replicas = replicas
        self._followed: dict[_Key, Followed] = {}
        self._links: dict[int, tuple[LeaderLink, asyncio.Task[None]]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._parts = LinkParts(
            env=env,
            broker_id=broker_id,
            broker_epoch=lambda: replicas.broker_epoch,
            broker=cluster.image.brokers.get,
            configs=configs,
            throttle=ReplicaThrottle(broker_id),
            operate=self._operate,
        )
        replicas.on_role(self._on_role)
        cluster.listen(self._on_change)

    async def run(self) -> None:
        """Follow until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                for hosted in self._replicas:
                    self._on_role(hosted)
                await asyncio.get_running_loop().create_future()
        finally:
            self._tasks = None
            for followed in list(self._followed.values()):
                self._drop(followed)
            self._links.clear()

    def retry(self, hosted: HostedPartition) -> None:
        """Something that kept the partition from being followed is out of the way."""
        held = self._followed.get((hosted.topic, hosted.index))
        if held is not None and held.following.hosted is hosted:
            held.link.offer(held)

    def pause(self) -> None:
        """This broker stores nothing for now: no leader shall count it as a follower. It follows
        again by `retry`."""
        for followed in list(self._followed.values()):
            followed.link.pause(followed)

    def _on_role(self, hosted: HostedPartition) -> None:
        if self._tasks is None:
            return
        key = (hosted.topic, hosted.index)
        held = self._followed.get(key)
        follower = hosted.follower
        if held is not None:
            if held.following.hosted is hosted and held.following.follower is follower:
                return
            self._drop(held)
        if follower is None or self._replicas.get(*key) is not hosted:
            return
        following = Following(
            hosted, follower, self._replicas.flusher, self._env, self._replicas.now_ms
        )
        followed = self._followed[key] = Followed(key, following, self._link(follower.leader))
        followed.link.add(followed)

    def _link(self, leader: int) -> LeaderLink:
        held = self._links.get(leader)
        if held is None:
            assert self._tasks is not None
            link = LeaderLink(leader, self._parts)
            held = self._links[leader] = (link, self._tasks.create_task(link.run()))
        return held[0]

    def _drop(self, followed: Followed) -> None:
        del self._followed[followed.key]
        link = followed.link
        link.remove(followed)
        if link.is_idle and link.leader in self._links:
            self._links.pop(link.leader)[1].cancel()

    def _on_change(self, changed: Changed) -> None:
        for broker_id in changed.broker_ids:
            held = self._links.get(broker_id)
            if held is not None:
                held[0].on_broker()

    def _operate(self, followed: Followed, effects: Sequence[Effect], records: Buffer) -> None:
        """Cut a log when it is free, while its link goes on with the others."""
        if self._tasks is not None:
            self._tasks.create_task(self._operate_now(followed, effects, records))

    async def _operate_now(
        self, followed: Followed, effects: Sequence[Effect], records: Buffer
    ) -> None:
        try:
            more = await followed.following.operate(effects, records)
        except Exception:  # noqa: BLE001 - one partition's trouble must not end all replication
            _log.exception("%s is not followed any more", followed.following)
            return
        followed.link.settle(followed, [*effects, *more])
