"""Fetches from the leaders of all partitions that this broker follows: one link per leader.

This module assigns partitions to links. A link (`leader_link`) sends the requests and takes in the
answers. It asks for all its partitions in one request, again and again. If there is nothing new,
the leader holds the request for a while, and no partition should have to wait for that. So
partitions that become ready in the meantime (their records were flushed, they were just assigned to
this broker, or their backoff has ended) go through a second connection, the express connection. The
leader holds express requests only briefly. When the main connection's request is answered, the main
connection takes all partitions again. As a result, `acks=all` costs only round trips in addition to
the flushes.

With `durability=fsync` a follower may ask for more only when the records it has are on disk. After
each answer the connection waits a little for the flushes that the answer caused, so that the next
request covers all partitions. A flush that takes longer delays no other partition: its own goes
through the express connection.

Fairness: an answer is limited in bytes and filled in the order of the request. So partitions that
got nothing move to the front of the next request.

Leaders and broker addresses always come from the newest metadata. A partition whose role changes is
removed at once, and its follower ignores an answer that still arrives for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.replicas import Replicas
from penstock.broker.partitions.replication_throttle import ReplicationThrottle
from penstock.broker.peers.connector import PeerConnector
from penstock.broker.replication.follower_shell import FollowerShell
from penstock.broker.replication.leader_link import LeaderLink, LinkParts
from penstock.broker.replication.linked_partition import LinkedPartition
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.image import Changed
from penstock.partition.follower import Effect
from penstock.ports import Buffer, Env
from penstock.topic_partition import TopicPartition

_log = logging.getLogger(__name__)


class ReplicaFetchers:
    """All links of this broker. `run` owns their tasks."""

    def __init__(
        self,
        env: Env,
        broker_id: int,
        cluster: ClusterView,
        replicas: Replicas,
        configs: Callable[[], BrokerConfigs],
        connector: PeerConnector,
    ) -> None:
        self._env = env
        self._broker_id = broker_id
        self._cluster = cluster
        self._replicas = replicas
        self._linked: dict[TopicPartition, LinkedPartition] = {}
        self._links: dict[int, tuple[LeaderLink, asyncio.Task[None]]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._parts = LinkParts(
            env=env,
            broker_id=broker_id,
            broker_epoch=lambda: replicas.broker_epoch,
            broker=cluster.image.brokers.get,
            configs=configs,
            throttle=ReplicationThrottle(broker_id),
            connector=connector,
            change_log=self._change_log,
        )
        replicas.role_changes.on_any(self._on_role)
        cluster.listen(self._on_change)

    async def run(self) -> None:
        """Fetches until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                for hosted in self._replicas:
                    self._on_role(hosted)
                await asyncio.get_running_loop().create_future()
        finally:
            self._tasks = None
            for linked in list(self._linked.values()):
                self._drop(linked)
            self._links.clear()

    def retry(self, hosted: HostedPartition) -> None:
        """Resumes fetching for a partition, after the obstacle is gone."""
        held = self._linked.get(TopicPartition(hosted.topic, hosted.index))
        if held is not None and held.shell.hosted is hosted:
            held.link.offer(held)

    def pause(self) -> None:
        """Stops fetching while this broker cannot store anything, so that no leader counts it as in
        sync. `retry` resumes."""
        for linked in list(self._linked.values()):
            linked.link.pause(linked)

    def _on_role(self, hosted: HostedPartition) -> None:
        if self._tasks is None:
            return
        key = TopicPartition(hosted.topic, hosted.index)
        held = self._linked.get(key)
        follower = hosted.follower
        if held is not None:
            if held.shell.hosted is hosted and held.shell.follower is follower:
                return
            self._drop(held)
        if follower is None or self._replicas.get(*key) is not hosted:
            return
        shell = FollowerShell(
            hosted, follower, self._replicas.flusher, self._env, self._replicas.monotonic_ms
        )
        linked = self._linked[key] = LinkedPartition(key, shell, self._link(follower.leader))
        linked.link.add(linked)

    def _link(self, leader: int) -> LeaderLink:
        held = self._links.get(leader)
        if held is None:
            assert self._tasks is not None
            link = LeaderLink(leader, self._parts)
            held = self._links[leader] = (link, self._tasks.create_task(link.run()))
        return held[0]

    def _drop(self, linked: LinkedPartition) -> None:
        del self._linked[linked.key]
        link = linked.link
        link.remove(linked)
        if link.is_idle and link.leader in self._links:
            self._links.pop(link.leader)[1].cancel()

    def _on_change(self, changed: Changed) -> None:
        for broker_id in changed.broker_ids:
            held = self._links.get(broker_id)
            if held is not None:
                held[0].on_broker()

    def _change_log(
        self, linked: LinkedPartition, effects: Sequence[Effect], records: Buffer
    ) -> None:
        """Truncates a log once no flush uses it. The link continues with its other partitions."""
        if self._tasks is not None:
            self._tasks.create_task(self._change_log_now(linked, effects, records))

    async def _change_log_now(
        self, linked: LinkedPartition, effects: Sequence[Effect], records: Buffer
    ) -> None:
        try:
            more = await linked.shell.change_log(effects, records)
        except Exception:  # noqa: BLE001 - an error in one partition must not end all replication
            _log.exception(
                "%s: this replica stopped fetching after an unexpected error: restart the broker, "
                "and report the error",
                linked.shell,
            )
            return
        linked.link.settle(linked, [*effects, *more])
