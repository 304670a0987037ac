"""The delay topics of this broker: runs a `DelayedPartition` for each partition that it leads.

Other topics cost nothing but a look at their settings when they change.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.delay.delayed_partition import DelayCounters, DelayedPartition, Surroundings
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.large_batches import LargeBatches
from penstock.broker.partitions.replicas import Replicas
from penstock.broker.shares.letter_sender import LetterSender
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.delay_configs import DELAY_TARGET
from penstock.metadata.image import Changed
from penstock.ports import Env
from penstock.shares.state_port import ShareState
from penstock.topic_partition import TopicPartition


class DelayLeader:
    """See the module's docstring."""

    def __init__(
        self,
        env: Env,
        cluster: ClusterView,
        replicas: Replicas,
        configs: Callable[[], BrokerConfigs],
        state: ShareState,
        sender: LetterSender,
        threads: LargeBatches,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self.counters = DelayCounters()
        self.sender = sender
        self._cluster = cluster
        self._around = Surroundings(env, cluster, configs, state, sender, threads, self.counters)
        self._replicas = replicas
        self._spawn = spawn
        self._running: dict[TopicPartition, DelayedPartition] = {}
        replicas.role_changes.on_leading(self._review)
        replicas.role_changes.on_resigned(self._review)
        cluster.listen(self._on_change)

    def __iter__(self) -> Iterator[DelayedPartition]:
        return iter(list(self._running.values()))

    def _on_change(self, changed: Changed) -> None:
        for change in changed.topics:
            topic = change.after or change.before
            if topic is None or not self._is_concerned(topic.name):
                continue
            for index in range(len(topic.partitions)):
                hosted = self._replicas.get(topic.name, index)
                if hosted is not None:
                    self._review(hosted)
        if self._running and (changed.topics or changed.configs):
            for running in self:
                running.wake()

    def _is_concerned(self, topic: str) -> bool:
        return bool(self._target_of(topic)) or any(each.topic == topic for each in self._running)

    def _target_of(self, topic: str) -> str:
        found = self._cluster.image.topics.get(topic)
        return "" if found is None else found.configs.get(DELAY_TARGET, "")

    def _review(self, hosted: HostedPartition) -> None:
        """Starts or ends the copying of a partition."""
        key, term = TopicPartition(hosted.topic, hosted.index), hosted.leadership
        is_wanted = term is not None and bool(self._target_of(hosted.topic))
        running = self._running.get(key)
        if running is not None:
            if is_wanted and running.term is term and running.hosted is hosted:
                return
            del self._running[key]
            running.close()
        if is_wanted and term is not None:
            started = self._running[key] = DelayedPartition(self._around, hosted, term)
            self._spawn(started.run())
